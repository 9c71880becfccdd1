"""`tidegate.yaml`, checked -> the part of a Policy that does not depend on tenants.

Pure; sorted where order means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlplane.config.compile_breaker import breaker_policy
from controlplane.config.document import Document
from controlplane.config.problem import PathParts
from controlplane.config.schema import MainFile
from controlplane.config.schema.limit import Window
from controlplane.config.schema.rate import RATE_FIELDS, Guards, Rate
from controlplane.config.schema.route import Route
from controlplane.config.schema.scalar import is_address
from controlplane.config.schema.server import PolicyServer, Redis
from controlplane.config.schema.signal import Prometheus, Signals
from controlplane.config.schema.upstream import Endpoint, Version
from controlplane.model import policy as words

CONTRACT_FACTOR = 0.4  # of the base rate, where no contract rate is given

Absolute = Callable[[str], str]


def compile_main(
    main: MainFile, document: Document, jwks: Mapping[str, str], directory: Path
) -> words.Policy:
    """A Policy without tenants and keys. `jwks` holds the text of each provider's key set, by provider."""
    pools = tuple(sorted(_pools(main, document), key=lambda pool: pool.id))
    routes = tuple(_route(main, index, document) for index in range(len(main.routes)))

    def absolute(name: str) -> str:
        return str(directory.absolute() / name)

    return words.Policy(
        listener=words.Listener(**main.listener.model_dump()),
        gateways=words.Gateways(
            min_count=main.gateways.min, max_count=main.gateways.max, stats_urls=tuple(main.gateways.stats)
        ),
        signals=_signals(main.signals, absolute),
        models=tuple(
            words.Model(
                name=name,
                versions=tuple(sorted(model.versions)),
                default_version=model.default_version or min(model.versions),
            )
            for name, model in sorted(main.models.items())
        ),
        pools=pools,
        routes=routes,
        tenants=(),
        keys=(),
        windows=tuple(sorted(main_windows(main, routes, pools, document), key=lambda window: window.name)),
        jwt=tuple(
            words.JwtProvider(
                name=name,
                issuer=provider.issuer,
                audiences=tuple(provider.audiences),
                jwks_json=jwks.get(name, ""),
                tenant_claim=provider.tenant_claim,
            )
            for name, provider in sorted(main.identity.jwt.items())
        ),
        mode=words.Mode(main.mode),
        freeze=main.freeze,
        default_tenant=main.default_tenant,
        cors_allow_origins=tuple(main.cors.allow_origins),
        server=_server(main, absolute),
        policy_service=_policy_service(main.policy, absolute),
    )


def route_id(route: Route) -> str:
    """The given id, or one made of the path: `/v1/models/*` is `v1-models-any`."""
    if route.id:
        return str(route.id)
    words_of = ("any" if part == "*" else part for part in route.path.split("/") if part)
    name = "-".join("".join(c if c.isalnum() or c in "._-" else "-" for c in part) for part in words_of)
    return name.lstrip("._-")[:64] or "root"


def rate_policy(default: Rate, own: Rate, ttft_slo_s: float | None) -> words.RatePolicy:
    """The version's own numbers over the defaults over the built-in ones, field by field."""
    given: dict[str, Any] = {
        ours: value
        for layer in (default, own)
        for theirs, ours in RATE_FIELDS.items()
        if (value := getattr(layer, theirs)) is not None
    }
    for name, kind in (("curve", words.Curve), ("signal", words.SignalChoice), ("base_mode", words.BaseMode)):
        if name in given:
            given[name] = kind(given[name])
    if ttft_slo_s is not None:
        given["ttft_slo_s"] = ttft_slo_s
    result = words.RatePolicy(**given, guards=_guards(default.guards, own.guards))
    if "contract_rate_per_s" in given:
        return result
    return replace(result, contract_rate_per_s=CONTRACT_FACTOR * result.base_rate_per_s)


def window_limit(
    name: str, window: Window, match: Mapping[str, str | None], ref: words.SourceRef
) -> words.WindowLimit:
    """The limit of one `Window`; `match` is its selector, completed by the place where it is written."""
    return words.WindowLimit(
        name=name,
        tokens=window.tokens,
        window_s=window.window_seconds,
        burst_tokens=max(1.0, window.tokens / 10) if window.burst is None else window.burst,
        key_fields=tuple(window.key_template.split(":")),
        unit=window.unit,
        tenant_id=match.get("tenant_id"),
        path=match.get("path"),
        model_version=match.get("model_version"),
        ref=ref,
    )


def selector(window: Window) -> dict[str, str | None]:
    """What `window` matches, by field; None matches everything."""
    return window.match.model_dump() if window.match else {}


def pool_named(name: str, pools: Sequence[words.Pool]) -> str | None:
    """The Pool.id of `model:version`, or of a version that only one model has."""
    ids = [pool.id for pool in pools if name in (pool.id, pool.version)]
    return ids[0] if len(ids) == 1 else None


def main_window_places(main: MainFile) -> list[tuple[str, Window, Route | None, PathParts]]:
    """Every window of the main file: its name, itself, the route it is written at, and where."""
    places: list[tuple[str, Window, Route | None, PathParts]] = []
    for index, window in enumerate(main.per_route_rate_limit):
        places.append((window.name or f"limit.{index}", window, None, ("per_route_rate_limit", index)))
    for number, route in enumerate(main.routes):
        for index, window in enumerate(route.per_route_rate_limit):
            name = window.name or f"{route_id(route)}.{index}"
            places.append((name, window, route, ("routes", number, "per_route_rate_limit", index)))
    return places


def main_windows(
    main: MainFile, routes: Sequence[words.Route], pools: Sequence[words.Pool], document: Document
) -> list[words.WindowLimit]:
    """The limits per window of the main file."""
    found = []
    for name, window, route, path in main_window_places(main):
        match = selector(window)
        if route is not None:
            match["path"] = route.path
        if version := match.get("model_version"):
            match["model_version"] = pool_named(version, pools) or version
        found.append(window_limit(name, window, match, _ref(document, path)))
    return found


def _pools(main: MainFile, document: Document) -> list[words.Pool]:
    pools = []
    for name, model in main.models.items():
        for version, spec in model.versions.items():
            slo = main.slos.get(f"{name}:{version}") or main.slos.get(name)
            pools.append(
                words.Pool(
                    model=name,
                    version=version,
                    endpoints=tuple(sorted(endpoints(spec), key=lambda e: (e.address, e.port))),
                    dns=uses_dns(spec),
                    http2=spec.http2,
                    engine=spec.engine,
                    model_label=spec.model_label,
                    rate=rate_policy(main.defaults.rate, spec.rate, slo.ttft_s if slo else None),
                    breaker=breaker_policy(main.defaults.breaker, spec.breaker, slo.ttft_s if slo else None),
                    connect_timeout_s=spec.connect_timeout_s,
                    max_requests=spec.max_requests,
                    ref=_ref(document, ("models", name, "versions", version)),
                )
            )
    return pools


def uses_dns(spec: Version) -> bool:
    """True when Envoy has to resolve names for this version."""
    named = any(not is_address(endpoint.address) for endpoint in spec.endpoints)
    return named if spec.dns is None else spec.dns


def endpoints(spec: Version) -> list[words.Endpoint]:
    """The endpoints with their metrics URLs; none is derived from a name: it may stand for many servers."""
    return [
        words.Endpoint(
            address=endpoint.address,
            port=endpoint.port,
            metrics_url=_metrics_url(spec, endpoint),
            pod=endpoint.pod,
            namespace=endpoint.namespace,
        )
        for endpoint in spec.endpoints
    ]


def _metrics_url(spec: Version, endpoint: Endpoint) -> str | None:
    if endpoint.metrics is False or (endpoint.metrics is None and uses_dns(spec)):
        return None
    if endpoint.metrics is not None:
        return str(endpoint.metrics)
    host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    return f"http://{host}:{endpoint.port}{spec.metrics_path}"


def _guards(default: Guards | None, own: Guards | None) -> words.Guards:
    given: dict[str, Any] = {
        name: value
        for layer in (default, own)
        if layer is not None
        for name, value in layer.model_dump(exclude_none=True).items()
    }
    return words.Guards(**given)


def _route(main: MainFile, index: int, document: Document) -> words.Route:
    spec = main.routes[index]
    fixed_name = spec.fixed_model.partition(":")[0] if spec.fixed_model else None
    if spec.models is not None:
        models = tuple(sorted(set(spec.models)))
    elif fixed_name:
        models = (fixed_name,)
    else:
        models = () if spec.free else tuple(sorted(main.models))
    return words.Route(
        id=route_id(spec),
        pattern=spec.path,
        models=models,
        model_from=words.ModelFrom(model_from(spec)),
        model_header=spec.model_header,
        fixed_model=spec.fixed_model,
        identity=words.IdentityMode(spec.identity),
        free=spec.free,
        unknown_model_status=spec.unknown_model_status,
        idle_timeout_s=spec.idle_timeout_s,
        max_stream_duration_s=spec.max_stream_duration_s,
        ref=_ref(document, ("routes", index)),
    )


def model_from(route: Route) -> str:
    """Where a route reads the model's name, said or implied."""
    if route.model_from:
        return route.model_from
    return "fixed" if route.fixed_model else "header" if route.model_header else "body"


def _signals(spec: Signals, absolute: Absolute) -> words.SignalPolicy:
    return words.SignalPolicy(
        source=spec.source,
        interval_s=spec.interval_s,
        timeout_s=spec.timeout_s,
        gpu_exporter_urls=tuple(sorted(spec.gpu_exporters)),
        prometheus=_prometheus(spec.prometheus, absolute) if spec.prometheus else None,
        catalogue_file=absolute(spec.catalogue) if spec.catalogue else None,
    )


def _prometheus(spec: Prometheus, absolute: Absolute) -> words.PrometheusPolicy:
    def file(name: str | None) -> str | None:
        return absolute(name) if name else None

    return words.PrometheusPolicy(
        url=spec.url,
        timeout_s=spec.timeout_s,
        headers=dict(spec.headers),
        query_params=dict(spec.query_params),
        method=spec.method,
        match=spec.match,
        matchers=spec.matchers or "",
        window_s=spec.window_s,
        lookback_s=spec.lookback_s,
        recording_rules=spec.recording_rules,
        basic_user=spec.basic.user if spec.basic else None,
        basic_password_file=file(spec.basic.password_file) if spec.basic else None,
        bearer_token_file=file(spec.bearer_token_file),
        ca_file=file(spec.ca_file),
        cert_file=file(spec.cert_file),
        key_file=file(spec.key_file),
    )


def _server(main: MainFile, absolute: Absolute) -> words.ServerPolicy:
    admin, xds = main.admin, main.xds
    return words.ServerPolicy(
        admin_address=admin.address,
        admin_port=admin.port,
        admin_token_file=absolute(admin.token_file) if admin.token_file else None,
        xds_address=xds.address,
        xds_port=xds.port,
        xds_cert_file=absolute(xds.tls.cert) if xds.tls else None,
        xds_key_file=absolute(xds.tls.key) if xds.tls else None,
        xds_ca_file=absolute(xds.tls.ca) if xds.tls and xds.tls.ca else None,
        xds_bind_node_id=xds.tls.bind_node_id if xds.tls else True,
    )


def _policy_service(spec: PolicyServer, absolute: Absolute) -> words.PolicyService:
    return words.PolicyService(
        address=spec.host or spec.address,
        port=spec.port,
        listen_address=spec.address,
        embedded=spec.embedded,
        store=words.StoreKind(spec.store),
        redis=_redis(spec.redis, absolute) if spec.redis else None,
        timeout_s=spec.timeout_ms / 1000,
        on_store_failure=words.OnStoreFailure(spec.on_store_failure),
    )


def _redis(spec: Redis, absolute: Absolute) -> words.RedisStore:
    return words.RedisStore(
        url=spec.url,
        username=spec.username,
        password_file=absolute(spec.password_file) if spec.password_file else None,
        ca_file=absolute(spec.ca_file) if spec.ca_file else None,
    )


def _ref(document: Document, path: PathParts) -> words.SourceRef:
    return words.SourceRef(file=document.name, line=document.line(path))
