"""M11: how slow is slow. (memory, measurements of 30 s) -> (memory, threshold). Pure; time is an argument.

    base      = p95 * (1 + 0.5 * failure_ratio)
    drift     = 0.1 * |p95 - mean p95 of 15 minutes|
    threshold = base + drift                                          (seconds, every 30 s)

To the letter (`guards: off`) the bar rises with what it should catch: with latency, with failures, and
after a slow ramp for ever. Guarded, it stays within

    [max(1.3 * reference, reference + 3 MAD), SLO]        (the SLO wins where they cross)

where the reference is the median p95 of the quiet samples of 24 hours. A sample above the lower bound is not
quiet: overload must not become the measure of itself. When none was quiet for a day, the measure starts
anew. Before there is a reference the threshold is the SLO. Without a promised SLO no call is slow: what
nobody promised is no reason to refuse everybody.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

from controlplane.model.policy import BreakerPolicy, Strategy

UPDATE_S = 30.0
AVERAGE_SAMPLES = 30  # 15 minutes
QUIET_SAMPLES_MAX = 2880  # 24 hours
QUIET_FORGOTTEN_S = 86_400.0
QUIET_SAMPLES_MIN = 20  # ten minutes, before there is a reference
QUIET_CALLS_MIN = 100
CALLS_MIN = 20
FREEZE_RATIO = 0.02  # failures above this freeze the p95
FAILURE_TERM_MAX = 0.05
SLEW_RATIO = 0.10  # per update
STATIC_AFTER_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the last five minutes showed. `p95_s` is None without enough calls."""

    p95_s: float | None
    failure_ratio: float = 0.0
    timed: float = 0.0  # calls behind the p95
    closed: bool = True  # the breaker is
    slow: bool = False  # something speaks for slowness now


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """What is carried from update to update. `value_s` is None while there is nothing to compare with."""

    value_s: float | None = None
    p95_s: float | None = None  # the last one that entered the formula
    series_s: tuple[float, ...] = ()  # p95 of the last 15 minutes
    quiet_s: tuple[float, ...] = ()  # p95 of quiet times, 24 hours
    waited_s: float = UPDATE_S  # since the last update
    missing_s: float = 0.0  # since there was a p95
    unquiet_s: float = 0.0  # since the last quiet sample
    reference_s: float | None = None
    floor_s: float | None = None


def literal_s(p95_s: float, failure_ratio: float, average_s: float) -> float:
    """The formula to the letter, seconds."""
    return p95_s * (1.0 + 0.5 * failure_ratio) + 0.1 * abs(p95_s - average_s)


def follow(before: Threshold, measured: Measured, policy: BreakerPolicy, dt_s: float) -> Threshold:
    """The threshold `dt_s` seconds later; it moves once in UPDATE_S."""
    waited_s = before.waited_s + dt_s
    if waited_s < UPDATE_S:
        return replace(before, waited_s=waited_s, missing_s=before.missing_s + dt_s)
    after = (
        _without_p95(before, policy, dt_s) if measured.p95_s is None else _updated(before, measured, policy)
    )
    return replace(after, waited_s=0.0)


def _without_p95(before: Threshold, policy: BreakerPolicy, dt_s: float) -> Threshold:
    """Missing data freezes the threshold, and gives way to the static one in the end."""
    missing_s = before.missing_s + dt_s
    if before.value_s is None or missing_s >= STATIC_AFTER_S:
        return replace(before, value_s=policy.slo_s, missing_s=missing_s)
    return replace(before, missing_s=missing_s)


def _updated(before: Threshold, measured: Measured, policy: BreakerPolicy) -> Threshold:
    assert measured.p95_s is not None
    seen = replace(before, missing_s=0.0)
    if policy.guards and not _is_sound(measured):
        if before.p95_s is None:
            return replace(seen, value_s=_first(before.value_s, policy.slo_s))
        p95_s = before.p95_s
    else:
        p95_s = measured.p95_s
        seen = replace(seen, p95_s=p95_s, series_s=(*before.series_s, p95_s)[-AVERAGE_SAMPLES:])
        seen = _with_quiet(seen, p95_s) if _is_quiet(seen, measured) else _unquiet(seen)
    average_s = math.fsum(seen.series_s) / len(seen.series_s)
    failure_ratio = min(measured.failure_ratio, FAILURE_TERM_MAX) if policy.guards else measured.failure_ratio
    wanted_s = _wanted_s(policy, p95_s, failure_ratio, average_s)
    if not policy.guards:
        return replace(seen, value_s=wanted_s)
    return replace(seen, value_s=_guarded_s(before, seen, wanted_s, policy.slo_s))


def _wanted_s(policy: BreakerPolicy, p95_s: float, failure_ratio: float, average_s: float) -> float | None:
    if policy.strategy is Strategy.STATIC:
        return policy.slo_s
    if policy.strategy is Strategy.MOVING_AVERAGE:
        return average_s * (1.0 + 0.5 * failure_ratio)
    return literal_s(p95_s, failure_ratio, average_s)


def _guarded_s(
    before: Threshold, seen: Threshold, wanted_s: float | None, slo_s: float | None
) -> float | None:
    """Clamped, then slewed. What stood in for want of a reference is nothing to start a slew from."""
    if wanted_s is None or slo_s is None or seen.floor_s is None:
        return slo_s
    clamped_s = min(max(wanted_s, seen.floor_s), slo_s)
    if before.value_s is None or before.floor_s is None:
        return clamped_s
    low_s, high_s = before.value_s * (1.0 - SLEW_RATIO), before.value_s * (1.0 + SLEW_RATIO)
    return min(max(clamped_s, low_s), high_s, slo_s)


def _is_sound(measured: Measured) -> bool:
    """Whether this p95 may enter the formula: failures are fast, and a broken pool is no measure."""
    return measured.closed and measured.failure_ratio <= FREEZE_RATIO


def _is_quiet(seen: Threshold, measured: Measured) -> bool:
    return (
        measured.p95_s is not None
        and (seen.floor_s is None or measured.p95_s <= seen.floor_s)
        and measured.closed
        and measured.failure_ratio < FREEZE_RATIO
        and measured.timed >= QUIET_CALLS_MIN
        and not measured.slow
    )


def _with_quiet(seen: Threshold, p95_s: float) -> Threshold:
    quiet_s = (*seen.quiet_s, p95_s)[-QUIET_SAMPLES_MAX:]
    seen = replace(seen, unquiet_s=0.0)
    if len(quiet_s) < QUIET_SAMPLES_MIN:
        return replace(seen, quiet_s=quiet_s)
    reference_s = statistics.median(quiet_s)
    deviation_s = statistics.median(abs(each - reference_s) for each in quiet_s)
    floor_s = max(1.3 * reference_s, reference_s + 3.0 * deviation_s)
    return replace(seen, quiet_s=quiet_s, reference_s=reference_s, floor_s=floor_s)


def _unquiet(seen: Threshold) -> Threshold:
    unquiet_s = seen.unquiet_s + UPDATE_S
    if unquiet_s < QUIET_FORGOTTEN_S:
        return replace(seen, unquiet_s=unquiet_s)
    return replace(seen, unquiet_s=0.0, quiet_s=(), reference_s=None, floor_s=None)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
