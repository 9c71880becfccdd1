"""Weighted max-min by progressive filling: one level rises, each key follows it between its bounds.

    x_k = clip(level * weight_k, low_k, high_k)   with   sum(x) = the budget

The sum is a rising, piecewise linear function of the level with corners at low/weight and high/weight: a
binary search finds the piece, the piece gives the level exactly. Refused: bisection on the level itself (as
slow, and never exact), and prefix sums over the corners (they lose the small keys beside large ones).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def fill(weight: Floats, low: Floats, high: Floats, budget: float) -> Floats:
    """Split `budget` over keys by weight, each within [low, high]; all of shape (keys,).

    Needs weight > 0 and 0 <= low <= high (high may be inf). Below sum(low) the answer is low, above sum(high)
    it is high. Equal weights without bounds in the way get exactly equal parts.
    """
    if budget <= low.sum():
        return low.copy()
    if budget >= high.sum():
        return high.copy()
    level = float(budget / weight.sum())
    straight: Floats = level * weight
    if (straight >= low).all() and (straight <= high).all():
        return straight
    return _clip(_level(weight, low, high, budget) * weight, low, high)


def _level(weight: Floats, low: Floats, high: Floats, budget: float) -> float:
    """The level at which the sum over all keys is `budget`; sum(low) < budget < sum(high)."""
    starts, stops = low / weight, high / weight
    corners = np.concatenate([starts, stops])
    corners = np.sort(corners[np.isfinite(corners)])
    below, above = 0, len(corners)  # sum at corners[below] <= budget < sum at corners[above]
    while above - below > 1:
        middle = (below + above) // 2
        if _clip(corners[middle] * weight, low, high).sum() <= budget:
            below = middle
        else:
            above = middle
    corner = float(corners[below])
    rising = (starts <= corner) & (stops > corner)
    if not rising.any():
        return corner
    still = np.where(starts > corner, low, high)[~rising].sum()
    return float((budget - still) / weight[rising].sum())


def _clip(values: Floats, low: Floats, high: Floats) -> Floats:
    clipped: Floats = np.minimum(np.maximum(values, low), high)
    return clipped
