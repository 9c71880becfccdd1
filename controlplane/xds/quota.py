"""The policy service -> the filter that asks it about LLM-token quotas, and the cluster it is reached by.

The filter stands behind the local rate limit and has two questions, each of one descriptor whose entries
are `op`, `tenant`, `pool`, `route`, `id`. `reserve` asks before the request goes on, with the estimate;
`settle` tells at the end of the stream, whatever ended it, what was used. Both amounts are dynamic metadata
of the limits script. Where it wrote none, there is no question: only requests with a quota cost a call.

A service that does not answer within the time-out lets requests pass. What the service itself does without
its store is its own affair, so Envoy waits longer than the service waits for its store.
"""

from __future__ import annotations

from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType, ClusterDnsLookupFamily
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HeaderValue,
    HeaderValueOption,
    RuntimeFractionalPercent,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.config.ratelimit.v3 import RateLimitServiceConfig
from envoy_data_plane.envoy.config.route.v3 import (
    RateLimit,
    RateLimitAction,
    RateLimitActionGenericKey,
    RateLimitActionRequestHeaders,
    RateLimitHitsAddend,
)
from envoy_data_plane.envoy.extensions.filters.http.ratelimit.v3 import RateLimit as RateLimitFilter
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType

from controlplane.model.policy import PolicyService
from controlplane.xds import codec, names
from controlplane.xds.cluster import UPSTREAM_HTTP, circuit_breakers, is_ip, socket_address, upstream_http
from controlplane.xds.ratelimit import from_metadata

_BEYOND_STORE_S = 0.03
_CALLS_MAX = 65_536


def quota_filter(service: PolicyService) -> RateLimitFilter:
    """The filter; a part of the listener, so of `service` only the time-out is in it."""
    return RateLimitFilter(
        domain=names.QUOTA_DOMAIN,
        timeout=timedelta(seconds=service.timeout_s + _BEYOND_STORE_S),
        failure_mode_deny=False,
        filter_enforced=RuntimeFractionalPercent(
            runtime_key=names.RUNTIME_ENFORCED, default_value=_ALL
        ),  # observe mode asks and counts, and refuses nothing
        rate_limited_as_resource_exhausted=True,
        disable_x_envoy_ratelimited_header=True,
        response_headers_to_add=[
            HeaderValueOption(header=HeaderValue(key=names.QUOTA_HEADER, value="1")),
        ],
        rate_limit_service=RateLimitServiceConfig(
            transport_api_version=ApiVersion.V3,
            grpc_service=GrpcService(envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=names.POLICY_CLUSTER)),
        ),
        rate_limits=[_question("reserve"), _question("settle", at_end=True)],
    )


_ALL = FractionalPercent(numerator=100, denominator=FractionalPercentDenominatorType.HUNDRED)


def _question(op: str, *, at_end: bool = False) -> RateLimit:
    """Skipped as a whole when the metadata named after `op` is no number."""
    return RateLimit(
        actions=[
            RateLimitAction(generic_key=RateLimitActionGenericKey(descriptor_key="op", descriptor_value=op)),
            from_metadata("tenant", "tenant"),
            from_metadata("pool", "model_version"),
            from_metadata("route", "route"),
            RateLimitAction(
                request_headers=RateLimitActionRequestHeaders(header_name="x-request-id", descriptor_key="id")
            ),
        ],
        hits_addend=RateLimitHitsAddend(format=f"%DYNAMIC_METADATA({names.METADATA}:{op})%"),
        apply_on_stream_done=at_end,
    )


def policy_cluster(service: PolicyService) -> Cluster:
    """Where the service listens."""
    fixed = is_ip(service.address)
    return Cluster(
        name=names.POLICY_CLUSTER,
        connect_timeout=timedelta(seconds=1),
        type=ClusterDiscoveryType.STATIC if fixed else ClusterDiscoveryType.STRICT_DNS,
        dns_lookup_family=ClusterDnsLookupFamily.AUTO if fixed else ClusterDnsLookupFamily.V4_PREFERRED,
        circuit_breakers=circuit_breakers(_CALLS_MAX),
        typed_extension_protocol_options={UPSTREAM_HTTP: codec.pack(upstream_http(http2=True))},
        load_assignment=ClusterLoadAssignment(
            cluster_name=names.POLICY_CLUSTER,
            endpoints=[
                LocalityLbEndpoints(
                    lb_endpoints=[
                        LbEndpoint(endpoint=Endpoint(address=socket_address(service.address, service.port)))
                    ]
                )
            ],
        ),
    )
