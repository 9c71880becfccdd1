"""One tick of judgement: (policy, state, observation) -> (state, decision). Deterministic, no clock, no I/O.

The state belongs to a compiled policy. `step` with another policy carries the state over by itself, so a
reload loses nothing that was learned: pools are found again by `Pool.id`, keys by `Key.id`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.decide.breakers import BreakerMemory, BreakerTick, judge_breaker
from controlplane.decide.demand import Demand, Traffic, follow, read_traffic
from controlplane.decide.fill import Floats
from controlplane.decide.plan import Plan, PoolPlan, compile_plan
from controlplane.decide.rate import PoolMemory, PoolTick, judge
from controlplane.decide.share import share
from controlplane.model.decision import BreakerDecision, Decision, PoolDecision
from controlplane.model.policy import Policy
from controlplane.model.signal import Load, Observation

# A tick never counts as more than this: after a forward jump of the clock nothing may race ahead.
DT_MAX_S = 60.0
# From this part of a pool's work refused, its admitted work says more about the limit than about the load.
_BINDING_RATIO = 0.05
_NO_LOAD = Load()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """What judgement carries from tick to tick."""

    plan: Plan
    pools: Mapping[str, PoolMemory]  # by Pool.id
    demand: Demand
    now_s: float | None = None  # time of the last tick
    breakers: Mapping[str, BreakerMemory] = field(default_factory=dict)  # by Pool.id, where enabled


def start(policy: Policy) -> State:
    """Nothing is known yet: every pool starts at its contract rate until a signal arrives."""
    plan = compile_plan(policy)
    return State(
        plan=plan,
        pools={pool.pool.id: PoolMemory() for pool in plan.pools},
        demand=Demand(offered_per_s=np.full(len(policy.keys), np.nan)),
    )


def carry(state: State, old_policy: Policy, new_policy: Policy) -> State:
    """`state` for `new_policy`: what was learned under the same ids stays, what is new starts fresh."""
    plan = _with_classes_kept(state.plan, compile_plan(new_policy))
    before = state.demand.offered_per_s
    positions = {key.id: position for position, key in enumerate(old_policy.keys)}
    offered = np.array([before[positions[k]] if k in positions else np.nan for k in plan.index], float)
    return State(
        plan=plan,
        pools={pool.pool.id: state.pools.get(pool.pool.id, PoolMemory()) for pool in plan.pools},
        demand=replace(state.demand, offered_per_s=offered),
        now_s=state.now_s,
        breakers=state.breakers,
    )


def _with_classes_kept(old: Plan, new: Plan) -> Plan:
    """A burst class only grows while the operator wants the same burst.

    Another class is another bucket, and the one left behind goes on filling: tenants that come and go would
    move everybody's floor over a step of the ladder and back, and give each key the rate of both buckets.
    """
    wanted = {pool.id: pool.rate.burst_s for pool in old.policy.pools}
    same = {pool.id for pool in new.policy.pools if pool.rate.burst_s == wanted.get(pool.id)}
    burst_s = new.burst_s.copy()
    for position, key in enumerate(new.policy.keys):
        before = old.index.get(key.id)
        if before is not None and key.pool in same:
            burst_s[position] = max(burst_s[position], old.burst_s[before])
    return replace(new, burst_s=burst_s)


def step(policy: Policy, state: State, observation: Observation) -> tuple[State, Decision]:
    """The limits of every key at `observation.now_s`. Observe mode and freeze give numbers like any other."""
    if state.plan.policy is not policy:
        state = carry(state, state.plan.policy, policy)
    dt_s = _elapsed_s(state.now_s, observation.now_s)
    plan = state.plan
    traffic = None if observation.traffic is None else read_traffic(plan.index, observation.traffic)
    breakers = _breakers(state, observation, traffic, dt_s)
    broken = {name: decision for name, (_, decision) in breakers.items()}
    judged = {
        pool.pool.id: judge(
            pool,
            state.pools[pool.pool.id],
            PoolTick(
                now_s=observation.now_s,
                dt_s=dt_s,
                load=observation.loads.get(pool.pool.id, _NO_LOAD),
                admitted_per_s=_admitted_per_s(pool, traffic),
                frozen=policy.freeze,
                capacity_ratio=broken[pool.pool.id].capacity_ratio if pool.pool.id in broken else 1.0,
            ),
        )
        for pool in plan.pools
    }
    demand = state.demand if policy.freeze else follow(state.demand, traffic, dt_s)
    pools = {name: decision for name, (_, decision) in judged.items()}
    after = State(
        plan=plan,
        pools={name: memory for name, (memory, _) in judged.items()},
        demand=demand,
        now_s=observation.now_s if math.isfinite(observation.now_s) else state.now_s,
        breakers={name: memory for name, (memory, _) in breakers.items()},
    )
    return after, replace(_decision(plan, pools, demand.offered_per_s, observation), breakers=broken)


def _breakers(
    state: State, observation: Observation, traffic: Traffic | None, dt_s: float
) -> dict[str, tuple[BreakerMemory, BreakerDecision]]:
    """The breaker of every pool that has one. A freeze holds rates; it does not hold breakers."""
    return {
        pool.pool.id: judge_breaker(
            pool.pool.breaker,
            state.breakers.get(pool.pool.id, BreakerMemory()),
            BreakerTick(
                pool=pool.pool.id,
                dt_s=dt_s,
                calls=None if observation.calls is None else observation.calls.get(pool.pool.id),
                offered_per_s=_offered_per_s(pool, traffic),
            ),
        )
        for pool in state.plan.pools
        if pool.pool.breaker.enabled
    }


def _decision(
    plan: Plan, pools: Mapping[str, PoolDecision], offered_per_s: Floats, observation: Observation
) -> Decision:
    size = len(plan.policy.keys)
    rate, fair, reason = np.zeros(size), np.zeros(size), np.zeros(size, np.int8)
    for pool in plan.pools:
        index = pool.keys.index
        shares = share(pool.keys, pools[pool.pool.id].rate_per_s, offered_per_s[index])
        rate[index], fair[index], reason[index] = shares.rate_per_s, shares.fair_per_s, shares.reason
    return Decision(
        now_s=observation.now_s,
        pools=pools,
        rate_per_s=rate,
        demand_per_s=offered_per_s,
        fair_per_s=fair,
        reason=reason,
        burst_s=plan.burst_s,
        gateways=max(1, observation.gateways),
    )


def _elapsed_s(before_s: float | None, now_s: float) -> float:
    """Seconds since the last tick: none when the clock stood still or went back."""
    if before_s is None or not math.isfinite(now_s):
        return 0.0
    return min(DT_MAX_S, max(0.0, now_s - before_s))


def _offered_per_s(pool: PoolPlan, traffic: Traffic | None) -> float | None:
    """Requests that want this pool, refused ones included; None when unknown."""
    if traffic is None:
        return None
    offered = float(traffic.offered_per_s[pool.keys.index].sum())
    return offered if math.isfinite(offered) else None


def _admitted_per_s(pool: PoolPlan, traffic: Traffic | None) -> float | None:
    """Work the pool was given, None when unknown or when its limits bind."""
    if traffic is None:
        return None
    offered = float(traffic.offered_per_s[pool.keys.index].sum())
    admitted = float(traffic.admitted_per_s[pool.keys.index].sum())
    binding = offered - admitted > _BINDING_RATIO * offered
    return None if binding or not math.isfinite(admitted) else admitted
