"""The samples of one page and one candidate metric -> a gauge's value, or the vector of counters behind a
rate.

Values are converted to the signal's unit and range-checked one by one, before anything is averaged: one
blank GPU (9.2e18) must not move the mean of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.model.policy import Pool
from controlplane.signals.catalogue import Candidate, Engine, Kind, Signal
from controlplane.signals.text import Sample
from controlplane.signals.window import Vector

Samples = Mapping[str, Sequence[Sample]]

COUNT_MAX = 2.0**63  # no process counts further; the sums of such counts stay finite
EVENTS = "events"
BAD, ALL, MINUS = "bad", "all", "minus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One value of one target. `time_s` is None when the page gave no timestamp; `count` series are behind
    it.
    """

    value: float | None
    time_s: float | None = None
    count: int = 0
    problem: str = ""


def join(how: str, values: Sequence[float]) -> float:
    """`values` (at least one) joined by `mean`, `sum` or `max`."""
    if how == "max":
        return max(values)
    whole = math.fsum(values)
    return whole if how == "sum" else whole / len(values)


def exposed(candidates: Iterable[Candidate], samples: Samples) -> Candidate | None:
    """The first candidate that the page exposes."""
    return next((each for each in candidates if _series(each, samples) or _whole(each, samples)), None)


def gauge(candidate: Candidate, signal: Signal, samples: Samples, replica_labels: Sequence[str]) -> Gauge:
    """The value of a gauge on one page; None with the problem when no series has a usable value."""
    good: dict[frozenset[tuple[str, str]], float] = {}
    times: list[float] = []
    problem = ""
    for sample in _series(candidate, samples):
        value = signal.admit(sample.value * candidate.scale)
        if value is None:
            problem = f"{candidate.metric} = {sample.value:g} is outside {signal.limits}"
            continue
        rank = frozenset(item for item in sample.labels.items() if item[0] not in replica_labels)
        good[rank] = max(value, good.get(rank, value))
        if sample.time_s is not None:
            times.append(sample.time_s)
    if not good or (problem and candidate.within == "sum"):
        return Gauge(value=None, problem=problem)
    value = signal.admit(join(candidate.within, list(good.values())))
    return Gauge(value=value, time_s=min(times, default=None), count=len(good), problem=problem)


def vector(candidate: Candidate, samples: Samples) -> Vector | None:
    """The counters behind a rate, a ratio or a quantile; None when one of them is no possible count."""
    if candidate.kind is Kind.HISTOGRAM:
        buckets: dict[str, float] = {}
        for sample in _series(candidate, samples):
            bound = sample.labels.get("le", "")
            buckets[bound] = buckets.get(bound, 0.0) + sample.value
        return _possible({bound: count for bound, count in buckets.items() if _is_number(bound)})
    events = _sum(_series(candidate, samples))
    if candidate.kind is Kind.COUNTER:
        return _possible({EVENTS: events})
    minus = _sum([sample for name in candidate.minus for sample in samples.get(name, ())])
    whole = _sum(_whole(candidate, samples))
    return _possible({BAD: events, ALL: whole, MINUS: minus})


def ratio_of(grown: Vector) -> tuple[float, float] | None:
    """(share of bad, number of all) of a ratio's growth; None when nothing happened."""
    minus = grown.get(MINUS, 0.0)
    whole = grown.get(ALL, 0.0) - minus
    if not 0 < whole < math.inf:
        return None
    return min(max(grown.get(BAD, 0.0) - minus, 0.0) / whole, 1.0), whole


def of_pool(samples: Samples, engine: Engine, pool: Pool) -> tuple[Samples, str]:
    """The samples that belong to `pool`, or none and the reason.

    A series without a model label belongs to every model of its server. A configured `model_label` must
    match; an assumed one (the pool's own model name) may differ when the server shows one model only.
    Versions likewise.
    """
    wanted = pool.model_label or pool.model
    kept, problem = _narrow(samples, engine.model_labels, wanted, strict=pool.model_label is not None)
    if problem:
        return {}, f"{problem}; set model_label"
    return _narrow(kept, engine.version_labels, pool.version, strict=False)


def _narrow(samples: Samples, labels: Sequence[str], wanted: str, *, strict: bool) -> tuple[Samples, str]:
    """The samples whose label out of `labels` is `wanted` or missing."""
    if not labels:
        return samples, ""
    values = {
        value for series in samples.values() for each in series if (value := _first(each.labels, labels))
    }
    if wanted not in values:
        if len(values) <= 1 and not (strict and values):
            return samples, ""
        return {}, f"{labels[0]} is {', '.join(sorted(values)[:5])}, never {wanted}"
    if len(values) == 1:
        return samples, ""
    accepted = ("", wanted)
    kept = {
        name: tuple(each for each in series if _first(each.labels, labels) in accepted)
        for name, series in samples.items()
    }
    return {name: series for name, series in kept.items() if series}, ""


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    """The first non-empty label out of `names`."""
    return next((value for name in names if (value := labels.get(name))), "")


def _series(candidate: Candidate, samples: Samples) -> Sequence[Sample]:
    found = samples.get(candidate.sample_names[0], ())
    if not candidate.where:
        return found
    wanted = candidate.where.items()
    return [each for each in found if all(each.labels.get(label) == value for label, value in wanted)]


def _whole(candidate: Candidate, samples: Samples) -> Sequence[Sample]:
    return [sample for name in candidate.of for sample in samples.get(name, ())]


def _possible(counts: Vector) -> Vector | None:
    """`counts` when every one is a number that a process can have counted to."""
    return counts if counts and all(0 <= count <= COUNT_MAX for count in counts.values()) else None


def _sum(samples: Iterable[Sample]) -> float:
    """Not `math.fsum`, which raises on infinities and on overflow: a page may show anything."""
    return sum(sample.value for sample in samples)


def _is_number(bound: str) -> bool:
    try:
        return not math.isnan(float(bound))
    except ValueError:
        return False
