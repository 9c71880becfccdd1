"""Real traffic from a recorded trace: CSV in, requests with times and token counts out, at any rate.

Replaying at another rate keeps the trace's *pattern* (who comes close after whom, how large) by a change of
time: the trace's gaps, scaled to a mean of one, are laid on the integral of the wanted rate. So 2 requests/s
and 200 are equally bursty relative to their mean, and a schedule may step at any moment and keep its place.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

EXCERPT = Path(__file__).parent / "data" / "azure_conv_excerpt.csv"

Schedule = Sequence[tuple[float, float]]  # (from this second on, requests per second), in order


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One recorded request; `at_s` counts from the first one."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int


Trace = tuple[TraceRequest, ...]


def read_trace(path: Path = EXCERPT) -> Trace:
    """A trace with Azure's columns TIMESTAMP, ContextTokens, GeneratedTokens, in order of time."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [
            (_seconds(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row in csv.DictReader(file)
        ]
    if not rows:
        raise ValueError(f"{path.name}: no requests")
    rows.sort(key=lambda row: row[0])
    first_s = rows[0][0]
    return tuple(
        TraceRequest(at_s=at_s - first_s, prompt_tokens=prompt, answer_tokens=answer)
        for at_s, prompt, answer in rows
    )


def compress(trace: Trace, factor: float) -> Trace:
    """The same requests, `factor` times as fast."""
    return tuple(replace(request, at_s=request.at_s / factor) for request in trace)


def split(trace: Trace, weights: Mapping[str, float], *, seed: int) -> dict[str, Trace]:
    """Deal the requests out at random in proportion to `weights`; equal inputs give equal parts."""
    choices = random.Random(seed)
    names = sorted(weights)
    parts: dict[str, list[TraceRequest]] = {name: [] for name in names}
    for request in trace:
        name = choices.choices(names, [weights[name] for name in names])[0]
        parts[name].append(request)
    return {name: tuple(part) for name, part in parts.items()}


def arrivals(trace: Trace, schedule: Schedule, *, evenness: float = 0.0) -> Iterator[TraceRequest]:
    """The trace's requests, over and over, at the rates of `schedule`; ends when a last rate is 0.

    `evenness` in 0..1 blends the trace's gaps with equal ones: 0 keeps its burstiness, 1 is a metronome.
    """
    gaps = _unit_gaps(trace, evenness)
    index = 0
    level = gaps[0]  # the wanted integral of the rate at the next arrival
    for at_s, rate_per_s, until_s in _segments(schedule):
        while rate_per_s > 0 and at_s + level / rate_per_s < until_s:
            at_s += level / rate_per_s
            yield replace(trace[index % len(trace)], at_s=at_s)
            index += 1
            level = gaps[index % len(trace)]
        if rate_per_s > 0:
            level = max(0.0, level - rate_per_s * (until_s - at_s))  # rounding may leave less than nothing


def _segments(schedule: Schedule) -> Iterator[tuple[float, float, float]]:
    """(from, rate, until) of each piece."""
    ends = [start_s for start_s, _ in schedule[1:]] + [float("inf")]
    for (start_s, rate_per_s), until_s in zip(schedule, ends, strict=True):
        yield start_s, rate_per_s, until_s


def _unit_gaps(trace: Trace, evenness: float) -> list[float]:
    """Time before each request, with a mean of 1; the first one's is the mean."""
    gaps = [after.at_s - before.at_s for before, after in pairwise(trace)]
    mean_s = sum(gaps) / len(gaps) if gaps else 0.0
    units = [1.0, *(gap / mean_s for gap in gaps)] if mean_s > 0 else [1.0] * len(trace)
    return [evenness + (1 - evenness) * unit for unit in units]


def _seconds(timestamp: str) -> float:
    """Unix seconds of `2023-11-16 18:15:46.6805900`; the fraction has more digits than datetime takes."""
    whole, _, fraction = timestamp.partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{fraction or 0}")
