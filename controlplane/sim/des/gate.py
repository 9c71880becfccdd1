"""Who decides at the gateway: the configured policy, or one of the plain rivals it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from controlplane.decide import step
from controlplane.model.decision import Decision, PoolDecision
from controlplane.model.ladder import UNITS_PER_S
from controlplane.model.policy import Curve, Key, Mode, Policy, SignalChoice
from controlplane.model.signal import Observation
from controlplane.sim.des.bucket import Bucket, Buckets
from controlplane.sim.des.job import Job

FORBIDDEN = "forbidden"
PUSH_S = 0.05  # from a decision to the limits in force; measured through a real Envoy: 13 ms, p95 30 ms


class Gate(Protocol):
    """Admission, and what it learns once a tick."""

    enforced: bool  # False: refusals are only counted

    def refusal(self, now_s: float, gateway: int, job: Job) -> str | None:
        """The rule that refuses `job`; None: it passes."""
        ...

    def tick(self, observation: Observation) -> Mapping[str, PoolDecision]:
        """New limits by new knowledge; the pools' rates for the record (empty: there are none)."""
        ...

    @property
    def overdrawn_ratio(self) -> float:
        """See `Buckets.overdrawn_ratio`."""
        ...


class PolicyGate:
    """Tidegate itself: `decide.step` as in production, its limits in the data plane's buckets."""

    def __init__(self, policy: Policy, keys: Sequence[Key]) -> None:
        self.policy = policy
        self.enforced = policy.mode is Mode.ENFORCE
        positions = {key.id: position for position, key in enumerate(policy.keys)}
        self._positions = [positions.get(key.id) for key in keys]  # None: not in this policy
        self._state = step.start(policy)
        self._buckets = Buckets(policy, self._state.plan.burst_s)
        self._pending: Decision | None = None
        self._started = False

    def refusal(self, now_s: float, gateway: int, job: Job) -> str | None:
        if self._pending is not None and now_s >= self._pending.now_s + PUSH_S:
            self._buckets.enforce(self._pending)
            self._pending = None
        position = self._positions[job.key]
        if position is None:
            return FORBIDDEN
        return self._buckets.refusal(now_s, position, gateway, job.prompt_tokens)

    def tick(self, observation: Observation) -> Mapping[str, PoolDecision]:
        self._state, decision = step.step(self.policy, self._state, observation)
        if self._started:
            self._pending = decision
        else:  # gateways serve nothing before their first limits: the run begins with them in force
            self._buckets.enforce(decision)
            self._started = True
        return decision.pools

    @property
    def overdrawn_ratio(self) -> float:
        return self._buckets.overdrawn_ratio


class OpenGate:
    """Rival: no limit at all."""

    enforced = True
    overdrawn_ratio = 0.0

    def refusal(self, now_s: float, gateway: int, job: Job) -> str | None:
        del now_s, gateway, job
        return None

    def tick(self, observation: Observation) -> Mapping[str, PoolDecision]:
        del observation
        return {}


class StaticGate:
    """Rival: one constant limit of each pool for all tenants together, one second of burst."""

    enforced = True

    def __init__(self, keys: Sequence[Key], rate_per_s: Mapping[str, float]) -> None:
        self._buckets = {pool: Bucket(1.0) for pool in rate_per_s}
        self._cost = {pool: UNITS_PER_S / rate for pool, rate in rate_per_s.items()}
        self._pools = [key.pool for key in keys]

    def refusal(self, now_s: float, gateway: int, job: Job) -> str | None:
        del gateway
        pool = self._pools[job.key]
        return None if self._buckets[pool].take(now_s, self._cost[pool]) else "static"

    def tick(self, observation: Observation) -> Mapping[str, PoolDecision]:
        del observation
        return {}

    @property
    def overdrawn_ratio(self) -> float:
        return max((bucket.excess_max / bucket.depth for bucket in self._buckets.values()), default=0.0)


def formula_policy(policy: Policy, base_per_s: Mapping[str, float]) -> Policy:
    """Rival: max(0.1, 1 - u) * base on the raw GPU counter, to the letter, without guards."""
    pools = tuple(
        replace(
            pool,
            rate=replace(
                pool.rate,
                curve=Curve.FORMULA,
                signal=SignalChoice.GPU_UTIL,
                base_rate_per_s=base_per_s[pool.id],
                contract_rate_per_s=base_per_s[pool.id],
                guards=replace(pool.rate.guards, enabled=False),
            ),
        )
        for pool in policy.pools
    )
    return replace(policy, pools=pools)
