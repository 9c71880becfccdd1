"""Runs -> one line each for a model version, to compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.sim.des.study import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run on one model version, all tenants together. Counts are requests."""

    run: str
    model_version: str
    offered: int
    admitted: int
    limited: int
    gave_up: int
    failed: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    served_ratio: float | None  # good work / possible
    after_event_ratio: float | None
    cv: float | None


def summaries(runs: Sequence[Run], model_version: str) -> list[Summary]:
    """In the order of the runs."""
    return [_summary(run, model_version) for run in runs]


def _summary(run: Run, model_version: str) -> Summary:
    rows = [row for row in run.rows if row.model_version == model_version]
    served = next(each for each in run.served if each.model_version == model_version)
    return Summary(
        run=run.name,
        model_version=model_version,
        offered=sum(row.offered for row in rows),
        admitted=sum(row.admitted for row in rows),
        limited=sum(row.limited for row in rows),
        gave_up=sum(row.gave_up for row in rows),
        failed=sum(row.failed for row in rows),
        ttft_p50_s=served.ttft_p50_s,
        ttft_p99_s=served.ttft_p99_s,
        served_ratio=served.ratio,
        after_event_ratio=served.after_event_ratio,
        cv=served.cv,
    )
