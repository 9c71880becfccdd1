"""From what was sent, answered and reported to criteria that hold or do not. Pure; times are Unix seconds.

Everything is measured at the client: a limit that only the control plane believes in is not a limit.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.report import Criterion

TOLERANCE_RATIO = 0.05
TOLERANCE_REQUESTS = 1.0
OVERLOAD_RATIO = 1.5
GIVEAWAY_RATIO = 0.01
VISIBLE_TO_ACKED_S = 0.8
SKIP_S = 1.0  # the first second of a phase still shows the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A measured phase as it really ran: from the moment its signal was decided upon."""

    phase: str
    start_s: float
    end_s: float
    limited: bool
    follows_slew: bool

    @property
    def measured_from_s(self) -> float:
        return self.start_s + SKIP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLine:
    """The enforced rate of one key over time, as the control plane reported it: a step function."""

    times_s: Sequence[float]
    rates_per_s: Sequence[float]
    burst_s: float

    def at(self, t_s: float) -> float:
        """The rate in force at `t_s` (requests/s); the first one before the line starts."""
        return self.rates_per_s[max(0, bisect.bisect_right(self.times_s, t_s) - 1)]

    def integral(self, start_s: float, end_s: float) -> float:
        """Requests the rate allows between `start_s` and `end_s`."""
        inner = [t for t in self.times_s if start_s < t < end_s]
        edges = [start_s, *inner, end_s]
        return sum(self.at(a) * (b - a) for a, b in itertools.pairwise(edges))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLog:
    """What one key's client saw. Times are when the request was sent, ascending."""

    key: str
    weight_share: float  # of its pool, 0..1
    offered_s: Sequence[float]
    admitted_s: Sequence[float]
    errors: int = 0

    def offered(self, start_s: float, end_s: float) -> int:
        return _count(self.offered_s, start_s, end_s)

    def admitted(self, start_s: float, end_s: float) -> int:
        return _count(self.admitted_s, start_s, end_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """One key in one phase, side by side with what it should have been."""

    phase: str
    key: str
    seconds: float
    offered: int
    admitted: int
    limited: int
    expected_per_s: float
    enforced_per_s: float
    overload_ratio: float
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that the verdict is drawn from."""

    windows: Sequence[Window]
    keys: Sequence[KeyLog]
    lines: Mapping[str, RateLine]
    curve_per_s: Mapping[str, float]  # phase id -> the curve's rate for one pool
    nacks: int
    pushes: int
    visible_to_acked_s: Sequence[float]
    spoofed_requests: int
    spoofed_replaced: int
    sse_added_ms: float | None
    extra: Mapping[str, object] = field(default_factory=dict)


def phase_results(evidence: Evidence) -> list[PhaseResult]:
    """Enforced against expected, for every key in every measured phase."""
    return [_phase_result(evidence, window, key) for window in evidence.windows for key in evidence.keys]


def _phase_result(evidence: Evidence, window: Window, key: KeyLog) -> PhaseResult:
    start_s, end_s = window.measured_from_s, window.end_s
    seconds = end_s - start_s
    offered, admitted = key.offered(start_s, end_s), key.admitted(start_s, end_s)
    if window.follows_slew:
        allowed = evidence.lines[key.key].integral(start_s, end_s)
    else:
        allowed = evidence.curve_per_s[window.phase] * key.weight_share * seconds
    near = abs(admitted - allowed) <= TOLERANCE_RATIO * allowed + TOLERANCE_REQUESTS
    return PhaseResult(
        phase=window.phase,
        key=key.key,
        seconds=seconds,
        offered=offered,
        admitted=admitted,
        limited=offered - admitted,
        expected_per_s=allowed / seconds,
        enforced_per_s=admitted / seconds,
        overload_ratio=offered / allowed if allowed else float("inf"),
        holds=near if window.limited else admitted == offered,
    )


def given_away_ratio(evidence: Evidence, key: KeyLog) -> float:
    """Admitted beyond (integral of the rate + one burst), as a ratio of the integral.

    Taken over each run of limited phases as a whole, so that every change of the limit lies inside.
    """
    line = evidence.lines[key.key]
    worst = 0.0
    for start_s, end_s in _limited_runs(evidence.windows):
        allowed = line.integral(start_s, end_s)
        burst = line.burst_s * max(line.at(start_s), line.at(start_s + SKIP_S))
        excess = key.admitted(start_s, end_s) - allowed - max(1.0, burst)
        worst = max(worst, excess / allowed if allowed else 0.0)
    return worst


def _limited_runs(windows: Sequence[Window]) -> list[tuple[float, float]]:
    runs: list[tuple[float, float]] = []
    previous_limited = False
    for window in windows:
        if window.limited and previous_limited:
            runs[-1] = (runs[-1][0], window.end_s)
        elif window.limited:
            runs.append((window.start_s, window.end_s))
        previous_limited = window.limited
    return runs


def criteria(evidence: Evidence, *, missing: Sequence[str] = ()) -> list[Criterion]:
    """Every promise of the demo, each with its measured figure. `missing`: phases that never came about."""
    results = phase_results(evidence)
    return [
        *_phase_criteria(evidence, results),
        *(_missing(phase) for phase in missing),
        _overload(evidence, results),
        _giveaway(evidence),
        Criterion(
            id="errors",
            must="nothing fails but for its limit",
            measured=sum(key.errors for key in evidence.keys),
            unit="requests",
            holds=not any(key.errors for key in evidence.keys),
        ),
        Criterion(
            id="nacks",
            must="Envoy rejects nothing",
            measured=evidence.nacks,
            unit="NACKs",
            holds=evidence.nacks == 0 and evidence.pushes > 0,
        ),
        _reaction(evidence),
        _colours(evidence),
        _streaming(evidence),
    ]


def _phase_criteria(evidence: Evidence, results: Sequence[PhaseResult]) -> list[Criterion]:
    found = []
    for window in evidence.windows:
        mine = [result for result in results if result.phase == window.phase]
        worst = max(mine, key=_deviation)
        basis = "slewed rate" if window.follows_slew else "the curve"
        must = f"each key within 5 % + 1 of {basis}" if window.limited else "nothing limited below the limit"
        found.append(
            Criterion(
                id=f"rate.{window.phase}",
                must=must,
                measured=_worst_percent(worst) if window.limited else sum(r.limited for r in mine),
                unit="%" if window.limited else "limited",
                holds=all(result.holds for result in mine),
            )
        )
    return found


def _worst_percent(result: PhaseResult) -> float:
    return round(100 * _deviation(result), 2)


def _missing(phase: str) -> Criterion:
    return Criterion(
        id=f"rate.{phase}",
        must="the phase's signal reaches a decision",
        measured=None,
        unit="no decision on it in time",
        holds=False,
    )


def _deviation(result: PhaseResult) -> float:
    return abs(result.enforced_per_s - result.expected_per_s) / max(result.expected_per_s, 1e-9)


def _overload(evidence: Evidence, results: Sequence[PhaseResult]) -> Criterion:
    limited = {window.phase for window in evidence.windows if window.limited}
    least = min(result.overload_ratio for result in results if result.phase in limited)
    return Criterion(
        id="overload",
        must=f"each key offered >= {OVERLOAD_RATIO} x its limit",  # or the rates prove nothing
        measured=round(least, 2),
        unit="times",
        holds=least >= OVERLOAD_RATIO,
    )


def _giveaway(evidence: Evidence) -> Criterion:
    worst = max(given_away_ratio(evidence, key) for key in evidence.keys)
    return Criterion(
        id="given_away",
        must="changes give away <= 1 % over a burst",
        measured=round(100 * worst, 2),
        unit="%",
        holds=worst <= GIVEAWAY_RATIO,
    )


def _reaction(evidence: Evidence) -> Criterion:
    p95 = quantile(evidence.visible_to_acked_s, 0.95)
    return Criterion(
        id="visible_to_acked_p95",
        must=f"metric seen to Envoy's ACK <= {VISIBLE_TO_ACKED_S * 1000:.0f} ms",
        measured=None if p95 is None else round(p95 * 1000, 1),
        unit="ms",
        holds=p95 is not None and p95 <= VISIBLE_TO_ACKED_S,
    )


def _colours(evidence: Evidence) -> Criterion:
    sent, replaced = evidence.spoofed_requests, evidence.spoofed_replaced
    return Criterion(
        id="colours",
        must="spoofed values replaced on 100 %",
        measured=round(100 * replaced / sent, 4) if sent else None,
        unit=f"% of {sent}",  # requests that model servers saw
        holds=sent > 0 and replaced == sent,
    )


def _streaming(evidence: Evidence) -> Criterion:
    added = evidence.sse_added_ms
    return Criterion(
        id="sse_first_chunk_added",
        must="first chunk later by <= 50 ms, median",
        measured=None if added is None else round(added, 2),
        unit="ms",
        holds=added is not None and added <= 50.0,
    )


def quantile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile (nearest rank) of `values`; None when there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _count(times_s: Sequence[float], start_s: float, end_s: float) -> int:
    return bisect.bisect_left(times_s, end_s) - bisect.bisect_left(times_s, start_s)
