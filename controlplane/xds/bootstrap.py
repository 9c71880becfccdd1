"""Where a gateway finds its control plane -> the Envoy bootstrap, as plain values to print as YAML.

Everything that serves traffic comes over ADS. Here is only what cannot: the node, the way to the control
plane, the fleet's own cluster (limits are divided among its members, and Envoy wants it static), how
statistics are labelled, and how much a gateway may take on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controlplane.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, RUNTIME, Snapshot
from controlplane.xds import codec, names
from controlplane.xds.cluster import is_ip

Plain = dict[str, Any]

_ADS: Plain = {"ads": {}, "resource_api_version": "V3"}
_DEFAULT_TAGS = (
    "envoy.grpc_bridge_method",
    "envoy.grpc_bridge_service",
    "envoy.http_conn_manager_prefix",
    "envoy.listener_address",
    "envoy.local_http_ratelimit_prefix",
    "envoy.rds_route_config",
    "envoy.response_code",
    "envoy.response_code_class",
    "envoy.ssl_cipher",
    "envoy.virtual_cluster",
    "envoy.virtual_host",
    "envoy.worker_id",
)
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
TTFB_BUCKETS_MS = (
    *(5, 10, 25, 50, 100, 150, 200, 300, 400, 500, 600, 700, 800, 900, 1000),
    *(1500, 2000, 3000, 5000, 10_000, 30_000, 60_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """mTLS toward the control plane: paths on the gateway's machine."""

    cert: str
    key: str
    ca: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """One gateway and its way to the control plane."""

    node_id: str
    xds_host: str = "127.0.0.1"
    xds_port: int = 18000
    admin_address: str = "127.0.0.1"
    admin_port: int = 9901
    tls: TlsFiles | None = None  # None: plaintext, for a control plane on the same machine
    sotw: bool = False  # state-of-the-world instead of delta
    downstream_connections_max: int = 50_000


def bootstrap(gateway: Gateway) -> Plain:
    """The bootstrap of a gateway that is told everything else by its control plane."""
    return {
        **_common(gateway),
        "dynamic_resources": {
            "ads_config": {
                "api_type": "GRPC" if gateway.sotw else "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [{"envoy_grpc": {"cluster_name": names.XDS_CLUSTER}}],
            },
            "lds_config": _ADS,
            "cds_config": _ADS,
        },
        "layered_runtime": {
            "layers": [
                {
                    "name": names.RUNTIME_LAYER,
                    "rtds_layer": {"name": names.RUNTIME_LAYER, "rtds_config": _ADS},
                },
                {"name": "admin", "admin_layer": {}},
            ]
        },
        "static_resources": {"clusters": [_xds_cluster(gateway), _gateways_cluster(None)]},
    }


def static(snapshot: Snapshot, gateway: Gateway) -> Plain:
    """The same resources as one static configuration, for `envoy --mode validate` and for reading."""
    decoded = {
        kind: {name: codec.decode(kind, found.body) for name, found in sorted(snapshot.of_type(kind).items())}
        for kind in (CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, RUNTIME)
    }
    members = decoded[ENDPOINT]
    clusters = [_with_members(entry, members) for entry in decoded[CLUSTER].values()]
    return {
        **_common(gateway),
        "layered_runtime": {
            "layers": [
                {"name": name, "static_layer": layer.get("layer", {})}
                for name, layer in decoded[RUNTIME].items()
            ]
        },
        "static_resources": {
            "listeners": [
                _inlined(entry, decoded[ROUTE], decoded[EXTENSION]) for entry in decoded[LISTENER].values()
            ],
            "clusters": [*clusters, _gateways_cluster(members.get(names.GATEWAYS_CLUSTER))],
        },
    }


def _common(gateway: Gateway) -> Plain:
    return {
        "node": {"id": gateway.node_id, "cluster": "tidegate"},
        "admin": {"address": _address(gateway.admin_address, gateway.admin_port)},
        "cluster_manager": {"local_cluster_name": names.GATEWAYS_CLUSTER},
        "stats_flush_interval": "1s",
        "stats_config": {
            "use_all_default_tags": False,
            "stats_tags": _stats_tags(),
            "histogram_bucket_settings": [
                {"match": {"contains": "tg_ttfb_ms"}, "buckets": [float(edge) for edge in TTFB_BUCKETS_MS]}
            ],
        },
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.resource_monitors."
                        "downstream_connections.v3.DownstreamConnectionsConfig",
                        "max_active_downstream_connections": gateway.downstream_connections_max,
                    },
                }
            ]
        },
    }


def _stats_tags() -> list[Plain]:
    """Turn the parts of our stat names into labels.

    Envoy's own rule for cluster names stops at the first dot, and the rule that comes first wins, so the
    default rules are named one by one, after ours. `tg_requests~route~tenant~model:version~outcome`,
    with `~rule` behind it on what a limit refused, `tg_ttfb_ms~model:version` and
    `tg_usage~model:version~outcome` come from the limits script, `cluster.model~version~.` from the
    clusters' stat names. Group 1 leaves the name, group 2 is the label.
    """
    part = "~[^~]+"
    labels = ("route", "tenant", "model_version")
    tags = [
        {"tag_name": label, "regex": rf"\.tg_requests{part * index}(~([^~]+))~"}
        for index, label in enumerate(labels)
    ]
    return [
        *tags,
        {"tag_name": "outcome", "regex": rf"\.tg_requests{part * len(labels)}(~([^~]+))({part})?$"},
        {"tag_name": "rule", "regex": rf"\.tg_requests{part * (len(labels) + 1)}(~([^~]+))$"},
        {"tag_name": "model_version", "regex": r"\.tg_ttfb_ms(~([^~]+))$"},
        {"tag_name": "model_version", "regex": r"\.tg_usage(~([^~]+))~"},
        {"tag_name": "outcome", "regex": r"\.tg_usage~[^~]+(~([^~]+))$"},
        {"tag_name": "envoy.cluster_name", "regex": r"^cluster\.(([^~]+~[^~]+|[^~.]+)~?\.)"},
        *({"tag_name": name} for name in _DEFAULT_TAGS),
    ]


def _xds_cluster(gateway: Gateway) -> Plain:
    entry: Plain = {
        "name": names.XDS_CLUSTER,
        "type": "STATIC" if is_ip(gateway.xds_host) else "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": names.XDS_CLUSTER,
            "endpoints": [{"lb_endpoints": [_member(gateway.xds_host, gateway.xds_port)]}],
        },
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: {
                "@type": f"type.googleapis.com/{_HTTP_OPTIONS}",
                "explicit_http_config": {
                    # A control plane that vanished without a word is noticed within 15 s.
                    "http2_protocol_options": {"connection_keepalive": {"interval": "10s", "timeout": "5s"}}
                },
            }
        },
    }
    if gateway.tls is not None:
        entry["transport_socket"] = _tls(gateway.tls, server_name=gateway.xds_host)
    return entry


def _tls(files: TlsFiles, *, server_name: str) -> Plain:
    validation: Plain = {"trusted_ca": {"filename": files.ca}}
    context: Plain = {
        "common_tls_context": {
            "tls_certificates": [
                {"certificate_chain": {"filename": files.cert}, "private_key": {"filename": files.key}}
            ],
            "validation_context": validation,
        }
    }
    san_type = "IP_ADDRESS" if is_ip(server_name) else "DNS"
    validation["match_typed_subject_alt_names"] = [{"san_type": san_type, "matcher": {"exact": server_name}}]
    if san_type == "DNS":
        context["sni"] = server_name
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            **context,
        },
    }


def _gateways_cluster(members: Plain | None) -> Plain:
    """The fleet's own cluster: by EDS, or with `members` written out. Nothing is ever sent to it."""
    entry: Plain = {"name": names.GATEWAYS_CLUSTER, "connect_timeout": "1s"}
    if members is None:
        return entry | {"type": "EDS", "eds_cluster_config": {"eds_config": _ADS}}
    return entry | {"type": "STATIC", "load_assignment": members}


def _with_members(cluster: Plain, members: dict[str, Plain]) -> Plain:
    """A cluster with its EDS answer written into it."""
    if "eds_cluster_config" not in cluster:
        return cluster
    entry = {key: value for key, value in cluster.items() if key != "eds_cluster_config"}
    return entry | {"type": "STATIC", "load_assignment": members[cluster["name"]]}


def _inlined(listener: Plain, routes: dict[str, Plain], extensions: dict[str, Plain]) -> Plain:
    """A listener with its routes and its ECDS filters written into it."""
    chains = []
    for chain in listener["filter_chains"]:
        manager = dict(chain["filters"][0]["typed_config"])
        manager["route_config"] = routes[manager.pop("rds")["route_config_name"]]
        manager["http_filters"] = [_resolved(entry, extensions) for entry in manager["http_filters"]]
        chains.append({**chain, "filters": [{**chain["filters"][0], "typed_config": manager}]})
    return {**listener, "filter_chains": chains}


def _resolved(http_filter: Plain, extensions: dict[str, Plain]) -> Plain:
    if "config_discovery" not in http_filter:
        return http_filter
    return extensions[http_filter["name"]]


def _member(address: str, port: int) -> Plain:
    return {"endpoint": {"address": _address(address, port)}}


def _address(address: str, port: int) -> Plain:
    return {"socket_address": {"address": address, "port_value": port}}
