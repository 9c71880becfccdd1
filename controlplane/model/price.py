"""The price of a request in cost units, and the depth of the bucket it is paid from.

Judgement reasons with these numbers, translation writes them into the limits script and the simulator charges
them, so they are said once. A rate of r requests/s is a cost of UNITS_PER_S / r: a change of rate moves a
number and never a bucket.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controlplane.model.ladder import COST_MAX, LADDER_S, UNITS_PER_S

# Envoy multiplies the room by 1/gateways in floating point and cuts the fraction off: a request that fits to
# the unit in a shared bucket may not fit. One part in 100,000 is ample.
SHARED_MARGIN = 1.0 - 1e-5
ROUNDING = 1.0 - 1e-9


class WindowBurst(NamedTuple):
    """The class that enforces an M6 window, and the burst in requests that it really gives."""

    class_s: float
    burst_tokens: float


def room_needed_s(rate_per_s: float, gateways: int) -> float:
    """Seconds of rate that a fleet-wide bucket must hold so that each of `gateways` can admit one request."""
    needed = max(1, gateways) / rate_per_s
    return needed if gateways <= 1 else needed / SHARED_MARGIN


def window_burst_class_s(rate_per_s: float, burst_tokens: float, gateways: int) -> WindowBurst:
    """The largest class whose burst is at most `burst_tokens`, but one that admits at least one request.

    1000 per 60 s with a burst of 100 is 6 s, exactly 100. A window too slow for every class (below
    gateways / 1000 s) gets the 1000 s class and admits nothing; configuration refuses it.
    """
    if not rate_per_s > 0:
        return WindowBurst(LADDER_S[0], 0.0)
    needed = room_needed_s(rate_per_s, gateways)
    admitting = [class_s for class_s in LADDER_S if class_s >= needed * ROUNDING] or [LADDER_S[-1]]
    fitting = [class_s for class_s in admitting if class_s * rate_per_s * ROUNDING <= burst_tokens]
    class_s = fitting[-1] if fitting else admitting[0]
    return WindowBurst(class_s, class_s * rate_per_s)


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
