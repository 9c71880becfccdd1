"""The operator's listener -> the one frozen Envoy Listener.

Its bytes depend on `policy.Listener`, the policy service's time-out and the closed script alone: not on
tenants, models, routes, keys or modes. Order of the filters: health check, CORS, JWT, identity (strips what
only we may say), body, limits (prices the request and chooses its pool), local rate limit, quota, router.
"""

from __future__ import annotations

from datetime import timedelta

import betterproto2
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    KeepaliveSettings,
    SocketAddress,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.filters.http.cors.v3 import Cors
from envoy_data_plane.envoy.extensions.filters.http.health_check.v3 import HealthCheck
from envoy_data_plane.envoy.extensions.filters.http.jwt_authn.v3 import JwtAuthentication
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerPathWithEscapedSlashesAction,
    HttpFilter,
    Rds,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher

from controlplane.model import policy
from controlplane.xds import codec, names
from controlplane.xds.accesslog import access_log
from controlplane.xds.body import json_to_metadata
from controlplane.xds.cluster import ads
from controlplane.xds.extensions import discovered, lua_default
from controlplane.xds.quota import quota_filter
from controlplane.xds.ratelimit import local_rate_limit
from controlplane.xds.replies import local_replies

_STREAMS_MAX = 100
_STREAM_WINDOW_BYTES = 64 * 1024
_CONNECTION_WINDOW_BYTES = 1024 * 1024


def listener(config: policy.Listener, service: policy.PolicyService, closed_script: str) -> Listener:
    """The listener of every gateway. `closed_script` answers 503 until the first scripts arrive."""
    return Listener(
        name=names.LISTENER_NAME,
        address=Address(socket_address=SocketAddress(address=config.address, port_value=config.port)),
        per_connection_buffer_limit_bytes=config.max_request_bytes,
        filter_chains=[
            FilterChain(
                name=names.LISTENER_NAME,
                filters=[
                    Filter(
                        name="envoy.filters.network.http_connection_manager",
                        typed_config=codec.pack(_connection_manager(config, service, closed_script)),
                    )
                ],
            )
        ],
    )


def _connection_manager(
    config: policy.Listener, service: policy.PolicyService, closed_script: str
) -> HttpConnectionManager:
    return HttpConnectionManager(
        stat_prefix=names.LISTENER_NAME,
        rds=Rds(config_source=ads(), route_config_name=names.ROUTE_CONFIG_NAME),
        http_filters=_filters(config, service, closed_script),
        access_log=[access_log()],
        local_reply_config=local_replies(),
        use_remote_address=True,
        generate_request_id=True,
        preserve_external_request_id=True,  # one id from client to model server
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action=HttpConnectionManagerPathWithEscapedSlashesAction.UNESCAPE_AND_REDIRECT,
        request_headers_timeout=timedelta(seconds=15),
        common_http_protocol_options=HttpProtocolOptions(idle_timeout=timedelta(seconds=120)),
        http2_protocol_options=Http2ProtocolOptions(
            max_concurrent_streams=_STREAMS_MAX,
            initial_stream_window_size=_STREAM_WINDOW_BYTES,
            initial_connection_window_size=_CONNECTION_WINDOW_BYTES,
            connection_keepalive=KeepaliveSettings(
                interval=timedelta(seconds=30), timeout=timedelta(seconds=10)
            ),
        ),
    )


def _filters(config: policy.Listener, service: policy.PolicyService, closed_script: str) -> list[HttpFilter]:
    closed = lua_default(closed_script)
    return [
        _inline("envoy.filters.http.health_check", _health_check(config.health_path)),
        _inline("envoy.filters.http.cors", Cors()),
        discovered(names.JWT_FILTER, JwtAuthentication()),
        discovered(names.IDENTITY_FILTER, closed),
        _inline(names.BODY_FILTER, json_to_metadata()),
        discovered(names.LIMITS_FILTER, closed),
        _inline(names.RATE_LIMIT_FILTER, local_rate_limit()),
        _inline(names.QUOTA_FILTER, quota_filter(service)),
        _inline("envoy.filters.http.router", Router()),
    ]


def _inline(name: str, config: betterproto2.Message) -> HttpFilter:
    return HttpFilter(name=name, typed_config=codec.pack(config))


def _health_check(path: str) -> HealthCheck:
    """Answered by Envoy itself, before identity and limits: 200, or 503 while draining."""
    return HealthCheck(
        pass_through_mode=False,
        headers=[HeaderMatcher(name=":path", string_match=StringMatcher(exact=path))],
    )
