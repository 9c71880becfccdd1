"""A policy for simulations: one model version on four pods, tenants of equal weight."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.model.policy import (
    Endpoint,
    Gateways,
    Key,
    Listener,
    Model,
    Policy,
    Pool,
    Priority,
    RatePolicy,
    Route,
    SignalChoice,
    SignalPolicy,
    Tenant,
)


def four_pods(tenants: Sequence[str] = ("acme", "globex", "initech", "umbra")) -> Policy:
    """Rates follow the effective utilisation; the base rate is twice what the reference pods serve."""
    endpoints = tuple(Endpoint(address=f"10.0.0.{n}", port=8000) for n in range(1, 5))
    rate = RatePolicy(base_rate_per_s=54.0, contract_rate_per_s=20.0, signal=SignalChoice.EFFECTIVE)
    return Policy(
        listener=Listener(),
        gateways=Gateways(),
        signals=SignalPolicy(),
        models=(Model(name="chat", versions=("v1",), default_version="v1"),),
        pools=(Pool(model="chat", version="v1", endpoints=endpoints, rate=rate),),
        routes=(Route(id="chat", pattern="/v1/chat/completions", models=("chat",)),),
        tenants=tuple(Tenant(id=tenant) for tenant in tenants),
        keys=tuple(_key(tenant) for tenant in sorted(tenants)),
    )


def _key(tenant: str) -> Key:
    return Key(
        route="chat",
        tenant=tenant,
        pool="chat:v1",
        priority=Priority.NORMAL,
        weight=1.0,
        guarantee_per_s=0.0,
        ceiling_per_s=None,
        pin_per_s=None,
    )
