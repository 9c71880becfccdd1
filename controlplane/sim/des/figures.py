"""A record -> the numbers people ask for: per tenant and model version, over time; and their own audit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.report import Criterion
from controlplane.sim.des.job import Job, Outcome
from controlplane.sim.des.world import PATIENCE_S, Moment, Platform, Record

TOKEN_GAP_SLO_S = 0.1  # mean time between tokens
LITTLE_RATIO = 0.05
COMPLETE_S = 30.0  # requests that came later than this before the end had no time to complete: not judged
_BINS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_BINS_MAX = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tenant on one model version over a whole run. Counts are requests."""

    tenant: str
    model_version: str
    offered: int
    admitted: int
    limited: int
    would_limit: int
    forbidden: int
    completed: int
    gave_up: int
    failed: int
    in_flight: int
    ttft_p50_s: float | None  # of admitted requests; one that gave up counts with its patience
    ttft_p99_s: float | None
    good: int  # completed within both objectives
    good_tokens_per_s: float  # prompt + 3 * answer of those
    good_ratio: float | None  # of admitted work that ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One model version over time; every list has a number for each of `times_s`, the middle of a bin."""

    model_version: str
    bin_s: float
    times_s: list[float]
    offered_per_s: list[float | None]
    admitted_per_s: list[float | None]
    limited_per_s: list[float | None]
    good_per_s: list[float | None]
    rate_per_s: list[float | None]
    factor: list[float | None]
    gpu_util_ratio: list[float | None]
    kv_usage_ratio: list[float | None]
    waiting: list[float | None]  # per pod
    in_flight: list[float | None]  # in all pods
    pods_up: list[float | None]
    ttft_p50_s: list[float | None]
    ttft_p99_s: list[float | None]
    tenants: Mapping[str, list[float | None]]  # admitted requests/s of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Good work of one model version beside the most that its pods could do: min(offered, capacity)."""

    model_version: str
    ratio: float | None  # over the whole run
    after_event_ratio: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    cv: float | None  # coefficient of variation of the admitted rate in windows of 10 s after the event


def rows(platform: Platform, record: Record, ttft_slo_s: Mapping[str, float]) -> list[Row]:
    """A row for each tenant x model version that has a key, in the order of names."""
    groups: dict[tuple[str, str], list[Job]] = {(key.pool, key.tenant): [] for key in platform.keys}
    for job in record.jobs:
        key = platform.keys[job.key]
        groups[key.pool, key.tenant].append(job)
    return [
        _row(pool, tenant, jobs, ttft_slo_s[pool], platform.seconds)
        for (pool, tenant), jobs in sorted(groups.items())
    ]


def _row(pool: str, tenant: str, jobs: Sequence[Job], slo_s: float, seconds: float) -> Row:
    count = dict.fromkeys(Outcome, 0)
    for job in jobs:
        count[job.outcome] += 1
    good = [job for job in jobs if job.within(slo_s, TOKEN_GAP_SLO_S)]
    good_tokens = sum(job.work_tokens for job in good)
    ended = sum(job.work_tokens for job in jobs if job.admitted and job.outcome is not Outcome.OPEN)
    waits = [wait for job in jobs if (wait := ttft_s(job)) is not None]
    return Row(
        tenant=tenant,
        model_version=pool,
        offered=len(jobs),
        admitted=sum(job.admitted for job in jobs),
        limited=count[Outcome.LIMITED],
        would_limit=sum(job.would_limit for job in jobs),
        forbidden=count[Outcome.FORBIDDEN],
        completed=count[Outcome.DONE],
        gave_up=count[Outcome.GAVE_UP],
        failed=count[Outcome.FAILED],
        in_flight=count[Outcome.OPEN],
        ttft_p50_s=_quantile(waits, 0.5),
        ttft_p99_s=_quantile(waits, 0.99),
        good=len(good),
        good_tokens_per_s=good_tokens / seconds,
        good_ratio=good_tokens / ended if ended else None,
    )


def ttft_s(job: Job) -> float | None:
    """Time to the first token, or the patience it exhausted; None for what was refused, lost or is open."""
    if job.first_s >= 0:
        return job.first_s - job.arrived_s
    return PATIENCE_S if job.outcome is Outcome.GAVE_UP else None


def lines(platform: Platform, record: Record, ttft_slo_s: Mapping[str, float]) -> list[Line]:
    """A line for each model version, at most 120 bins."""
    jobs: dict[str, list[Job]] = {pool: [] for pool in platform.pods}
    for job in record.jobs:
        jobs[platform.keys[job.key].pool].append(job)
    return [
        _line(platform, pool, jobs[pool], record.moments[pool], ttft_slo_s[pool]) for pool in platform.pods
    ]


def _line(
    platform: Platform, pool: str, jobs: Sequence[Job], moments: Sequence[Moment], slo_s: float
) -> Line:
    bin_s = next((size for size in _BINS if platform.seconds / size <= _BINS_MAX), _BINS[-1])
    bins = max(1, math.ceil(platform.seconds / bin_s))
    spans = [min(bin_s, platform.seconds - n * bin_s) for n in range(bins)]

    def rate(chosen: Sequence[Job]) -> list[float | None]:
        counts = np.bincount([int(job.arrived_s // bin_s) for job in chosen], minlength=bins)[:bins]
        return [float(count) / span for count, span in zip(counts, spans, strict=True)]

    waits: list[list[float]] = [[] for _ in range(bins)]
    for job in jobs:
        wait = ttft_s(job)
        if wait is not None:
            waits[min(bins - 1, int(job.arrived_s // bin_s))].append(wait)
    seen: list[list[Moment]] = [[] for _ in range(bins)]
    for moment in moments:
        seen[min(bins - 1, int((moment.at_s - 1e-6) // bin_s))].append(moment)

    def mean(name: str) -> list[float | None]:
        return [_mean([getattr(moment, name) for moment in group]) for group in seen]

    admitted = [job for job in jobs if job.admitted]
    tenants = sorted({key.tenant for key in platform.keys if key.pool == pool})
    return Line(
        model_version=pool,
        bin_s=bin_s,
        times_s=[n * bin_s + span / 2 for n, span in enumerate(spans)],
        offered_per_s=rate(jobs),
        admitted_per_s=rate(admitted),
        limited_per_s=rate([job for job in jobs if job.outcome is Outcome.LIMITED]),
        good_per_s=[
            value if (number + 1) * bin_s <= platform.seconds - COMPLETE_S else None
            for number, value in enumerate(rate([j for j in jobs if j.within(slo_s, TOKEN_GAP_SLO_S)]))
        ],
        rate_per_s=mean("rate_per_s"),
        factor=mean("factor"),
        gpu_util_ratio=mean("gpu_util_ratio"),
        kv_usage_ratio=mean("kv_usage_ratio"),
        waiting=mean("waiting"),
        in_flight=mean("in_flight"),
        pods_up=mean("pods_up"),
        ttft_p50_s=[_quantile(group, 0.5) for group in waits],
        ttft_p99_s=[_quantile(group, 0.99) for group in waits],
        tenants={
            name: rate([job for job in admitted if platform.keys[job.key].tenant == name]) for name in tenants
        },
    )


def served(
    platform: Platform,
    record: Record,
    ttft_slo_s: Mapping[str, float],
    pod_capacity_per_s: float,
) -> list[Served]:
    """Good work by the time of its arrival, beside min(offered, capacity of the pods that are up)."""
    mean_work = float(np.mean([job.work_tokens for job in record.jobs])) if record.jobs else 0.0
    found = []
    for pool, moments in record.moments.items():
        jobs = [job for job in record.jobs if platform.keys[job.key].pool == pool]
        waits = [wait for job in jobs if (wait := ttft_s(job)) is not None]
        bins = max(1, math.ceil(platform.seconds))
        offered, good, admitted = np.zeros(bins), np.zeros(bins), np.zeros(bins)
        for job in jobs:
            at = min(bins - 1, int(job.arrived_s))
            offered[at] += job.work_tokens
            good[at] += job.work_tokens if job.within(ttft_slo_s[pool], TOKEN_GAP_SLO_S) else 0
            admitted[at] += job.admitted
        capacity = np.full(bins, mean_work * pod_capacity_per_s * platform.pods[pool])
        for moment in moments:
            capacity[min(bins - 1, int(moment.at_s - 1e-6))] = mean_work * pod_capacity_per_s * moment.pods_up
        end = max(1, bins - int(COMPLETE_S))
        possible = np.minimum(_smooth(offered, 10), capacity)  # a queue evens out a peak of a few seconds
        event = int(platform.scenario.event_s or 0)
        after = slice(min(event, end - 1), end)
        found.append(
            Served(
                model_version=pool,
                ratio=_ratio(good[:end].sum(), possible[:end].sum()),
                after_event_ratio=_ratio(good[after].sum(), possible[after].sum()),
                ttft_p50_s=_quantile(waits, 0.5),
                ttft_p99_s=_quantile(waits, 0.99),
                cv=_cv(admitted[after]),
            )
        )
    return found


def _smooth(
    values: np.ndarray[tuple[int], np.dtype[np.float64]], size: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Means of blocks of `size`, each value replaced by its block's."""
    smoothed = values.copy()
    for start in range(0, len(values), size):
        smoothed[start : start + size] = values[start : start + size].mean()
    return smoothed


def _cv(per_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    blocks = per_s[: len(per_s) // 10 * 10].reshape(-1, 10).sum(axis=1)
    return float(blocks.std() / blocks.mean()) if len(blocks) > 1 and blocks.mean() > 0 else None


def criteria(platform: Platform, record: Record, offered: int) -> tuple[Criterion, ...]:
    """What must hold of any run, whatever was decided in it."""
    open_jobs = sum(job.outcome is Outcome.OPEN for job in record.jobs)
    ended = sum(job.outcome is not Outcome.OPEN and job.end_s >= job.arrived_s for job in record.jobs)
    return (
        Criterion.equal("conservation.offered", offered, ended + open_jobs, "requests"),
        Criterion.equal("conservation.in_flight", record.left_in_pods, open_jobs, "requests"),
        Criterion.at_most("littles_law", LITTLE_RATIO, littles_law_error(platform, record), "ratio"),
        Criterion.at_most(
            "bucket_overdrawn", 1.0 + 1e-6, record.overdrawn_ratio, "of its burst, beyond its fill"
        ),
    )


def littles_law_error(platform: Platform, record: Record) -> float:
    """Largest |L - lambda W| / L over pools: what pods held on average, against what requests experienced.

    A pool that held less than one request on average counts against one.
    """
    worst = 0.0
    for pool, held in record.held.items():
        stays_s = sum(
            (job.end_s if job.end_s >= 0 else platform.seconds) - job.arrived_s
            for job in record.jobs
            if job.admitted and platform.keys[job.key].pool == pool
        )
        worst = max(worst, abs(held - stays_s / platform.seconds) / max(1.0, held))
    return worst


def _quantile(values: Sequence[float], q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None
