"""What one field of `tidegate.yaml` alone does not show: references and contradictions."""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.config.compile_breaker import WARMUP_FACTOR, breaker_policy
from controlplane.config.compile_main import endpoints, main_window_places, rate_policy, uses_dns
from controlplane.config.draft import Draft
from controlplane.config.lint_route import route_problems
from controlplane.config.lint_window import unknown_scope
from controlplane.config.problem import PathParts, Problem
from controlplane.config.read import is_readable
from controlplane.config.schema.scalar import is_address
from controlplane.config.schema.upstream import Version
from controlplane.config.validate import nearest
from controlplane.decide.burst import slowest_rate_per_s


def main_problems(draft: Draft) -> Iterator[Problem]:
    """Everything that needs no tenant."""
    yield from _sockets(draft)
    yield from _files(draft)
    yield from _models(draft)
    yield from route_problems(draft)


def tenant_references(draft: Draft, tenants: frozenset[str]) -> Iterator[Problem]:
    """Tenants that the main file names and that no tenant file has."""
    name = draft.main.default_tenant
    if name is not None and name not in tenants:
        yield draft.error(("default_tenant",), *_no_tenant(name, tenants))
    for _, window, _, path in main_window_places(draft.main):
        wanted = window.match.tenant_id if window.match else None
        if wanted is not None and wanted not in tenants:
            yield draft.error((*path, "match"), *_no_tenant(wanted, tenants))


def _sockets(draft: Draft) -> Iterator[Problem]:
    main = draft.main
    if main.gateways.min > main.gateways.max:
        yield draft.error(("gateways", "min"), "more than `gateways.max`", f"at most {main.gateways.max}")
    used: dict[int, str] = {}
    for name in ("listener", "admin", "xds", "policy"):
        port = getattr(main, name).port
        if port and port in used:
            one, other = (name, used[port]) if name in main.model_fields_set else (used[port], name)
            yield draft.error((one, "port"), f"{port} is also the port of `{other}`", "a port of its own")
        used.setdefault(port, name)
    if not _is_loopback(main.admin.address) and main.admin.token_file is None:
        yield draft.warning(("admin", "address"), "open to the network without `token_file`")
    if not _is_loopback(main.xds.address) and (main.xds.tls is None or main.xds.tls.ca is None):
        yield draft.warning(("xds", "address"), "open to the network without mTLS (`tls` with `ca`)")
    if main.policy.store == "redis" and main.policy.redis is None:
        yield draft.error(("policy", "redis"), "is missing", "the store for `store: redis`")
    if main.policy.host is None and main.policy.address in ("0.0.0.0", "::"):
        message = f"{main.policy.address} is nothing that Envoys can connect to"
        yield draft.error(("policy", "address"), message, "`host` beside it")
    if not main.policy.embedded and main.policy.store == "memory":
        message = "`tidegate serve` could not see what another process counts in memory"
        yield draft.error(("policy", "embedded"), message, "`store: redis`, or `embedded: true`")
    if not main.policy.embedded and main.policy.port == 0:
        yield draft.error(("policy", "port"), "0 is known to the process alone", "a port, without `embedded`")
    if main.policy.store == "memory" and main.policy.redis is not None:
        yield draft.warning(("policy", "redis"), "not used with `store: memory`")
    if main.signals.source == "prometheus" and main.signals.prometheus is None:
        yield draft.error(("signals", "prometheus"), "is missing", "the backend for `source: prometheus`")
    if main.signals.source == "scrape" and main.signals.prometheus is not None:
        yield draft.warning(("signals", "prometheus"), "not used with `source: scrape`")


def _files(draft: Draft) -> Iterator[Problem]:
    main = draft.main
    named: list[tuple[PathParts, str]] = []
    if main.admin.token_file:
        named.append((("admin", "token_file"), main.admin.token_file))
    if main.xds.tls:
        named += [
            (("xds", "tls", key), value)
            for key in ("cert", "key", "ca")
            if (value := getattr(main.xds.tls, key))
        ]
    if prometheus := main.signals.prometheus:
        names = ("bearer_token_file", "ca_file", "cert_file", "key_file")
        found = {name: value for name in names if (value := getattr(prometheus, name))}
        named += [(("signals", "prometheus", name), value) for name, value in found.items()]
        if prometheus.basic:
            password = prometheus.basic.password_file
            named.append((("signals", "prometheus", "basic", "password_file"), password))
    if redis := main.policy.redis:
        files = {name: value for name in ("password_file", "ca_file") if (value := getattr(redis, name))}
        named += [(("policy", "redis", name), value) for name, value in files.items()]
    for path, name in named:
        if not is_readable(draft.directory / name):
            yield draft.warning(path, "there is no such file here", "a readable file")
    if main.signals.catalogue and not is_readable(draft.directory / main.signals.catalogue):
        yield draft.error(("signals", "catalogue"), "there is no such file", "a file of signal names")


def _models(draft: Draft) -> Iterator[Problem]:
    seen: dict[tuple[str, int], str] = {}
    for name, model in draft.main.models.items():
        path: PathParts = ("models", name)
        if model.default_version is None and len(model.versions) > 1:
            message = "is missing: it has several versions"
            yield draft.error(
                (*path, "default_version"), message, f"one of {', '.join(sorted(model.versions))}"
            )
        elif model.default_version is not None and model.default_version not in model.versions:
            close = nearest(model.default_version, model.versions)
            hint = f"; did you mean `{close}`?" if close else ""
            message = f"there is no version `{model.default_version}`{hint}"
            yield draft.error(
                (*path, "default_version"), message, f"one of {', '.join(sorted(model.versions))}"
            )
        for version, spec in model.versions.items():
            where = (*path, "versions", version)
            yield from _endpoints(draft, spec, where, f"{name}:{version}", seen)
            yield from _rate(draft, name, version, where)
            yield from _breaker(draft, name, version, where)
    for scope in draft.main.slos:
        if unknown := unknown_scope(scope, draft.policy):
            yield draft.error(("slos", scope), *unknown)


def _endpoints(
    draft: Draft, spec: Version, where: PathParts, pool: str, seen: dict[tuple[str, int], str]
) -> Iterator[Problem]:
    for index, endpoint in enumerate(spec.endpoints):
        path, place = (*where, "endpoints", index), (endpoint.address, endpoint.port)
        if seen.get(place) == pool:
            yield draft.error(path, "is listed twice", "every server once")
        elif place in seen:
            yield draft.warning(path, f"also serves {seen[place]}: two rates for one server")
        seen[place] = pool
        if spec.dns is False and not is_address(endpoint.address):
            yield draft.error(path, "is a name, but `dns` is false", "an IP address, or `dns: true`")
    if draft.main.signals.source == "scrape" and all(e.metrics_url is None for e in endpoints(spec)):
        why = "behind DNS names" if uses_dns(spec) else "with `metrics: false`"
        message = f"no metrics to scrape ({why}): its rate stays at `contract_rate`"
        yield draft.warning(
            (*where, "endpoints"), message, "a `metrics` URL, or `signals.source: prometheus`"
        )


def _rate(draft: Draft, model: str, version: str, where: PathParts) -> Iterator[Problem]:
    own, default = draft.main.models[model].versions[version].rate, draft.main.defaults.rate
    rate = rate_policy(default, own, None)

    def written(field: str) -> PathParts:
        return (*where, "rate", field) if getattr(own, field) is not None else ("defaults", "rate", field)

    if rate.contract_rate_per_s > rate.base_rate_per_s:
        message = f"{rate.contract_rate_per_s:g} is above the base rate of {model}:{version}"
        yield draft.error(written("contract_rate"), message, f"at most {rate.base_rate_per_s:g}")
    slowest = slowest_rate_per_s(draft.policy.gateways.max_count)
    for field, value in (("base_rate", rate.base_rate_per_s), ("contract_rate", rate.contract_rate_per_s)):
        if value < slowest:
            message = f"{value:g} requests/s is too slow to be enforced"
            yield draft.error(written(field), message, f"at least {slowest:.4g}")


def _breaker(draft: Draft, model: str, version: str, where: PathParts) -> Iterator[Problem]:
    """M13: a server that is still warming up must not be taken for a broken one."""
    own, default = draft.main.models[model].versions[version].breaker, draft.main.defaults.breaker
    made = breaker_policy(default, own, None)
    if made.enabled and made.strategy == "static" and not _has_slo(draft, model, version):
        path = (*where, "breaker") if own.strategy else ("defaults", "breaker")
        message = f"{model}:{version} has no SLO: no call of it is ever slow"
        yield draft.warning((*path, "strategy"), message, "`slos` for it, or another strategy")
    shortest_s = WARMUP_FACTOR * made.warmup_s
    if made.half_open_timeout_s < shortest_s:
        is_own = own.half_open_timeout_s is not None or default.half_open_timeout_s is None
        path = (*where, "breaker") if is_own else ("defaults", "breaker")
        message = (
            f"{made.half_open_timeout_s:g} s is too short for {model}:{version}, which warms up for"
            f" {made.warmup_s:g} s"
        )
        yield draft.error((*path, "half_open_timeout_s"), message, f"at least {shortest_s:g}")


def _has_slo(draft: Draft, model: str, version: str) -> bool:
    return model in draft.main.slos or f"{model}:{version}" in draft.main.slos


def _no_tenant(name: str, tenants: frozenset[str]) -> tuple[str, str]:
    close = nearest(name, tenants)
    hint = f"; did you mean `{close}`?" if close else ""
    return f"no tenant file has the tenant `{name}`{hint}", "a tenant's id"


def _is_loopback(address: str) -> bool:
    return address in ("localhost", "::1") or (is_address(address) and address.startswith("127."))
