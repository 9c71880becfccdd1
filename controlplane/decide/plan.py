"""Policy -> what every tick needs of it, compiled once: arrays of keys per pool, floors, burst classes.

A pool's LOWEST rate is what no curve, guard or staleness can undercut:

    guards on   max(0.1 * base, min(1/s, base))        (one probe a second)
    guards off  0.1 * base                             (the lowest factor of every curve)
    and not above the contract rate, toward which a pool without a signal decays

A key's FLOOR is its part of that lowest rate, the same at every tick, so that nobody starves and a burst
class can be chosen from the policy alone. Set aside for floors is half of the lowest rate, less when
guarantees need it, a fifth at least: the whole would leave nothing to borrow at the lowest rate, nothing at
all would make buckets endless.

    set aside = clip(lowest - sum(guarantees), lowest / 5, lowest / 2)

The most important class present has all of it but 5 % for each class below. Within a class it goes by
weight, but a part that no bucket could serve (below gateways / 1000 s) is raised at the cost of the others
while they can pay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.decide.burst import burst_class_s, slowest_rate_per_s
from controlplane.decide.curve import LOWEST_FACTOR
from controlplane.decide.fill import Floats, fill
from controlplane.model.policy import Key, Policy, Pool, Priority, RatePolicy

PROBE_PER_S = 1.0
LOWER_CLASS_RATIO = 0.05  # of the pool, for each class below the most important one present
RANKS: tuple[Priority, ...] = (Priority.HIGH, Priority.NORMAL, Priority.BATCH)
_FLOOR_RATIO_MAX, _FLOOR_RATIO_MIN = 0.5, 0.2
_WEIGHT_MIN, _WEIGHT_MAX = 1e-6, 1e6
_RATE_MAX = 1e9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyTable:
    """The keys of one pool as arrays of shape (keys,); rates in requests/s over the whole fleet."""

    index: NDArray[np.intp]  # into Policy.keys
    weight: Floats
    guarantee_per_s: Floats
    ceiling_per_s: Floats  # inf: none
    pin_per_s: Floats  # nan: not pinned
    rank: NDArray[np.int8]  # 0: most important
    floor_per_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolPlan:
    """One pool, its lowest rate and its keys."""

    pool: Pool
    base_per_s: float  # as configured; 0 closes the pool
    lowest_per_s: float
    contract_per_s: float  # within [lowest, base]: where a pool without a signal goes
    keys: KeyTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A compiled policy. `index` finds a key by its id."""

    policy: Policy
    index: Mapping[str, int]
    pools: tuple[PoolPlan, ...]
    burst_s: Floats


def compile_plan(policy: Policy) -> Plan:
    """The arrays of `policy`. Junk numbers are made harmless in the direction that admits less."""
    members: dict[str, list[int]] = {pool.id: [] for pool in policy.pools}
    for position, key in enumerate(policy.keys):
        members.setdefault(key.pool, []).append(position)
    pools = tuple(_pool_plan(policy, pool, members[pool.id]) for pool in policy.pools)
    burst_s = np.full(len(policy.keys), burst_class_s(0.0, 1, 0.0))
    for plan in pools:
        burst_s[plan.keys.index] = _classes(policy, plan)
    index = {key.id: position for position, key in enumerate(policy.keys)}
    return Plan(policy=policy, index=index, pools=pools, burst_s=burst_s)


def plan_pool(policy: Policy, pool_id: str) -> PoolPlan | None:
    """One pool of `compile_plan`, without the others; None when the policy has no such pool."""
    members = [position for position, key in enumerate(policy.keys) if key.pool == pool_id]
    return next((_pool_plan(policy, pool, members) for pool in policy.pools if pool.id == pool_id), None)


def unserved_keys(plan: Plan) -> tuple[str, ...]:
    """Ids of the keys that no bucket can admit at their floor, sorted: too many keys for too little rate.

    They are served while their limit is above gateways / 1000 s, and wait at the pool's lowest rate. Keys
    that the policy closes (a pin or a ceiling of 0) are not meant.
    """
    slowest = slowest_rate_per_s(plan.policy.gateways.max_count) * (1 - 1e-9)
    found = [
        plan.policy.keys[position].id
        for pool in plan.pools
        for position, floor in zip(pool.keys.index, pool.keys.floor_per_s, strict=True)
        if 0 < floor < slowest
    ]
    return tuple(sorted(found))


def lowest_rate_per_s(rate: RatePolicy) -> float:
    """The rate that a pool with this policy never goes below."""
    base = _amount(rate.base_rate_per_s)
    floor = LOWEST_FACTOR * base
    if rate.guards.enabled:
        floor = max(floor, min(PROBE_PER_S, base))
    contract = _amount(rate.contract_rate_per_s)
    return min(floor, contract) if contract > 0 else floor


def _pool_plan(policy: Policy, pool: Pool, members: list[int]) -> PoolPlan:
    lowest = lowest_rate_per_s(pool.rate)
    base = _amount(pool.rate.base_rate_per_s)
    return PoolPlan(
        pool=pool,
        base_per_s=base,
        lowest_per_s=lowest,
        contract_per_s=min(base, max(lowest, _amount(pool.rate.contract_rate_per_s))),
        keys=_key_table(
            [policy.keys[i] for i in members], members, lowest, slowest_rate_per_s(policy.gateways.max_count)
        ),
    )


def _key_table(keys: list[Key], index: list[int], lowest_per_s: float, slowest_per_s: float) -> KeyTable:
    weight = _weights([key.weight for key in keys])
    ceiling = np.array([np.inf if k.ceiling_per_s is None else _amount(k.ceiling_per_s) for k in keys], float)
    guarantee = np.minimum(np.array([_amount(key.guarantee_per_s) for key in keys], float), ceiling)
    pin = np.array([np.nan if key.pin_per_s is None else _amount(key.pin_per_s) for key in keys], float)
    rank = np.array([RANKS.index(key.priority) for key in keys], np.int8)
    aside = min(
        _FLOOR_RATIO_MAX * lowest_per_s, max(_FLOOR_RATIO_MIN * lowest_per_s, lowest_per_s - guarantee.sum())
    )
    return KeyTable(
        index=np.array(index, np.intp),
        weight=weight,
        guarantee_per_s=guarantee,
        ceiling_per_s=ceiling,
        pin_per_s=pin,
        rank=rank,
        floor_per_s=np.minimum(_floors(weight, rank, float(aside), slowest_per_s), ceiling),
    )


def _floors(weight: Floats, rank: NDArray[np.int8], aside_per_s: float, slowest_per_s: float) -> Floats:
    """`aside_per_s` split by class, then by weight; each key at least `slowest_per_s` if possible."""
    if not len(weight) or aside_per_s <= 0:
        return np.zeros(len(weight))
    parts = np.empty(len(weight))
    present = np.unique(rank)
    for place, one in enumerate(present):
        ratio = LOWER_CLASS_RATIO if place else 1.0 - LOWER_CLASS_RATIO * (len(present) - 1)
        members = rank == one
        parts[members] = aside_per_s * ratio * weight[members] / weight[members].sum()
    least = min(slowest_per_s, aside_per_s / len(weight))
    return fill(parts, np.full(len(weight), least), np.full(len(weight), np.inf), aside_per_s)


def _classes(policy: Policy, plan: PoolPlan) -> list[float]:
    """Burst class of each key of the pool, from its floor, or its pin where that is lower."""
    lowest = np.fmin(plan.keys.floor_per_s, plan.keys.pin_per_s)
    return [burst_class_s(float(rate), policy.gateways.max_count, plan.pool.rate.burst_s) for rate in lowest]


def _amount(value: float) -> float:
    """A rate that can be counted on: finite, not negative, at most 1e9/s; anything else is 0."""
    return min(_RATE_MAX, float(value)) if 0 < value < np.inf else 0.0


def _weights(values: list[float]) -> Floats:
    weights = np.nan_to_num(np.array(values, float), nan=_WEIGHT_MIN, posinf=_WEIGHT_MAX, neginf=_WEIGHT_MIN)
    clipped: Floats = np.clip(weights, _WEIGHT_MIN, _WEIGHT_MAX)
    return clipped
