"""Rates -> what a token bucket in Envoy can hold: burst classes, cost per request.

The buckets of the data plane hold universal units: 1,000,000 a second, room for 1,000,000 * burst_s. A rate
r is the cost 1,000,000 / r of one request, so a change of rate moves a number and never a bucket. What
follows:

- One request must fit: cost <= room / gateways, so burst_s >= gateways / rate for the LOWEST rate a key can
  ever have. Another class is another, full bucket: so the class comes from the policy alone (the key's floor
  rate, the largest number of gateways, the wanted burst), never from the rate of the moment.
- A cost is a whole number in [1, 1e9]; 1e9 is above every bucket and means closed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controlplane.model.decision import Decision
from controlplane.model.ladder import ADAPTIVE_LADDER_S, COST_MAX, LADDER_S, UNITS_PER_S
from controlplane.model.policy import Policy

# Envoy multiplies the room by 1/gateways in floating point and cuts the fraction off: a request that fits to
# the unit in a shared bucket may not fit. One part in 100,000 is ample.
_SHARED_MARGIN = 1.0 - 1e-5
_ROUNDING = 1.0 - 1e-9


class WindowBurst(NamedTuple):
    """The class that enforces an M6 window, and the burst in requests that it really gives."""

    class_s: float
    burst_tokens: float


def burst_class_s(floor_rate_per_s: float, gateways_max: int, wanted_s: float) -> float:
    """The smallest adaptive class that gives `wanted_s` and always admits one request.

    Beyond 1000 s the answer is 1000 (`plan.unserved_keys` names such keys). A floor of 0 is a key that the
    policy closes: it has the wanted class.
    """
    wanted = wanted_s if math.isfinite(wanted_s) and wanted_s > 0 else ADAPTIVE_LADDER_S[0]
    if not floor_rate_per_s > 0:
        return _class_of(wanted)
    return _class_of(max(wanted, room_needed_s(floor_rate_per_s, gateways_max)))


def room_needed_s(rate_per_s: float, gateways: int) -> float:
    """Seconds of rate that a fleet-wide bucket must hold so that each of `gateways` can admit one request."""
    needed = max(1, gateways) / rate_per_s
    return needed if gateways <= 1 else needed / _SHARED_MARGIN


def window_burst_class_s(rate_per_s: float, burst_tokens: float, gateways: int) -> WindowBurst:
    """The largest class whose burst is at most `burst_tokens`, but one that admits at least one request.

    1000 per 60 s with a burst of 100 is 6 s, exactly 100. A window too slow for every class (below
    gateways / 1000 s) gets the 1000 s class and admits nothing; configuration refuses it.
    """
    if not rate_per_s > 0:
        return WindowBurst(LADDER_S[0], 0.0)
    needed = room_needed_s(rate_per_s, gateways)
    admitting = [class_s for class_s in LADDER_S if class_s >= needed * _ROUNDING] or [LADDER_S[-1]]
    fitting = [class_s for class_s in admitting if class_s * rate_per_s * _ROUNDING <= burst_tokens]
    class_s = fitting[-1] if fitting else admitting[0]
    return WindowBurst(class_s, class_s * rate_per_s)


def slowest_rate_per_s(gateways: int) -> float:
    """The lowest rate that `gateways` Envoys can enforce together without refusing everything.

    The deepest bucket ends one unit below 1e9, so the margin counts for one gateway as well.
    """
    return max(1, gateways) / (LADDER_S[-1] * _SHARED_MARGIN)


def bursts_in_force_s(policy: Policy, decision: Decision) -> NDArray[np.float64]:
    """Seconds of its rate that each key may take at once now, like `decision.burst_s`.

    A key pays into every class from the wanted one up to its own in which one request fits; the shortest of
    them binds. So the class that its floor needs counts only while its rate is near that floor.
    """
    wanted = {pool.id: _class_of(pool.rate.burst_s) for pool in policy.pools}
    first_s = np.array([wanted.get(key.pool, np.inf) for key in policy.keys], dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed_s = decision.gateways / decision.rate_per_s
    if decision.gateways > 1:
        needed_s = needed_s / _SHARED_MARGIN
    in_force = decision.burst_s.copy()
    for class_s in reversed(ADAPTIVE_LADDER_S):
        binds = (class_s < in_force) & (class_s >= first_s) & (class_s >= needed_s * _ROUNDING)
        in_force[binds] = class_s
    return in_force


def cost_units(rate_per_s: float) -> int:
    """Units one request costs at `rate_per_s`, in [1, 1e9]; a rate of 0, below 0 or nan is closed: 1e9."""
    if not rate_per_s > 0:
        return COST_MAX
    return max(1, math.floor(min(float(COST_MAX), UNITS_PER_S / rate_per_s + 0.5)))


def cost_units_of(rates_per_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """`cost_units` of each rate."""
    costs = np.full(rates_per_s.shape, float(COST_MAX))
    with np.errstate(over="ignore"):
        np.divide(UNITS_PER_S, rates_per_s, out=costs, where=rates_per_s > 0)
    return np.clip(np.floor(costs + 0.5), 1, COST_MAX).astype(np.int64)


def _class_of(room_s: float) -> float:
    for class_s in ADAPTIVE_LADDER_S:
        if class_s >= room_s * _ROUNDING:
            return class_s
    return ADAPTIVE_LADDER_S[-1]
