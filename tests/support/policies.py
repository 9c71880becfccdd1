"""Small policies and decisions for tests: what matters is said, the rest is ordinary."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from controlplane.decide.burst import burst_class_s
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

CHAT = Route(id="chat", pattern="/v1/chat/completions", models=("m",))
POOL = Pool(model="m", version="r1", endpoints=(Endpoint(address="127.0.0.1", port=9001),))


def api_key(tenant: str) -> str:
    """The secret with which `tenant` shows who it is."""
    return f"sk-secret-of-{tenant}"


def tenant(id: str, **fields: Any) -> Tenant:
    """A tenant that is known by `api_key(id)`."""
    digest = hashlib.sha256(api_key(id).encode()).hexdigest()
    return Tenant(id=id, key_digests=(digest,), **fields)


def policy(
    tenants: Sequence[str | Tenant] = ("acme",),
    *,
    pools: Sequence[Pool] = (POOL,),
    routes: Sequence[Route] = (CHAT,),
    windows: Sequence[WindowLimit] = (),
    **fields: Any,
) -> Policy:
    """Every tenant may use every pool on every route that charges."""
    known = sorted((tenant(each) if isinstance(each, str) else each for each in tenants), key=_by_id)
    versions: dict[str, list[str]] = {}
    for pool in pools:
        versions.setdefault(pool.model, []).append(pool.version)
    keys = [
        _key(route, each, pool, windows)
        for route in routes
        for each in known
        for pool in pools
        if pool.model in route.models and not route.free
    ]
    return Policy(
        **{
            "listener": Listener(address="127.0.0.1"),
            "gateways": Gateways(),
            "signals": SignalPolicy(),
            "models": tuple(
                Model(name=name, versions=tuple(found), default_version=found[0])
                for name, found in sorted(versions.items())
            ),
            "pools": tuple(sorted(pools, key=_by_id)),
            "routes": tuple(routes),
            "tenants": tuple(known),
            "keys": tuple(sorted(keys, key=_by_id)),
            "windows": tuple(sorted(windows, key=lambda window: window.name)),
            **fields,
        }
    )


def _by_id(thing: Any) -> str:
    return str(thing.id)


def _key(route: Route, owner: Tenant, pool: Pool, windows: Sequence[WindowLimit]) -> Key:
    applying = [
        window.name
        for window in windows
        if window.tenant_id in (None, owner.id)
        and window.path in (None, route.pattern)
        and window.model_version in (None, pool.id)
    ]
    return Key(
        route=route.id,
        tenant=owner.id,
        pool=pool.id,
        priority=Priority.NORMAL,
        weight=1.0,
        guarantee_per_s=0.0,
        ceiling_per_s=None,
        pin_per_s=None,
        windows=tuple(sorted(applying)),
    )


def decision(
    of: Policy,
    rate_per_s: float | Mapping[str, float] | Callable[[Key], float],
    *,
    floor_per_s: float | None = None,
    burst_s: float = 1.0,
    gateways: int = 1,
) -> Decision:
    """These rates (by tenant when a mapping), in the burst class of `floor_per_s` (default: the rate)."""
    if isinstance(rate_per_s, Mapping):
        by_tenant = rate_per_s
        rates = np.array([by_tenant[key.tenant] for key in of.keys], dtype=np.float64)
    elif callable(rate_per_s):
        rates = np.array([rate_per_s(key) for key in of.keys], dtype=np.float64)
    else:
        rates = np.full(len(of.keys), rate_per_s, dtype=np.float64)
    floors = rates if floor_per_s is None else np.full(len(of.keys), floor_per_s)
    classes = [burst_class_s(float(floor), of.gateways.max_count, burst_s) for floor in floors]
    return Decision(
        now_s=0.0,
        pools={},
        rate_per_s=rates,
        demand_per_s=np.full(len(rates), np.nan),
        fair_per_s=rates,
        reason=np.zeros(len(rates), dtype=np.int8),
        burst_s=np.array(classes, dtype=np.float64),
        gateways=gateways,
    )
