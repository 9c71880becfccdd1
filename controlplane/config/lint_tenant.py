"""What is wrong with one tenant, given the main file. A tenant with an error does not take effect."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator, Mapping, Sequence

from controlplane.config.compile_main import pool_named
from controlplane.config.compile_tenants import (
    may_use,
    share_in,
    tenant_keys,
    tenant_of,
    tenant_windows,
)
from controlplane.config.entry import Entry
from controlplane.config.lint_window import WINDOWS_MAX, Served, unknown_pool, unknown_scope, window_findings
from controlplane.config.problem import PathParts, Problem, Severity
from controlplane.decide.burst import slowest_rate_per_s
from controlplane.model.policy import Policy, Pool, Tenant, TenantShare, WindowLimit


def tenant_problems(entry: Entry, main: Policy, served: Served) -> list[Problem]:
    """Every problem of `entry` that does not involve another tenant."""
    tenant = tenant_of(entry)
    problems = [
        *_references(entry, main),
        *_numbers(entry, tenant, main),
        *_identity(entry, main),
        *_quotas(entry, main),
    ]
    windows = tenant_windows(entry, main)
    problems += _windows(entry, windows, main, served)
    if not any(problem.severity is Severity.ERROR for problem in problems):
        problems += _keys(entry, tenant, main, served, windows)
    return problems


def _references(entry: Entry, main: Policy) -> Iterator[Problem]:
    tenant = tenant_of(entry)
    for index, scope in enumerate(entry.spec.models or ()):
        if unknown := unknown_scope(scope, main):
            yield entry.problem(("models", index), *unknown)
    for scope in entry.spec.overrides:
        if unknown := unknown_scope(scope, main):
            yield entry.problem(("overrides", scope), *unknown)
        elif not any(may_use(tenant, pool) for pool in main.pools if scope in (pool.id, pool.model)):
            yield entry.warning(
                ("overrides", scope), "has no effect: the tenant may not use it", "one of `models`"
            )


def _numbers(entry: Entry, tenant: Tenant, main: Policy) -> Iterator[Problem]:
    general: tuple[PathParts, TenantShare] = ((), tenant.share)
    scopes = [general, *((("overrides", scope), share) for scope, share in tenant.shares.items())]
    slowest = slowest_rate_per_s(main.gateways.max_count)
    for path, share in scopes:
        pools = [pool for pool in main.pools if share_in(tenant, pool) is share and may_use(tenant, pool)]
        given = {"guarantee": share.guarantee_per_s, "limit": share.ceiling_per_s, "pin": share.pin_per_s}
        if share.ceiling_per_s is not None and share.ceiling_per_s < share.guarantee_per_s:
            message = f"{share.ceiling_per_s:g} is below the guarantee of {share.guarantee_per_s:g}"
            yield entry.problem((*path, "limit"), message, "at least the guarantee")
        for field, value in given.items():
            if value and value < slowest:
                message = f"{value:g} requests/s is too slow to be enforced"
                yield entry.problem((*path, field), message, f"at least {slowest:.4g}, or 0")
        yield from _capacity(entry, path, given, pools)


def _capacity(
    entry: Entry, path: PathParts, given: Mapping[str, float | None], pools: Sequence[Pool]
) -> Iterator[Problem]:
    least = min(pools, key=lambda pool: (pool.rate.base_rate_per_s, pool.id), default=None)
    if least is None:
        return
    base = least.rate.base_rate_per_s
    for field in ("limit", "pin"):
        value = given[field]
        if value is not None and value > base:
            message = f"{value:g} is above what {least.id} can serve"
            yield entry.warning((*path, field), message, f"at most {base:g} (`base_rate`)")
    if (value := given["guarantee"]) and value > base:
        message = f"{value:g} cannot be guaranteed: it is above what {least.id} can serve"
        yield entry.problem((*path, "guarantee"), message, f"at most {base:g} (`base_rate`)")


def _identity(entry: Entry, main: Policy) -> Iterator[Problem]:
    identity = entry.spec.identity
    if identity.jwt and not main.jwt:
        yield entry.warning(
            ("identity", "jwt"), "has no effect: `identity.jwt` of the main file has no provider"
        )
    if not identity.jwt and not entry.digests and entry.id != main.default_tenant:
        yield entry.warning(("identity",), "nobody can be recognised as this tenant", "`api_keys` or `jwt`")


def _quotas(entry: Entry, main: Policy) -> Iterator[Problem]:
    quotas = entry.spec.quotas
    for period in ("daily", "monthly"):
        seen: set[str] = set()
        for index, line in enumerate(getattr(quotas, period)):
            path: PathParts = ("quotas", period, index, "model_version")
            pool = pool_named(line.model_version, main.pools)
            if pool is None:
                yield entry.problem(path, *unknown_pool(line.model_version, main.pools))
            elif pool in seen:
                yield entry.problem(path, f"{pool} has two {period} quotas", "one")
            seen.add(pool or "")
    known = zoneinfo.available_timezones() if quotas.time_zone != "UTC" else None
    if known and quotas.time_zone not in known:
        yield entry.problem(
            ("quotas", "time_zone"), "not an IANA time zone", "a name such as Europe/Berlin, or UTC"
        )


def _windows(entry: Entry, windows: Sequence[WindowLimit], main: Policy, served: Served) -> Iterator[Problem]:
    names: set[str] = set()
    for (name, window, path), limit in zip(entry.windows(), windows, strict=True):
        if name in names:
            yield entry.problem(
                (*path, "name"), f"`{name}` is also the name of another limit", "a name of its own"
            )
        names.add(name)
        for finding in window_findings(window, limit, main, served):
            severity = Severity.ERROR if finding.is_error else Severity.WARNING
            yield entry.problem((*path, *finding.field), finding.message, finding.expected, severity=severity)
        wanted = window.match.tenant_id if window.match else None
        if wanted not in (None, entry.id):
            message = f"a tenant's file limits only that tenant, not `{wanted}`"
            yield entry.problem((*path, "match"), message, f"`{entry.id}`, or no tenant_id")


def _keys(
    entry: Entry, tenant: Tenant, main: Policy, served: Served, windows: Sequence[WindowLimit]
) -> Iterator[Problem]:
    if windows:
        shared = [window for window in main.windows if window.tenant_id in (None, entry.id)]
        for key in tenant_keys(main, tenant, served, [*shared, *windows]):
            if len(key.windows) > WINDOWS_MAX:
                message = f"{len(key.windows)} limits per window apply to {key.id}: {', '.join(key.windows)}"
                yield entry.problem((next(entry.windows())[2][0],), message, f"at most {WINDOWS_MAX}")
                return
    if not any(may_use(tenant, pool) for _, pools in served for pool in pools):
        yield entry.warning(("models",), "no route serves any model this tenant may use")
