"""A pool of model servers -> an Envoy Cluster.

The cluster is named after the pool (`model:version`), so that a script can choose it by header. Envoy
replaces the colon in stat names and cuts a cluster's label at the first dot; `stat_name` is what survives
both, and the bootstrap's tag rules read it back as one label.

Thresholds here are generous and static: what drifts is pushed by RTDS, because a changed Cluster is rebuilt
by Envoy and loses its connections.
"""

from __future__ import annotations

import ipaddress
from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterDiscoveryType,
    ClusterDnsLookupFamily,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    AggregatedConfigSource,
    ApiVersion,
    ConfigSource,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    KeepaliveSettings,
    RoutingPriority,
    SocketAddress,
    TcpKeepalive,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptions as UpstreamHttp
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptionsExplicitHttpConfig

from controlplane.model.policy import Pool
from controlplane.model.poolstat import stat_name
from controlplane.xds import codec

UPSTREAM_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_CONNECTION_IDLE = timedelta(seconds=60)  # below the 65 s and more at which model servers close
_CONNECTIONS_MAX = 65_536
_RETRIES_MAX = 1024


def ads() -> ConfigSource:
    """Whatever this configures comes over the one aggregated stream."""
    return ConfigSource(ads=AggregatedConfigSource(), resource_api_version=ApiVersion.V3)


def cluster(pool: Pool) -> Cluster:
    """The Cluster of `pool`: endpoints by EDS, or names that Envoy resolves itself."""
    message = Cluster(
        name=pool.id,
        alt_stat_name=stat_name(pool.id),
        connect_timeout=timedelta(seconds=pool.connect_timeout_s),
        lb_policy=ClusterLbPolicy.LEAST_REQUEST,
        circuit_breakers=circuit_breakers(pool.max_requests),
        upstream_connection_options=UpstreamConnectionOptions(
            tcp_keepalive=TcpKeepalive(keepalive_probes=3, keepalive_time=30, keepalive_interval=5)
        ),
        typed_extension_protocol_options={UPSTREAM_HTTP: codec.pack(upstream_http(http2=pool.http2))},
    )
    if pool.dns:
        message.type = ClusterDiscoveryType.STRICT_DNS
        message.dns_lookup_family = ClusterDnsLookupFamily.V4_PREFERRED
        message.load_assignment = _named_endpoints(pool)
    else:
        message.type = ClusterDiscoveryType.EDS
        message.eds_cluster_config = ClusterEdsClusterConfig(eds_config=ads())
    return message


def circuit_breakers(max_requests: int) -> CircuitBreakers:
    """At most `max_requests` in flight; of the rest so many that it never binds."""
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                priority=priority,
                max_connections=_CONNECTIONS_MAX,
                max_pending_requests=_CONNECTIONS_MAX,
                max_requests=max_requests,
                max_retries=_RETRIES_MAX,
                track_remaining=True,
            )
            for priority in (RoutingPriority.DEFAULT, RoutingPriority.HIGH)
        ]
    )


def upstream_http(*, http2: bool) -> UpstreamHttp:
    """How an upstream is spoken to."""
    if http2:
        protocol = HttpProtocolOptionsExplicitHttpConfig(
            http2_protocol_options=Http2ProtocolOptions(
                connection_keepalive=KeepaliveSettings(
                    interval=timedelta(seconds=30), timeout=timedelta(seconds=5)
                )
            )
        )
    else:
        protocol = HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=Http1ProtocolOptions())
    return UpstreamHttp(
        common_http_protocol_options=HttpProtocolOptions(idle_timeout=_CONNECTION_IDLE),
        explicit_http_config=protocol,
    )


def _named_endpoints(pool: Pool) -> ClusterLoadAssignment:
    """STRICT_DNS takes every address of every name."""
    return ClusterLoadAssignment(
        cluster_name=pool.id,
        endpoints=[
            LocalityLbEndpoints(
                lb_endpoints=[
                    LbEndpoint(endpoint=Endpoint(address=socket_address(member.address, member.port)))
                    for member in sorted(pool.endpoints, key=lambda member: (member.address, member.port))
                ]
            )
        ],
    )


def is_ip(host: str) -> bool:
    """Whether `host` needs no resolving."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def socket_address(address: str, port: int) -> Address:
    """An address and port as Envoy writes them."""
    return Address(socket_address=SocketAddress(address=address, port_value=port))
