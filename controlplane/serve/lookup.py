"""What a person typed in, the limit that was meant out, or what comes close to it. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.model.policy import Key, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nothing has that name. `close` are names that come near, best first, or all there are."""

    field: str  # tenant | route | model_version
    given: str
    close: tuple[str, ...]
    message: str


def find_key(policy: Policy, *, tenant: str, route: str, model_version: str) -> Key | Unknown:
    """The key of a tenant, a route (id or pattern) and a model version (or a model: its default version)."""
    pool = _pool_id(policy, model_version)
    routes = [item.id for item in policy.routes if route in (item.id, item.pattern)]
    if tenant not in {item.id for item in policy.tenants}:
        return _unknown("tenant", tenant, [item.id for item in policy.tenants])
    if not routes:
        return _unknown("route", route, _route_names(policy))
    if pool not in {item.id for item in policy.pools}:
        return _unknown("model_version", model_version, [item.id for item in policy.pools])
    for key in policy.keys:
        if key.tenant == tenant and key.pool == pool and key.route in routes:
            return key
    return _not_allowed(policy, tenant, routes, pool)


def _pool_id(policy: Policy, model_version: str) -> str:
    defaults = {model.name: f"{model.name}:{model.default_version}" for model in policy.models}
    return defaults.get(model_version, model_version)


def _route_names(policy: Policy) -> list[str]:
    return [name for route in policy.routes for name in dict.fromkeys((route.id, route.pattern))]


def _unknown(field: str, given: str, names: Sequence[str]) -> Unknown:
    close = difflib.get_close_matches(given, names, n=5, cutoff=0.5)
    close += [name for name in names if given and given.lower() in name.lower() and name not in close]
    close = close[:5] or list(names[:5])
    hint = f"; did you mean {', '.join(close)}?" if close else "; none is configured"
    return Unknown(
        field=field,
        given=given,
        close=tuple(close),
        message=f"no {field.replace('_', ' ')} {given!r}{hint}",
    )


def _not_allowed(policy: Policy, tenant: str, routes: Sequence[str], pool: str) -> Unknown:
    """All three names exist, but no key joins them."""
    has = sorted({f"{key.route} {key.pool}" for key in policy.keys if key.tenant == tenant})
    listed = ", ".join(has[:5]) + (", ..." if len(has) > 5 else "")
    has_text = f"it has: {listed}" if has else "it may use none"
    return Unknown(
        field="model_version",
        given=pool,
        close=tuple(has[:5]),
        message=f"tenant {tenant!r} has no limit for {pool!r} on route {routes[0]!r}: {has_text}",
    )
