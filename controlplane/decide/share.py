"""The rate of one pool -> the limits of its keys: M2's weighted max-min.

In this order, each step out of what the steps before left:

1. Pins are paid as written.                                    (an operator's word, above every judgement)
2. Floors, then guarantees above them. Both hold with or without demand: an owner that returns finds its
   guarantee. When the pool cannot pay all guarantees, each has the same part of what it asks beyond its
   floor.
3. Classes strictly in order, high to batch; each class below the first keeps 5 % of the pool if it wants it.
4. Within a class, weighted max-min up to what a key wants: 1.15 * demand and a little, or its ceiling.
5. What nobody wants, weighted max-min up to the ceilings: headroom until the next tick.

The sum never exceeds the pool's rate, unless pins alone leave less than the floors: floors are paid even
then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.decide.fill import Floats, fill
from controlplane.decide.plan import LOWER_CLASS_RATIO, KeyTable
from controlplane.model.decision import KEY_REASONS

HEADROOM_RATIO = 1.15  # of the demand seen: room to grow within one tick
_SPARE_RATIO = 0.01  # of its weight's part, for a key that sent nothing
_CLOSE = 1e-9

(WEIGHT, BORROWS, LENDS, CEILING, GUARANTEE, MINIMUM, PINNED, SHRUNK, SHED) = range(len(KEY_REASONS))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shares:
    """Limits of one pool's keys, shape (keys,). `fair_per_s` is the part by weight, before borrowing."""

    rate_per_s: Floats
    fair_per_s: Floats
    reason: NDArray[np.int8]  # index into KEY_REASONS


def share(keys: KeyTable, rate_per_s: float, demand_per_s: Floats) -> Shares:
    """Split `rate_per_s` over `keys`; `demand_per_s` of shape (keys,), nan where it is unknown."""
    pinned = ~np.isnan(keys.pin_per_s)
    if not pinned.any():
        return _share_free(keys, rate_per_s, demand_per_s)
    free = _subset(keys, ~pinned)
    left = max(rate_per_s - keys.pin_per_s[pinned].sum(), 0.0)
    shares = _share_free(free, left, demand_per_s[~pinned])
    limit, fair = keys.pin_per_s.copy(), keys.pin_per_s.copy()
    reason = np.full(len(limit), PINNED, np.int8)
    limit[~pinned], fair[~pinned], reason[~pinned] = shares.rate_per_s, shares.fair_per_s, shares.reason
    return Shares(rate_per_s=limit, fair_per_s=fair, reason=reason)


def _share_free(keys: KeyTable, rate_per_s: float, demand_per_s: Floats) -> Shares:
    if not len(keys.weight):
        return Shares(rate_per_s=np.zeros(0), fair_per_s=np.zeros(0), reason=np.zeros(0, np.int8))
    budget = max(rate_per_s, float(keys.floor_per_s.sum()))
    fair = budget * keys.weight / keys.weight.sum()
    owed, paid_ratio = _owed(keys, budget)
    wanted = _wanted(keys, owed, fair, demand_per_s)
    limit = _by_class(keys, owed, wanted, budget)
    limit = fill(keys.weight, limit, np.maximum(keys.ceiling_per_s, limit), budget)
    return Shares(rate_per_s=limit, fair_per_s=fair, reason=_reasons(keys, limit, fair, wanted, paid_ratio))


def _owed(keys: KeyTable, budget: float) -> tuple[Floats, float]:
    """What each key has without asking, and the part of the guarantees that could be paid (1: all)."""
    beyond = np.maximum(keys.guarantee_per_s - keys.floor_per_s, 0.0)
    asked = float(beyond.sum())
    left = max(budget - float(keys.floor_per_s.sum()), 0.0)
    paid_ratio = 1.0 if asked <= left else left / asked
    return keys.floor_per_s + paid_ratio * beyond, paid_ratio


def _wanted(keys: KeyTable, owed: Floats, fair: Floats, demand_per_s: Floats) -> Floats:
    """Where a key stops taking part in the contest for rate; never below what it is owed."""
    wanted = np.where(np.isnan(demand_per_s), fair, HEADROOM_RATIO * demand_per_s + _SPARE_RATIO * fair)
    bounded: Floats = np.maximum(np.minimum(wanted, keys.ceiling_per_s), owed)
    return bounded


def _by_class(keys: KeyTable, owed: Floats, wanted: Floats, budget: float) -> Floats:
    """Weighted max-min within each class, the classes strictly in order above their minimum shares."""
    ranks = np.unique(keys.rank)
    if len(ranks) == 1:
        return fill(keys.weight, owed, wanted, budget)
    members = [keys.rank == rank for rank in ranks]
    kept = _kept_for_classes(members, owed, wanted, budget)
    limit = np.empty(len(owed))
    left = budget
    for place, member in enumerate(members):
        available = left - sum(kept[place + 1 :])
        limit[member] = fill(keys.weight[member], owed[member], wanted[member], available)
        left -= float(limit[member].sum())
    return limit


def _kept_for_classes(
    members: list[NDArray[np.bool_]], owed: Floats, wanted: Floats, budget: float
) -> list[float]:
    """What each class keeps however much the classes above it want: what it is owed, or its minimum share."""
    owed_by_class = [float(owed[member].sum()) for member in members]
    minimum = [0.0] + [min(LOWER_CLASS_RATIO * budget, float(wanted[m].sum())) for m in members[1:]]
    beyond = [max(least - due, 0.0) for least, due in zip(minimum, owed_by_class, strict=True)]
    left = max(budget - sum(owed_by_class), 0.0)
    payable = 1.0 if sum(beyond) <= left else left / sum(beyond)
    return [due + payable * more for due, more in zip(owed_by_class, beyond, strict=True)]


def _reasons(
    keys: KeyTable, limit: Floats, fair: Floats, wanted: Floats, paid_ratio: float
) -> NDArray[np.int8]:
    """Why each limit is what it is; later lines are stronger reasons."""
    above, below = limit > fair * (1 + _CLOSE), limit < fair * (1 - _CLOSE)
    reason = np.full(len(limit), WEIGHT, np.int8)
    reason[above] = BORROWS
    reason[below & (keys.rank > keys.rank.min())] = SHED
    reason[below & (wanted <= limit * (1 + _CLOSE))] = LENDS
    reason[below & (limit <= keys.floor_per_s * (1 + _CLOSE))] = MINIMUM
    promised = keys.guarantee_per_s > keys.floor_per_s
    reason[promised & (limit <= keys.guarantee_per_s * (1 + _CLOSE))] = GUARANTEE
    if paid_ratio < 1.0:
        reason[promised & (limit < keys.guarantee_per_s * (1 - _CLOSE))] = SHRUNK
    reason[limit >= keys.ceiling_per_s * (1 - _CLOSE)] = CEILING
    return reason


def _subset(keys: KeyTable, chosen: NDArray[np.bool_]) -> KeyTable:
    return KeyTable(
        index=keys.index[chosen],
        weight=keys.weight[chosen],
        guarantee_per_s=keys.guarantee_per_s[chosen],
        ceiling_per_s=keys.ceiling_per_s[chosen],
        pin_per_s=keys.pin_per_s[chosen],
        rank=keys.rank[chosen],
        floor_per_s=keys.floor_per_s[chosen],
    )
