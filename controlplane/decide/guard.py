"""M1's guards as small machines: a filter, a dead band, a slew limit and a vote. Time is `dt_s`, an argument.

A guard whose number is 0 is switched off by itself; `Guards.enabled: false` switches all of them off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from controlplane.model.policy import Guards

SLEW_PERIOD_S = 5.0
_SETTLED_POINTS = 0.01  # closer than this a filter has arrived: equal inputs give equal outputs
SAMPLE_EVERY_S = 5.0
SAMPLES_MAX = 120  # ten minutes
_SAMPLES_MIN = 60
CORRELATION_MIN = 0.3
_MOVED_RATIO = (
    0.1  # work must have varied by this much (deviation / mean) before a correlation means anything
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Smooth:
    """Utilisation in percent: `filtered` follows the samples, `applied` is what the curve sees."""

    filtered: float
    applied: float
    side: int = 0  # -1, 0, 1: where `filtered` has been, seen from `applied`
    ticks: int = 0  # for how long


def smooth(before: Smooth | None, percent: float, dt_s: float, guards: Guards) -> Smooth:
    """One tick of the EWMA, then of the dead band.

    Within the band nothing moves, until the filtered value has been on one side for `dead_band_ticks`
    ticks: so noise is ignored and an offset is not.
    """
    if before is None:
        return Smooth(filtered=percent, applied=percent)
    tau_s = guards.ewma_tau_s
    gain = 1.0 - math.exp(-dt_s / tau_s) if tau_s > 0 else 1.0
    filtered = before.filtered + gain * (percent - before.filtered)
    if abs(percent - filtered) < _SETTLED_POINTS:
        filtered = percent
    offset = filtered - before.applied
    side = 0 if abs(offset) < _SETTLED_POINTS else int(math.copysign(1, offset))
    ticks = before.ticks + 1 if side == before.side else 1
    if abs(offset) > guards.dead_band_points or (side != 0 and ticks >= guards.dead_band_ticks):
        return Smooth(filtered=filtered, applied=filtered)
    return Smooth(filtered=filtered, applied=before.applied, side=side, ticks=ticks)


def slew_bounds_per_s(rate_per_s: float, dt_s: float, guards: Guards) -> tuple[float, float]:
    """Lowest and highest rate `dt_s` after `rate_per_s`: equal ratios in equal times, whatever the tick."""
    periods = dt_s / SLEW_PERIOD_S
    up, down = guards.slew_up_ratio, guards.slew_down_ratio
    highest = rate_per_s * (1.0 + up) ** periods if up > 0 else math.inf
    lowest = rate_per_s * (1.0 - down) ** periods if 0 < down < 1 else 0.0
    return lowest, highest


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Ten minutes of (utilisation, admitted work), one pair per five seconds, and their correlation."""

    pairs: tuple[tuple[float, float], ...] = ()
    since_s: float = SAMPLE_EVERY_S
    correlation: float | None = None  # None: not enough seen, or the work hardly varied


def record(before: Record, percent: float, admitted_per_s: float | None, dt_s: float) -> Record:
    """`before` with one more pair when it is due.

    `admitted_per_s` is None while limits bind or without counters: admitted work then follows the signal by
    construction, and would make any signal look wrong.
    """
    since_s = before.since_s + dt_s
    if since_s < SAMPLE_EVERY_S or admitted_per_s is None:
        return Record(pairs=before.pairs, since_s=since_s, correlation=before.correlation)
    pairs = (*before.pairs[-(SAMPLES_MAX - 1) :], (percent, admitted_per_s))
    return Record(pairs=pairs, since_s=0.0, correlation=_correlation(pairs))


def _correlation(pairs: tuple[tuple[float, float], ...]) -> float | None:
    if len(pairs) < _SAMPLES_MIN:
        return None
    percent, work = np.array(pairs).T
    if work.std() <= _MOVED_RATIO * work.mean():
        return None
    if percent.std() < _SETTLED_POINTS:
        return 0.0  # the work moved and the signal did not
    return float(np.corrcoef(percent, work)[0, 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """What tells a full pool from a counter that only reads full. None: not known."""

    ttft_p95_s: float | None
    waiting_requests: float | None
    ttft_slo_s: float
    correlation: float | None


STUCK_PERCENT = 95.0
_NOTHING_WAITS = 0.1  # queued requests per endpoint


def at_ease(symptoms: Symptoms) -> bool:
    """Whether the servers are known to be fine: first tokens in half their SLO, and nothing waits."""
    ttft_s, waiting = symptoms.ttft_p95_s, symptoms.waiting_requests
    fast = ttft_s is not None and ttft_s < 0.5 * symptoms.ttft_slo_s
    return fast and waiting is not None and waiting < _NOTHING_WAITS


def why_uninformative(percent: float, symptoms: Symptoms) -> str | None:
    """Why a counter-like signal deserves no vote now; None while it keeps it.

    Only known symptoms speak: without them the signal keeps its vote. A queue of one per endpoint or a
    missed SLO gives the vote back whatever the correlation says.
    """
    ttft_s, waiting = symptoms.ttft_p95_s, symptoms.waiting_requests
    if percent > STUCK_PERCENT and at_ease(symptoms):
        return f"it reads {percent:.0f} % while first tokens come in {ttft_s:.2f} s and nothing waits"
    suffering = (waiting is not None and waiting >= 1.0) or (
        ttft_s is not None and ttft_s >= symptoms.ttft_slo_s
    )
    if symptoms.correlation is not None and symptoms.correlation < CORRELATION_MIN and not suffering:
        return f"its correlation with admitted work over ten minutes is {symptoms.correlation:.2f}"
    return None
