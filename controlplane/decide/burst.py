"""Rates -> what a token bucket in Envoy can hold: burst classes. `model.price` has the arithmetic.

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

import numpy as np
from numpy.typing import NDArray

from controlplane.model.decision import Decision
from controlplane.model.ladder import ADAPTIVE_LADDER_S, LADDER_S
from controlplane.model.policy import Policy
from controlplane.model.price import ROUNDING, SHARED_MARGIN, room_needed_s


def burst_class_s(floor_rate_per_s: float, gateways_max: int, wanted_s: float) -> float:
    """The smallest adaptive class that gives `wanted_s` and always admits one request.

    Beyond 1000 s the answer is 1000 (`plan.unserved_keys` names such keys). A floor of 0 is a key that the
    policy closes: it has the wanted class.
    """
    wanted = wanted_s if math.isfinite(wanted_s) and wanted_s > 0 else ADAPTIVE_LADDER_S[0]
    if not floor_rate_per_s > 0:
        return _class_of(wanted)
    return _class_of(max(wanted, room_needed_s(floor_rate_per_s, gateways_max)))


def slowest_rate_per_s(gateways: int) -> float:
    """The lowest rate that `gateways` Envoys can enforce together without refusing everything.

    The deepest bucket ends one unit below 1e9, so the margin counts for one gateway as well.
    """
    return max(1, gateways) / (LADDER_S[-1] * SHARED_MARGIN)


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
        needed_s = needed_s / SHARED_MARGIN
    in_force = decision.burst_s.copy()
    for class_s in reversed(ADAPTIVE_LADDER_S):
        binds = (class_s < in_force) & (class_s >= first_s) & (class_s >= needed_s * ROUNDING)
        in_force[binds] = class_s
    return in_force


def _class_of(room_s: float) -> float:
    for class_s in ADAPTIVE_LADDER_S:
        if class_s >= room_s * ROUNDING:
            return class_s
    return ADAPTIVE_LADDER_S[-1]
