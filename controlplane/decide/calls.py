"""Totals of calls, tick after tick -> what happened within the last seconds.

A window begins at the last sample that is at least as old as it is long, and never before a given time: a
breaker that closed must not be judged by what made it open.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.model.signal import Calls

KEPT_S = 300.0
THIN_CALLS = 20  # a window with fewer calls is made longer until it has so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The calls of one window. `timed` of them were good and have a time to first byte."""

    answered: float = 0.0
    failed: float = 0.0
    bounds_s: tuple[float, ...] = ()
    within: tuple[float, ...] = ()

    @property
    def timed(self) -> float:
        """Calls whose time to first byte is known."""
        return self.within[-1] if self.within else 0.0

    @property
    def failure_ratio(self) -> float | None:
        """Failures in 0..1; None without calls."""
        return self.failed / self.answered if self.answered > 0 else None

    def slow(self, threshold_s: float | None) -> float:
        """Calls that were surely slower than the threshold.

        No interpolation: a threshold between two bounds of the histogram counts as the upper one, so that a
        call of which nobody knows is never called slow.
        """
        if threshold_s is None:
            return 0.0
        for bound_s, count in zip(self.bounds_s, self.within, strict=True):
            if bound_s >= threshold_s:
                return max(0.0, self.timed - count)
        return 0.0

    def p95_s(self) -> float | None:
        """The 95th percentile of the time to first byte, as PromQL's histogram_quantile computes it.

        None without calls. Above the largest finite bound it is that bound.
        """
        if not self.timed > 0 or len(self.bounds_s) < 2:
            return None
        rank, lower_s, below = 0.95 * self.timed, 0.0, 0.0
        for bound_s, count in zip(self.bounds_s[:-1], self.within[:-1], strict=True):
            if count >= rank:
                return lower_s + (bound_s - lower_s) * (rank - below) / (count - below)
            lower_s, below = bound_s, max(below, count)
        return lower_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Totals at a time, in seconds of judgement's own clock, which never goes back."""

    at_s: float
    calls: Calls


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The samples of one pool, oldest first; a few minutes of them."""

    samples: tuple[Sample, ...] = ()

    def with_calls(self, at_s: float, calls: Calls) -> History:
        """One sample more. Totals that fell, or other bounds, are those of a new start."""
        last = self.samples[-1].calls if self.samples else None
        sample = Sample(at_s=at_s, calls=calls)
        if last is not None and not _continues(last, calls):
            return History(samples=(sample,))
        oldest = max(0, bisect_right(self.samples, at_s - KEPT_S, key=_at_s) - 1)
        return History(samples=(*self.samples[oldest:], sample))

    def window(self, length_s: float, *, since_s: float = -math.inf) -> Growth:
        """What happened in the last `length_s` seconds, but not before `since_s`."""
        if len(self.samples) < 2:
            return Growth()
        begin_s = max(self.samples[-1].at_s - length_s, since_s)
        return _growth(_base(self.samples, begin_s).calls, self.samples[-1].calls)

    def recent(self, length_s: float, *, since_s: float = -math.inf) -> Growth:
        """The same, made longer until it has THIN_CALLS calls or reaches back KEPT_S."""
        found = self.window(length_s, since_s=since_s)
        if found.answered >= THIN_CALLS or len(self.samples) < 2:
            return found
        last = self.samples[-1]
        begin_s = max(last.at_s - KEPT_S, since_s)
        base = _base(self.samples, begin_s)
        enough = bisect_right(self.samples, last.calls.answered - THIN_CALLS, key=_answered) - 1
        if enough >= 0 and self.samples[enough].at_s > base.at_s:
            base = self.samples[enough]
        return _growth(base.calls, last.calls)


def _base(samples: Sequence[Sample], begin_s: float) -> Sample:
    """The youngest sample at or before `begin_s`, else the oldest."""
    return samples[max(0, bisect_right(samples, begin_s, key=_at_s) - 1)]


def _at_s(sample: Sample) -> float:
    return sample.at_s


def _answered(sample: Sample) -> float:
    return sample.calls.answered


def _continues(before: Calls, now: Calls) -> bool:
    grew = now.answered >= before.answered and now.failed >= before.failed
    if not before.bounds_s or not grew:
        return grew
    return before.bounds_s == now.bounds_s and all(
        late >= early for early, late in zip(before.within, now.within, strict=True)
    )


def _growth(before: Calls, now: Calls) -> Growth:
    earlier = before.within or (0.0,) * len(now.within)
    return Growth(
        answered=now.answered - before.answered,
        failed=now.failed - before.failed,
        bounds_s=now.bounds_s,
        within=tuple(late - early for early, late in zip(earlier, now.within, strict=True)),
    )
