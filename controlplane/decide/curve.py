"""M1: utilisation in percent -> the part of the base rate that a pool may serve.

    table     1.0 up to 30, then straight to 0.4 at 60, then 1 - u/100, and 0.1 from 90: continuous, monotone
    formula   max(0.1, 1 - u/100)
    strict80  the table, but 0.1 from 80 ("ten times stricter above 80 %"): one step down, on purpose

Refused: the formula below 30 and the table above it; the jump from 0.7 to 1.0 at 30 makes a limit cycle.
"""

from __future__ import annotations

import math

from controlplane.model.policy import Curve

LOWEST_FACTOR = 0.1
_CLOSES_AT_PERCENT = {Curve.TABLE: 90.0, Curve.STRICT80: 80.0}


def rate_factor(u_percent: float | None, curve: Curve) -> float | None:
    """Factor in [0.1, 1] for `u_percent` clamped to 0..100; None, nan and inf are no signal: None."""
    if u_percent is None or not math.isfinite(u_percent):
        return None
    u = min(100.0, max(0.0, u_percent))
    if curve is Curve.FORMULA:
        return max(LOWEST_FACTOR, 1.0 - u / 100.0)
    if u >= _CLOSES_AT_PERCENT[curve]:
        return LOWEST_FACTOR
    if u > 60.0:
        return 1.0 - u / 100.0
    return 1.0 if u <= 30.0 else 1.0 - (u - 30.0) / 50.0
