"""What a load run is: keys with rate schedules in, every arrival in order out. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.sim.trace import Trace, TraceRequest, arrivals, split


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadKey:
    """Requests of one client kind, for example one (tenant, model version)."""

    name: str
    model: str  # what the body's `model` says
    schedule: tuple[tuple[float, float], ...]  # (from this second of the run on, requests per second)
    headers: tuple[tuple[str, str], ...] = ()
    path: str = "/v1/chat/completions"
    weight: float = 1.0  # its part of the trace's requests


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """A bounded run against one address."""

    host: str
    port: int
    keys: tuple[LoadKey, ...]
    duration_s: float
    start_at_s: float | None = None  # Unix seconds of second 0; None: at once
    stream_ratio: float = 0.5
    spoof: bool = False  # every request carries SPOOFED_HEADERS
    prompt_scale: float = 0.05  # of the trace's prompt tokens
    answer_scale: float = 0.04  # of the trace's answer tokens
    max_answer_tokens: int = 16
    evenness: float = 0.0  # see trace.arrivals
    seed: int = 0
    trace: str | None = None  # CSV file; None: the shipped excerpt
    max_connections: int = 512
    max_requests: int = 200_000
    timeout_s: float = 20.0  # for one answer; also how long the end waits for the last ones

    @staticmethod
    def from_json(document: dict[str, Any]) -> LoadSpec:
        """The inverse of `dataclasses.asdict`; an unknown field is a TypeError."""
        keys = tuple(
            LoadKey(
                **{
                    **key,
                    "schedule": tuple((float(start_s), float(rate)) for start_s, rate in key["schedule"]),
                    "headers": tuple((str(name), str(value)) for name, value in key.get("headers", ())),
                }
            )
            for key in document["keys"]
        )
        return LoadSpec(**{**document, "keys": keys})


def plan(spec: LoadSpec, trace: Trace) -> Iterator[tuple[float, int, TraceRequest]]:
    """(second of the run, index of its key, request) of each arrival, in order; bounded in time and count."""
    parts = split(trace, {key.name: key.weight for key in spec.keys}, seed=spec.seed)
    streams = [_stream(spec, index, parts[key.name] or trace) for index, key in enumerate(spec.keys)]
    merged = heapq.merge(*streams, key=lambda arrival: arrival[:2])
    yield from itertools.islice(merged, spec.max_requests)


def _stream(spec: LoadSpec, index: int, part: Trace) -> Iterator[tuple[float, int, TraceRequest]]:
    for request in arrivals(part, spec.keys[index].schedule, evenness=spec.evenness):
        if request.at_s >= spec.duration_s:
            return
        yield request.at_s, index, request
