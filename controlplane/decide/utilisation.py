"""Readings of a pool -> the utilisation in percent that enters the curve, with its age.

`gpu_util` is the counter as exported. `effective` is what a continuous-batching server really runs short of:

    u_eff = 100 * max(kv_cache_usage / 0.92, waiting / target_waiting, sm_active)

Memory occupancy enters as KV-cache use: framebuffer use is constant once the cache is allocated. Parts
nobody ever exported are left out. A part that was there and vanished keeps its last value, since leaving it
out would loosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.model.policy import RatePolicy, SignalChoice
from controlplane.model.signal import Load, Reading

KV_FULL_RATIO = 0.92
FAILURES_OF_MIN = 20  # a ratio of fewer requests says nothing
FUTURE_TOLERANCE_S = 5.0  # a sample later than this after now is from another clock

# Above these a value is a blank or another unit, not a load (DCGM's blank is 9.2e18).
_PLAUSIBLE_MAX: Mapping[str, float] = {
    "gpu_util_percent": 200.0,
    "sm_active_ratio": 1.5,
    "kv_cache_usage_ratio": 1.5,
    "waiting_requests": 1e6,
    "ttft_p95_s": 1e5,
    "failure_ratio": 1.0,
}
LITERAL: tuple[str, ...] = ("gpu_util_percent",)
EFFECTIVE: tuple[str, ...] = ("kv_cache_usage_ratio", "waiting_requests", "sm_active_ratio")
WORDS: Mapping[str, str] = {
    "gpu_util_percent": "GPU utilisation",
    "kv_cache_usage_ratio": "KV-cache use",
    "waiting_requests": "waiting requests",
    "sm_active_ratio": "SM activity",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The last usable value of one signal, and the seconds since it was taken."""

    value: float
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """`percent` in 0..100, None when no part was ever seen. Fresh while any part is within its age limit."""

    percent: float | None
    age_s: float | None
    fresh: bool
    leading: str = ""  # the part that decided
    lost: tuple[str, ...] = ()  # parts that keep their last value for want of a new one


def usable(name: str, reading: Reading, now_s: float) -> Sample | None:
    """The sample in `reading`; None for what cannot be, and for a ratio of too few requests."""
    value, sampled_at_s, age_s = reading.value, reading.sampled_at_s, reading.age_s(now_s)
    if value is None or sampled_at_s is None or age_s is None:
        return None
    if not (math.isfinite(value) and 0.0 <= value <= _PLAUSIBLE_MAX.get(name, math.inf)):
        return None
    if name == "failure_ratio" and reading.count < FAILURES_OF_MIN:
        return None
    if not math.isfinite(sampled_at_s) or sampled_at_s > now_s + FUTURE_TOLERANCE_S:
        return None
    return Sample(value=value, age_s=age_s)


def remember(
    known: Mapping[str, Sample], load: Load, names: Iterable[str], now_s: float, dt_s: float
) -> dict[str, Sample]:
    """The youngest sample of each signal, `dt_s` after those in `known`."""
    samples: dict[str, Sample] = {}
    for name in names:
        old = known.get(name)
        aged = None if old is None else Sample(value=old.value, age_s=old.age_s + dt_s)
        new = usable(name, load.get(name), now_s)
        youngest = new if aged is None or (new is not None and new.age_s <= aged.age_s) else aged
        if youngest is not None:
            samples[name] = youngest
    return samples


def utilisation(samples: Mapping[str, Sample], policy: RatePolicy) -> Utilisation:
    """What `policy.signal` makes of `samples`."""
    names = LITERAL if policy.signal is SignalChoice.GPU_UTIL else EFFECTIVE
    parts = {name: _percent(name, samples[name].value, policy) for name in names if name in samples}
    if not parts:
        return Utilisation(percent=None, age_s=None, fresh=False)
    age_s = min(samples[name].age_s for name in parts)
    leading = max(parts, key=lambda name: parts[name])
    return Utilisation(
        percent=parts[leading],
        age_s=age_s,
        fresh=age_s <= policy.max_age_s,
        leading=leading,
        lost=tuple(name for name in parts if samples[name].age_s > policy.max_age_s),
    )


def _percent(name: str, value: float, policy: RatePolicy) -> float:
    """One part on the common scale, clamped: a long queue must not wind the filter up."""
    match name:
        case "kv_cache_usage_ratio":
            percent = 100.0 * value / KV_FULL_RATIO
        case "waiting_requests":
            percent = 100.0 * value / policy.target_waiting if policy.target_waiting > 0 else 100.0
        case "sm_active_ratio":
            percent = 100.0 * value
        case _:
            percent = value
    return min(100.0, max(0.0, percent))
