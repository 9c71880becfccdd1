"""A small policy and its decision: two models, two tenants, one charged route."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from controlplane.model.decision import Decision
from controlplane.model.policy import (
    Endpoint,
    Gateways,
    Key,
    Listener,
    Model,
    Policy,
    Pool,
    Priority,
    Route,
    SignalPolicy,
    Tenant,
    WindowLimit,
)


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def pool(model: str, version: str) -> Pool:
    return Pool(model=model, version=version, endpoints=(Endpoint(address="127.0.0.1", port=1),))


def policy_of(
    *,
    routes: Sequence[Route] | None = None,
    tenants: Sequence[Tenant] | None = None,
    windows: Sequence[WindowLimit] = (),
    key_windows: Mapping[str, tuple[str, ...]] | None = None,
    default_tenant: str | None = None,
    gateways_max: int = 1,
    **more: Any,
) -> Policy:
    """Two models, the first with two versions; every tenant may use every model on every charged route."""
    pools = (pool("llama", "r1"), pool("llama", "r2"), pool("mini", "2024.06"))
    models = (
        Model(name="llama", versions=("r1", "r2"), default_version="r2"),
        Model(name="mini", versions=("2024.06",), default_version="2024.06"),
    )
    every = tuple(model.name for model in models)
    routes = tuple(routes if routes is not None else [Route(id="chat", pattern="/v1/chat", models=every)])
    tenants = tuple(
        tenants
        if tenants is not None
        else [
            Tenant(
                id="acme", priority=Priority.HIGH, key_digests=(digest("sk-acme"),), jwt_values=("acme-inc",)
            ),
            Tenant(id="beta", key_digests=(digest("sk-beta"), digest("sk-beta-2"))),
        ]
    )
    keys = [
        Key(
            route=route.id,
            tenant=tenant.id,
            pool=entry.id,
            priority=tenant.priority,
            weight=1.0,
            guarantee_per_s=0.0,
            ceiling_per_s=None,
            pin_per_s=None,
            windows=(key_windows or {}).get(tenant.id, ()),
        )
        for route in routes
        for tenant in tenants
        for entry in pools
        if not route.free
        and entry.model in route.models
        and (tenant.models is None or entry.model in tenant.models or entry.id in tenant.models)
    ]
    return Policy(
        listener=Listener(),
        gateways=Gateways(max_count=gateways_max),
        signals=SignalPolicy(),
        models=models,
        pools=pools,
        routes=routes,
        tenants=tenants,
        keys=tuple(sorted(keys, key=lambda key: key.id)),
        windows=tuple(windows),
        default_tenant=default_tenant,
        **more,
    )


def decision_of(
    policy: Policy,
    rates: Mapping[str, float] | None = None,
    *,
    burst_s: Mapping[str, float] | None = None,
    gateways: int = 1,
    pools: Mapping[str, Any] | None = None,
) -> Decision:
    """10 requests/s and a burst of 1 s for each key, but for those in `rates` and `burst_s` (by Key.id)."""
    rate = np.array([(rates or {}).get(key.id, 10.0) for key in policy.keys])
    return Decision(
        now_s=0.0,
        pools=pools or {},
        rate_per_s=rate,
        demand_per_s=rate,
        fair_per_s=rate,
        reason=np.zeros(len(rate), dtype=np.int8),
        burst_s=np.array([(burst_s or {}).get(key.id, 1.0) for key in policy.keys]),
        gateways=gateways,
    )
