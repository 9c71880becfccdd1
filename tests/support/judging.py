"""Words for tests of judgement: small policies, observations, and a run of ticks with time as a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controlplane.decide import step
from controlplane.model.decision import Decision, PoolDecision
from controlplane.model.policy import (
    Gateways,
    Guards,
    Key,
    Listener,
    Policy,
    Pool,
    Priority,
    RatePolicy,
    SignalPolicy,
)
from controlplane.model.signal import KeyTraffic, Load, Observation, Reading

OFF = Guards(enabled=False)
RAW = Guards(dead_band_points=0.0, ewma_tau_s=0.0)  # only slew, floor and vote
NOW_S = 1_700_000_000.0


def pool(model: str = "chat", **rate: Any) -> Pool:
    return Pool(model=model, version="v1", endpoints=(), rate=RatePolicy(**rate))


def key(tenant: str = "acme", model: str = "chat", **fields: Any) -> Key:
    given: dict[str, Any] = {
        "route": "api",
        "tenant": tenant,
        "pool": f"{model}:v1",
        "priority": Priority.NORMAL,
        "weight": 1.0,
        "guarantee_per_s": 0.0,
        "ceiling_per_s": None,
        "pin_per_s": None,
    }
    return Key(**(given | fields))


def policy(
    keys: Sequence[Key] = (), pools: Sequence[Pool] = (), gateways_max: int = 1, **fields: Any
) -> Policy:
    return Policy(
        listener=Listener(),
        gateways=Gateways(max_count=gateways_max),
        signals=SignalPolicy(),
        models=(),
        pools=tuple(pools) or (pool(),),
        routes=(),
        tenants=(),
        keys=tuple(keys) or (key(),),
        **fields,
    )


def load(now_s: float, *, of: int = 100, **values: float | None) -> Load:
    """Signals sampled at `now_s`, each of so many requests; None is a reading without a value."""
    return Load(
        readings={
            name: Reading(value=value, sampled_at_s=now_s if value is not None else None, count=of)
            for name, value in values.items()
        }
    )


def traffic(**offered_per_s: float) -> dict[str, KeyTraffic]:
    """Offered work by tenant, for keys of the route `api` and the pool `chat:v1`."""
    return {f"api|{tenant}|chat:v1": KeyTraffic(offered_per_s=rate) for tenant, rate in offered_per_s.items()}


@dataclass(slots=True)
class Run:
    """Ticks of one policy; `now_s` moves only when told to."""

    policy: Policy
    now_s: float = NOW_S
    state: step.State = field(init=False)
    decision: Decision = field(init=False)

    def __post_init__(self) -> None:
        self.state = step.start(self.policy)

    def tick(
        self,
        dt_s: float = 1.0,
        traffic: Mapping[str, KeyTraffic] | None = None,
        load: Load | None = None,
        **signals: float | None,
    ) -> PoolDecision:
        """One tick `dt_s` later; signals of the first pool by name. Returns that pool's decision."""
        self.now_s += dt_s
        seen = load if load is not None else globals()["load"](self.now_s, **signals)
        first = self.policy.pools[0].id
        observation = Observation(now_s=self.now_s, loads={first: seen}, traffic=traffic)
        self.state, self.decision = step.step(self.policy, self.state, observation)
        return self.decision.pools[first]

    def ticks(self, count: int, dt_s: float = 1.0, **signals: float | None) -> list[PoolDecision]:
        return [self.tick(dt_s, **signals) for _ in range(count)]

    def reload(self, **fields: Any) -> None:
        """Continue with a changed policy."""
        self.policy = replace(self.policy, **fields)

    def rate_of(self, tenant: str) -> float:
        ids = [k.tenant for k in self.policy.keys]
        return float(self.decision.rate_per_s[ids.index(tenant)])

    def burst_of(self, tenant: str) -> float:
        ids = [k.tenant for k in self.policy.keys]
        return float(self.decision.burst_s[ids.index(tenant)])
