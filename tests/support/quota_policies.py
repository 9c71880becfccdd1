"""Small policies with quotas."""

from __future__ import annotations

from typing import Any

from controlplane.model.policy import (
    Endpoint,
    Gateways,
    Listener,
    Model,
    Policy,
    PolicyService,
    Pool,
    Quota,
    Route,
    SignalPolicy,
    Tenant,
)

OLDER, NEWER = "gpt-4-turbo:2024-06-01", "gpt-4-turbo:2024-07-15"


def quota_policy(*quotas: Quota, service: PolicyService | None = None, **more: Any) -> Policy:
    """The tenant `acme` with these quotas on two versions of one model."""
    versions = ("2024-06-01", "2024-07-15")
    endpoints = (Endpoint(address="127.0.0.1", port=9),)
    values: dict[str, Any] = {
        "listener": Listener(),
        "gateways": Gateways(max_count=4),
        "signals": SignalPolicy(),
        "models": (Model(name="gpt-4-turbo", versions=versions, default_version=versions[1]),),
        "pools": tuple(Pool(model="gpt-4-turbo", version=v, endpoints=endpoints) for v in versions),
        "routes": (Route(id="chat", pattern="/v1/chat/completions", models=("gpt-4-turbo",)),),
        "tenants": (Tenant(id="acme", quotas=quotas),),
        "keys": (),
        "policy_service": service or PolicyService(port=0),
    }
    return Policy(**(values | more))


def daily(tokens: int, pool: str = OLDER) -> Quota:
    return Quota(model_version=pool, tokens=tokens, period="daily")


def monthly(tokens: int, pool: str = OLDER) -> Quota:
    return Quota(model_version=pool, tokens=tokens, period="monthly")
