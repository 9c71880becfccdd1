"""The rows of both queries -> readings by pool. Pure.

`plan` turns the first answer into the second question; `readings` turns both answers into readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from controlplane.model.policy import Pool, PrometheusPolicy
from controlplane.model.signal import Reading
from controlplane.signals import gpu, join, promql
from controlplane.signals.catalogue import Candidate, Catalogue, Engine, Kind, Signal
from controlplane.signals.matching import Matched, Matcher, Series, fresh_s, instances, match_gateways
from controlplane.signals.measure import ALL, BAD, MINUS, of_pool, ratio_of
from controlplane.signals.target import Target
from controlplane.signals.text import Sample

SOURCE = "prometheus"

Readings = Mapping[str, Mapping[str, Reading]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One branch of the second query, its candidate, and the time of the samples behind it."""

    branch: promql.Branch
    candidate: Candidate
    engine: str
    sampled_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The second question, and which series of the first answer belong to which pool."""

    engines: Mapping[str, Matched]  # by Pool.id
    gateways: Mapping[str, Matched]
    branches: Sequence[Asked] = ()
    numbers: Mapping[tuple[str, str, str], Sequence[int]] = field(
        default_factory=dict
    )  # of a signal's branches


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything one tick got. `values` are by the number of the branch; one that is missing gave no row."""

    series: Sequence[Series]
    interval_s: float | None
    plan: Plan
    values: Mapping[int, float] = field(default_factory=dict)
    problem: str = ""  # why there are no values at all


def plan(
    series: Sequence[Series],
    interval_s: float | None,
    matcher: Matcher,
    pools: Sequence[Pool],
    catalogue: Catalogue,
    policy: PrometheusPolicy,
) -> Plan:
    """What to ask next: one set of branches for each windowed signal that some series proves to exist."""
    engines, gateways = matcher.match(series), match_gateways(series, catalogue.engine("envoy"), pools)
    span_s = fresh_s(interval_s, policy.lookback_s)
    branches: list[Asked] = []
    for pool in pools:
        for engine, matched in (
            (catalogue.engine(pool.engine), _own(engines[pool.id], catalogue.engine(pool.engine), pool)),
            (catalogue.engine("envoy"), gateways[pool.id]),
        ):
            living = _living(matched, span_s)
            for signal in engine.signals:
                branches += _asked(pool, signal, engine, living, matched.labels, policy)
    numbers: dict[tuple[str, str, str], list[int]] = {}
    for number, each in enumerate(branches):
        numbers.setdefault((each.branch.pool, each.branch.signal, each.engine), []).append(number)
    return Plan(engines=engines, gateways=gateways, branches=branches, numbers=numbers)


def _asked(
    pool: Pool,
    signal: str,
    engine: Engine,
    living: Sequence[Series],
    labels: set[str],
    policy: PrometheusPolicy,
) -> list[Asked]:
    """The branches of the first windowed candidate of `signal` that the living series show."""
    for candidate in engine.signals[signal]:
        proofs = [each for each in living if each.name in promql.proof(candidate)]
        if candidate.kind is Kind.GAUGE or not proofs:
            continue
        chosen = promql.selector(
            [each.sample.labels for each in proofs], sorted(labels), matchers=policy.matchers
        )
        made = promql.branches(
            pool.id,
            signal,
            candidate,
            chosen,
            window_s=policy.window_s,
            recorded=policy.recording_rules,
        )
        sampled_at_s = min(each.time_s for each in proofs)
        return [
            Asked(branch=each, candidate=candidate, engine=engine.name, sampled_at_s=sampled_at_s)
            for each in made
        ]
    return []


def readings(
    answer: Answer, pools: Sequence[Pool], catalogue: Catalogue, policy: PrometheusPolicy, *, now_s: float
) -> tuple[Readings, Mapping[gpu.Layout, int]]:
    """The readings of every pool, and the label layouts of the GPU metrics."""
    span_s = fresh_s(answer.interval_s, policy.lookback_s)
    rows: dict[str, list[Sample]] = {}
    for each in answer.series:
        rows.setdefault(each.name, []).append(each.sample)
    gpus = gpu.gather([(rows, now_s)], catalogue)
    found: dict[str, Mapping[str, Reading]] = {}
    for pool in pools:
        own = _engine_readings(pool, answer, catalogue, policy, now_s=now_s, span_s=span_s)
        outside = _gateway_readings(pool, answer, catalogue, policy, span_s=span_s)
        cards = gpu.readings(pool, gpus, catalogue, fresh_s=max(span_s, 30.0), source=SOURCE)
        found[pool.id] = merge(merge(own, cards), outside)
    return found, gpus.layouts


def merge(preferred: Mapping[str, Reading], other: Mapping[str, Reading]) -> dict[str, Reading]:
    """`preferred`, completed by `other` where it has nothing or only a reason."""
    merged = dict(preferred)
    for name, reading in other.items():
        mine = merged.get(name)
        if mine is None or (mine.value is None and reading.value is not None):
            merged[name] = reading
    return merged


def _engine_readings(
    pool: Pool, answer: Answer, catalogue: Catalogue, policy: PrometheusPolicy, *, now_s: float, span_s: float
) -> dict[str, Reading]:
    engine = catalogue.engine(pool.engine)
    gauges = replace(engine, signals=_kinds(engine, windowed=False))
    targets = _targets(
        pool, answer.plan.engines[pool.id], gauges, catalogue, now_s=now_s, span_s=span_s, policy=policy
    )
    found = join.readings(targets, gauges, catalogue, fresh_s=span_s, source=SOURCE)
    answered = any(target.answered for target in targets)
    windowed = {
        name: _windowed(pool, name, engine, answer, catalogue.signals[name], policy, answered=answered)
        for name in _kinds(engine, windowed=True)
    }
    return merge(found, windowed)


def _gateway_readings(
    pool: Pool, answer: Answer, catalogue: Catalogue, policy: PrometheusPolicy, *, span_s: float
) -> dict[str, Reading]:
    """What the gateways say of one pool, if Prometheus scrapes them; nothing of it is missed."""
    engine = catalogue.engine("envoy")
    return {
        name: _windowed(pool, name, engine, answer, catalogue.signals[name], policy, answered=False)
        for name in _kinds(engine, windowed=True)
    }


def _kinds(engine: Engine, *, windowed: bool) -> dict[str, tuple[Candidate, ...]]:
    """The engine's signals with only its windowed candidates, or only its gauges."""
    split = {
        name: tuple(each for each in candidates if (each.kind is not Kind.GAUGE) == windowed)
        for name, candidates in engine.signals.items()
    }
    return {name: candidates for name, candidates in split.items() if candidates}


def _targets(
    pool: Pool,
    matched: Matched,
    engine: Engine,
    catalogue: Catalogue,
    *,
    now_s: float,
    span_s: float,
    policy: PrometheusPolicy,
) -> list[Target]:
    """A target for each scraped process, and one for each endpoint that Prometheus knows nothing of."""
    targets: list[Target] = []
    for name, series in matched.targets.items():
        samples: dict[str, list[Sample]] = {}
        for each in series:
            samples.setdefault(each.name, []).append(each.sample)
        time_s = max(each.time_s for each in series)
        own, why = of_pool(samples, engine, pool)
        target = Target(name=name)
        target.observe(own, time_s, engine, catalogue, window_s=policy.window_s, problem=why)
        if now_s - time_s > span_s:
            target.miss(f"last sample {now_s - time_s:.0f} s ago")
        targets.append(target)
    if matched.labels & {"pod", "instance"} or not matched.targets:
        targets += [
            _unknown(names[0], policy) for names in _names(pool) if not set(names) & set(matched.targets)
        ]
    return targets


def _names(pool: Pool) -> list[tuple[str, ...]]:
    """What each endpoint of `pool` may be called as a target."""
    return [
        (*((f"{e.namespace or ''}/{e.pod}".lstrip("/"), e.pod) if e.pod else ()), *instances(e))
        for e in pool.endpoints
    ]


def _unknown(name: str, policy: PrometheusPolicy) -> Target:
    target = Target(name=name)
    target.miss(f"no sample in the last {policy.lookback_s:.0f} s matches it")
    return target


def _own(matched: Matched, engine: Engine, pool: Pool) -> Matched:
    """The series of `matched` that are about this pool's model: a process may serve several."""
    kept = Matched(labels=matched.labels)
    for name, series in matched.targets.items():
        samples: dict[str, list[Sample]] = {}
        for each in series:
            samples.setdefault(each.name, []).append(each.sample)
        own, _ = of_pool(samples, engine, pool)
        kept.targets[name] = [Series(name=n, sample=sample) for n, group in own.items() for sample in group]
    return kept


def _living(matched: Matched, span_s: float) -> list[Series]:
    """The series of `matched` that are about as new as the newest one: dead pods leave at once."""
    series = [each for group in matched.targets.values() for each in group]
    return join.fresh(series, lambda each: each.time_s, span_s)


def _windowed(
    pool: Pool,
    name: str,
    engine: Engine,
    answer: Answer,
    signal: Signal,
    policy: PrometheusPolicy,
    *,
    answered: bool,
) -> Reading:
    """A rate, ratio or quantile out of the branches that were asked for it."""
    parts: dict[str, list[float]] = {}
    asked: Asked | None = None
    for number in answer.plan.numbers.get((pool.id, name, engine.name), ()):
        asked = answer.plan.branches[number]
        if number in answer.values:
            parts.setdefault(asked.branch.part, []).append(answer.values[number])
    candidates = engine.signals[name]
    if asked is None:
        tried = ", ".join(each.metric for each in candidates)
        why = f"metric {candidates[0].metric} not found in Prometheus for {pool.id}; tried {tried}"
        return Reading(source=SOURCE, absent=why, not_exposed=answered and not signal.optional)
    source = f"{SOURCE} {asked.candidate.metric}"
    if answer.problem:
        return Reading(source=source, absent=answer.problem)
    value, count = _value(parts, policy.window_s)
    if value is None:
        return Reading(source=source, absent=f"no requests in the last {policy.window_s:.0f} s")
    admitted = signal.admit(value * asked.candidate.scale)
    if admitted is None:
        return Reading(
            source=source, absent=f"{asked.candidate.metric} gives {value:g}, outside {signal.limits}"
        )
    return Reading(value=admitted, sampled_at_s=asked.sampled_at_s, count=round(count), source=source)


def _value(parts: Mapping[str, Sequence[float]], window_s: float) -> tuple[float | None, float]:
    """(value, events behind it); None without a row, with NaN (0/0) or with nothing counted."""
    if ALL in parts:
        share = ratio_of({part: sum(parts.get(part, ())) * window_s for part in (BAD, ALL, MINUS)})
        return (None, 0.0) if share is None else share
    if "rate" in parts:
        rate = parts["rate"][0]
        return (rate, rate * window_s) if math.isfinite(rate) else (None, 0.0)
    value = parts.get("p95", [math.nan])[0]
    if not math.isfinite(value):
        return None, 0.0
    count = parts.get("count", [math.nan])[0] * window_s
    return value, count if math.isfinite(count) else 0.0
