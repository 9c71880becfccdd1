"""Tenants, checked -> their part of a Policy: shares, limits per window and keys. Pure.

What a tenant says about a model that does not exist is left out here: `lint` refused it when it was new, so
it can only come from a last good version whose model has since gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controlplane.config.compile_main import pool_named, selector, window_limit
from controlplane.config.entry import Entry
from controlplane.config.schema.tenant import Share
from controlplane.model.policy import (
    IdentityMode,
    Key,
    ModelFrom,
    OnStoreFailure,
    Policy,
    Pool,
    Priority,
    Quota,
    Route,
    SourceRef,
    Tenant,
    TenantShare,
    WindowLimit,
)

_SHARE_FIELDS = {
    "weight": "weight",
    "guarantee": "guarantee_per_s",
    "limit": "ceiling_per_s",
    "pin": "pin_per_s",
}


def with_tenants(main: Policy, entries: Sequence[Entry]) -> Policy:
    """`main` (from `compile_main`) with these tenants. The order of `entries` does not matter."""
    ordered = sorted(entries, key=lambda entry: entry.id)
    tenants, windows, keys = [], list(main.windows), []
    served = route_pools(main)
    shared = [window for window in main.windows if window.tenant_id is None]
    own: dict[str, list[WindowLimit]] = {}
    for window in main.windows:
        if window.tenant_id is not None:
            own.setdefault(window.tenant_id, []).append(window)
    for entry in ordered:
        its_windows = tenant_windows(entry, main)
        windows += its_windows
        tenant = tenant_of(entry)
        tenants.append(replace(tenant, quotas=_known_quotas(tenant, main)))
        keys += tenant_keys(main, tenant, served, [*shared, *own.get(entry.id, ()), *its_windows])
    return replace(
        main,
        tenants=tuple(tenants),
        windows=tuple(sorted(windows, key=lambda window: window.name)),
        keys=tuple(sorted(keys, key=lambda key: key.id)),
    )


def tenant_of(entry: Entry) -> Tenant:
    """The tenant itself, its shares complete for every scope it mentions."""
    spec = entry.spec
    return Tenant(
        id=spec.id,
        priority=Priority(spec.priority),
        key_digests=entry.digests,
        jwt_values=tuple(sorted(set(spec.identity.jwt))),
        share=_share(TenantShare(), spec),
        shares=_shares(spec.overrides, _share(TenantShare(), spec)),
        models=None if spec.models is None else tuple(sorted(set(spec.models))),
        quotas=tuple(
            Quota(
                model_version=line.model_version,
                tokens=line.tokens,
                period=period,
                time_zone=spec.quotas.time_zone,
            )
            for period, lines in (("daily", spec.quotas.daily), ("monthly", spec.quotas.monthly))
            for line in sorted(lines, key=lambda line: line.model_version)
        ),
        on_store_failure=OnStoreFailure(spec.on_store_failure) if spec.on_store_failure else None,
        ref=SourceRef(file=entry.file, line=entry.line),
    )


def _known_quotas(tenant: Tenant, main: Policy) -> tuple[Quota, ...]:
    """Its quotas of model versions that exist, each under the version's full name."""
    named = ((quota, pool_named(quota.model_version, main.pools)) for quota in tenant.quotas)
    return tuple(replace(quota, model_version=pool) for quota, pool in named if pool is not None)


def _share(base: TenantShare, given: Share) -> TenantShare:
    """`given` over `base`, field by field."""
    values = {
        ours: value for theirs, ours in _SHARE_FIELDS.items() if (value := getattr(given, theirs)) is not None
    }
    return replace(base, **values) if values else base


def _shares(overrides: Mapping[str, Share], general: TenantShare) -> dict[str, TenantShare]:
    shares: dict[str, TenantShare] = {}
    for scope in sorted(overrides):
        model, _, version = scope.partition(":")
        base = _share(general, overrides[model]) if version and model in overrides else general
        shares[scope] = _share(base, overrides[scope])
    return shares


def share_in(tenant: Tenant, pool: Pool) -> TenantShare:
    """What `tenant` has of `pool`: the most specific scope wins."""
    return tenant.shares.get(pool.id) or tenant.shares.get(pool.model) or tenant.share


def tenant_windows(entry: Entry, main: Policy) -> list[WindowLimit]:
    """The tenant's own limits per window; they never reach another tenant."""
    windows = []
    for (name, window, _), line in zip(entry.windows(), entry.window_lines, strict=True):
        match = selector(window) | {"tenant_id": entry.id}
        if version := match.get("model_version"):
            match["model_version"] = pool_named(version, main.pools) or version
        windows.append(window_limit(name, window, match, SourceRef(file=entry.file, line=line)))
    return windows


def route_pools(main: Policy) -> list[tuple[Route, list[Pool]]]:
    """Each route that is limited, with the model versions a request on it can mean."""
    limited = [route for route in main.routes if not route.free]
    return [(route, [pool for pool in main.pools if serves(main, route, pool)]) for route in limited]


def serves(main: Policy, route: Route, pool: Pool) -> bool:
    """True when a request on `route` can mean `pool`."""
    if pool.model not in route.models:
        return False
    if route.model_from is not ModelFrom.FIXED or route.fixed_model is None:
        return True
    if ":" in route.fixed_model:
        return route.fixed_model == pool.id
    default = next(model.default_version for model in main.models if model.name == pool.model)
    return route.fixed_model == pool.model and pool.version == default


def may_use(tenant: Tenant, pool: Pool) -> bool:
    """True when the tenant's list of models has `pool`."""
    return tenant.models is None or pool.model in tenant.models or pool.id in tenant.models


def tenant_keys(
    main: Policy,
    tenant: Tenant,
    served: Sequence[tuple[Route, Sequence[Pool]]],
    windows: Sequence[WindowLimit],
) -> list[Key]:
    """Every (route, tenant, model version) of `tenant`. `windows` are those that may concern it."""
    keys = []
    for route, pools in served:
        if route.identity is IdentityMode.NONE and tenant.id != main.default_tenant:
            continue
        for pool in pools:
            if not may_use(tenant, pool):
                continue
            share = share_in(tenant, pool)
            keys.append(
                Key(
                    route=route.id,
                    tenant=tenant.id,
                    pool=pool.id,
                    priority=tenant.priority,
                    weight=share.weight,
                    guarantee_per_s=share.guarantee_per_s,
                    ceiling_per_s=share.ceiling_per_s,
                    pin_per_s=share.pin_per_s,
                    windows=applying(windows, route, tenant.id, pool.id),
                )
            )
    return keys


def applying(windows: Sequence[WindowLimit], route: Route, tenant: str, pool: str) -> tuple[str, ...]:
    """Names of the windows that match one key, sorted."""
    if not windows:
        return ()
    return tuple(
        sorted(
            window.name
            for window in windows
            if window.tenant_id in (None, tenant)
            and window.path in (None, route.pattern)
            and window.model_version in (None, pool)
        )
    )
