"""The operator's paths -> one RouteConfiguration.

Routes carry no limits and no tables (both would be reset, or copied for each request): a route has a name,
which is what the scripts know it by, and time-outs that let a stream run. Which pool serves a request is a
header that the limits script writes. Answers without a model server are direct: OPTIONS, the model list,
and the last word for unknown paths.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.config.route.v3 import (
    DirectResponseAction,
    FilterConfig,
    HeaderMatcher,
    Route,
    RouteAction,
    RouteActionMaxStreamDuration,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.http.cors.v3 import CorsPolicy
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.google.protobuf import Any

from controlplane.model import policy
from controlplane.model.policy import IdentityMode, ModelFrom
from controlplane.xds import codec, names, replies

_AFTER_IDENTITY = (names.BODY_FILTER, names.LIMITS_FILTER, names.RATE_LIMIT_FILTER, names.QUOTA_FILTER)
_OWN_FILTERS = (names.IDENTITY_FILTER, *_AFTER_IDENTITY)
_NOT_TOWARD_MODELS = [  # a compressed answer cannot be read on the way, and the pool is our own affair
    "accept-encoding",
    names.POOL_HEADER,
]


def route_configuration(
    routes: Sequence[policy.Route],
    models: Sequence[policy.Model],
    cors_allow_origins: Sequence[str],
    request_bytes_max: int,
) -> RouteConfiguration:
    """OPTIONS first, then the operator's routes in their order, then 404.

    A body is held until its model is known. Over HTTP/1 it may be as long as the listener's buffer; over
    HTTP/2 only as long as a stream's window, unless the limit is said here.
    """
    return RouteConfiguration(
        name=names.ROUTE_CONFIG_NAME,
        validate_clusters=False,
        virtual_hosts=[
            VirtualHost(
                name=names.ROUTE_CONFIG_NAME,
                domains=["*"],
                routes=[
                    *_preflight(cors_allow_origins),
                    _options(),
                    *(route(entry, models) for entry in routes),
                    _not_found(),
                ],
                typed_per_filter_config=_cors(cors_allow_origins),
                request_body_buffer_limit=request_bytes_max,
            )
        ],
    )


def route(entry: policy.Route, models: Sequence[policy.Model]) -> Route:
    """One path of the operator. A free path without models is answered with the list of models."""
    if entry.free and not entry.models:
        off = _OWN_FILTERS if entry.identity is IdentityMode.NONE else _AFTER_IDENTITY
        return _direct(entry.id, _match(entry.pattern), 200, _model_list(models), off=off)
    return Route(
        name=entry.id,
        match=_match(entry.pattern),
        route=RouteAction(
            cluster_header=names.POOL_HEADER,
            timeout=timedelta(0),  # the default of 15 s would cut a running stream
            idle_timeout=timedelta(seconds=entry.idle_timeout_s),
            max_stream_duration=RouteActionMaxStreamDuration(
                max_stream_duration=timedelta(seconds=entry.max_stream_duration_s)
            ),
        ),
        request_headers_to_remove=list(_NOT_TOWARD_MODELS),
        typed_per_filter_config=_off(_unused_filters(entry)),
    )


def _unused_filters(entry: policy.Route) -> list[str]:
    unused = []
    if entry.model_from is not ModelFrom.BODY:
        unused.append(names.BODY_FILTER)
    if entry.free:
        unused += [names.RATE_LIMIT_FILTER, names.QUOTA_FILTER]
    return unused


def _match(pattern: str) -> RouteMatch:
    """`/v1/x` is exact; `/v1/x/*` is /v1/x and everything below; `/*` is everything."""
    if not pattern.endswith("/*"):
        return RouteMatch(path=pattern)
    prefix = pattern[: -len("/*")]
    return RouteMatch(path_separated_prefix=prefix) if prefix else RouteMatch(prefix="/")


def _preflight(cors_allow_origins: Sequence[str]) -> list[Route]:
    """What the CORS filter answers.

    It overlooks direct responses, hence a cluster, and one that does not exist: should a preflight ever pass
    the filter, it reaches nobody.
    """
    if not cors_allow_origins:
        return []
    asks = ("origin", "access-control-request-method")
    present = [HeaderMatcher(name=name, present_match=True) for name in asks]
    return [
        Route(
            name="preflight",
            match=RouteMatch(prefix="/", headers=[_is_options(), *present]),
            route=RouteAction(cluster="answered-by-cors"),
            typed_per_filter_config=_off(_OWN_FILTERS),
        )
    ]


def _options() -> Route:
    """Any other OPTIONS: 204 for everybody, never charged."""
    return _direct("options", RouteMatch(prefix="/", headers=[_is_options()]), 204, None)


def _is_options() -> HeaderMatcher:
    return HeaderMatcher(name=":method", string_match=StringMatcher(exact="OPTIONS"))


def _not_found() -> Route:
    return _direct("not-found", RouteMatch(prefix="/"), 404, replies.body(replies.NOT_FOUND))


def _direct(
    name: str, match: RouteMatch, status: int, body: str | None, *, off: Sequence[str] = _OWN_FILTERS
) -> Route:
    """An answer of Envoy's own; the filters in `off` have no say in it."""
    return Route(
        name=name,
        match=match,
        direct_response=DirectResponseAction(
            status=status, body=None if body is None else DataSource(inline_string=body)
        ),
        response_headers_to_add=[] if body is None else [_json_content()],
        typed_per_filter_config=_off(off),
    )


def _json_content() -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key="content-type", value="application/json"),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _model_list(models: Sequence[policy.Model]) -> str:
    """The body of OpenAI's GET /v1/models: names, and `name:version` for a pinned version."""
    ids = sorted({model.name for model in models} | {f"{m.name}:{v}" for m in models for v in m.versions})
    entries = [{"id": id, "object": "model", "created": 0, "owned_by": "tidegate"} for id in ids]
    return json.dumps({"object": "list", "data": entries}, separators=(",", ":"))


def _off(filters: Sequence[str]) -> dict[str, Any]:
    """Filters a route does without, in a fixed order."""
    return {name: codec.pack(FilterConfig(disabled=True)) for name in sorted(filters)}


def _cors(origins: Sequence[str]) -> dict[str, Any]:
    if not origins:
        return {}
    matchers = [
        StringMatcher(safe_regex=RegexMatcher(regex=".*")) if origin == "*" else StringMatcher(exact=origin)
        for origin in sorted(origins)
    ]
    cors = CorsPolicy(
        allow_origin_string_match=matchers,
        allow_methods="GET, POST, OPTIONS",
        allow_headers="authorization, content-type, x-api-key, x-request-id, x-env",
        expose_headers="retry-after, ratelimit, ratelimit-policy, x-request-id",
        max_age="600",
        forward_not_matching_preflights=False,
    )
    return {"envoy.filters.http.cors": codec.pack(cors)}
