"""Each gateway's statistics -> what the model servers of every pool answered, as totals. Pure.

Good answers are 1xx to 3xx, failures 5xx, both as the cluster counts them: a gateway's own 429 and 503 never
reach a cluster, but for an in-flight cap that overflows, which is taken off. Answers of 4xx are left out. A
gateway's counters may begin anew and gateways come and go, so what is summed is growth from page to page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.model.signal import Calls
from controlplane.signals.measure import Samples
from controlplane.signals.text import Sample
from controlplane.signals.window import Vector, growth

ANSWERS = "envoy_cluster_upstream_rq_xx"
CLASS = "envoy_response_code_class"
OVERFLOWS = ("envoy_cluster_upstream_rq_active_overflow", "envoy_cluster_upstream_rq_pending_overflow")
FIRST_BYTE = "envoy_http_lua_tg_ttfb_ms_bucket"
GAP_S = 15.0  # what happened in a longer silence is not now, and is left out
_GOOD, _FAILED, _OVERFLOW = "good", "failed", "overflow"
_COUNT_MAX = 2.0**53


@dataclass(slots=True)
class Pages:
    """The counters of one gateway at its last page, by Pool.id."""

    time_s: float | None = None
    answers: Mapping[str, Vector] = field(default_factory=dict)
    first_bytes: Mapping[str, Vector] = field(default_factory=dict)

    def not_after(self, now_s: float) -> None:
        """A clock that stepped back."""
        if self.time_s is not None:
            self.time_s = min(self.time_s, now_s)


@dataclass(slots=True)
class _Total:
    good: float = 0.0
    failed: float = 0.0
    first_bytes: dict[float, float] = field(default_factory=dict)  # by upper bound (s), cumulative
    in_a_row: int = 0

    def add(self, good: float, failed: float) -> None:
        """What one page brought. Failures among good answers came in an order that nobody knows."""
        self.good += good
        self.failed += failed
        if good > 0:
            self.in_a_row = 0
        else:
            self.in_a_row += int(failed)


class CallBook:
    """The totals of every pool since the start, over all gateways."""

    def __init__(self) -> None:
        self._totals: dict[str, _Total] = {}

    def add(
        self, pages: Pages, time_s: float, by_pool: Mapping[str, Samples], *, restarted: bool = False
    ) -> None:
        """One page of the gateway that `pages` belongs to. The first one only sets the start."""
        answers = {pool: found for pool, samples in by_pool.items() if (found := _answers(samples))}
        first_bytes = {pool: found for pool, samples in by_pool.items() if (found := _first_bytes(samples))}
        before_s, old = pages.time_s, pages
        if before_s is not None and 0 < time_s - before_s <= GAP_S:
            for pool, now in answers.items():
                grown = growth({} if restarted else old.answers.get(pool, {}), now)
                overflow = grown.get(_OVERFLOW, 0.0)
                failed = max(0.0, grown.get(_FAILED, 0.0) - overflow)
                self._of(pool).add(grown.get(_GOOD, 0.0), failed)
            for pool, now in first_bytes.items():
                total = self._of(pool).first_bytes
                for bound, count in growth({} if restarted else old.first_bytes.get(pool, {}), now).items():
                    bound_s = float(bound) / 1000.0
                    total[bound_s] = total.get(bound_s, 0.0) + count
        pages.time_s, pages.answers, pages.first_bytes = time_s, answers, first_bytes

    def calls(self, pools: Iterable[str]) -> dict[str, Calls]:
        """The totals of `pools`; of one that nobody called, nothing happened."""
        return {pool: _calls(self._totals.get(pool, _Total())) for pool in pools}

    def keep(self, pools: Iterable[str]) -> None:
        """Forget all other pools."""
        wanted = set(pools)
        self._totals = {pool: total for pool, total in self._totals.items() if pool in wanted}

    def _of(self, pool: str) -> _Total:
        return self._totals.setdefault(pool, _Total())


def _calls(total: _Total) -> Calls:
    bounds_s = tuple(sorted(total.first_bytes))
    within, highest = [], 0.0
    for bound_s in bounds_s:  # gateways may differ in their bounds: cumulative counts never fall
        highest = max(highest, total.first_bytes[bound_s])
        within.append(highest)
    usable = bool(bounds_s) and bounds_s[-1] == math.inf
    return Calls(
        answered=total.good + total.failed,
        failed=total.failed,
        bounds_s=bounds_s if usable else (),
        within=tuple(within) if usable else (),
        failures_in_a_row=total.in_a_row,
    )


def _answers(samples: Samples) -> Vector:
    found = {_GOOD: 0.0, _FAILED: 0.0, _OVERFLOW: 0.0}
    for sample in samples.get(ANSWERS, ()):
        kind = {"1": _GOOD, "2": _GOOD, "3": _GOOD, "5": _FAILED}.get(sample.labels.get(CLASS, ""))
        if kind is not None:
            found[kind] += sample.value
    found[_OVERFLOW] = sum(sample.value for name in OVERFLOWS for sample in samples.get(name, ()))
    return found if samples.get(ANSWERS) and all(map(_is_count, found.values())) else {}


def _first_bytes(samples: Samples) -> Vector:
    found: dict[str, float] = {}
    for sample in samples.get(FIRST_BYTE, ()):
        bound = _bound(sample)
        if bound is not None:
            found[bound] = found.get(bound, 0.0) + sample.value
    return found if all(map(_is_count, found.values())) else {}


def _bound(sample: Sample) -> str | None:
    bound = sample.labels.get("le", "")
    try:
        return None if math.isnan(float(bound)) else bound
    except ValueError:
        return None


def _is_count(value: float) -> bool:
    return 0 <= value <= _COUNT_MAX
