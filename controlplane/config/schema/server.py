"""Tidegate's own sockets, and the Envoys that connect to them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from controlplane.config.schema.scalar import (
    AnyPort,
    Count,
    FilePath,
    Host,
    Origin,
    PlainText,
    Port,
    Section,
    Url,
    refusal,
)


class Listener(Section):
    """Where clients connect to Envoy. A change here replaces the listener: limits start with full buckets."""

    address: Host = Field("0.0.0.0", description="Address to listen on.")
    port: Port = Field(8080, description="Port to listen on.")
    max_request_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = Field(
        10 * 1024 * 1024, description="Largest request body, bytes; larger ones get 413."
    )
    health_path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._~/-]*$", max_length=256)] = Field(
        "/healthz", description="Path Envoy answers itself, for load balancers. Never limited."
    )


class Gateways(Section):
    """The fleet of Envoys. Limits are fleet-wide, each Envoy enforces its part."""

    min: Count = Field(1, description="Fewest Envoys that share the limits.")
    max: Count = Field(
        1, description="Most Envoys that share the limits; bursts must be large enough for all of them."
    )
    stats: list[Url] = Field(
        [],
        description="`/stats/prometheus` of each Envoy's admin port: demand, latency and failures.",
        examples=[["http://127.0.0.1:9901/stats/prometheus"]],
    )


class Tls(Section):
    """TLS of the xDS server. With `ca`, clients must show a certificate of it (mTLS)."""

    cert: FilePath = Field(description="Certificate chain, PEM.", examples=["tls/tls.crt"])
    key: FilePath = Field(description="Its key, PEM.", examples=["tls/tls.key"])
    ca: FilePath | None = Field(
        None, description="CA of the Envoys' certificates, PEM.", examples=["tls/ca.crt"]
    )
    bind_node_id: bool = Field(
        True,
        description="With `ca`: an Envoy's `node.id` must be a DNS or URI name (SAN) or the CN of its "
        "certificate.",
    )


class Admin(Section):
    """Health, metrics, decisions and explanations by HTTP."""

    address: Host = Field("127.0.0.1", description="Address to listen on.")
    port: AnyPort = Field(9090, description="Port to listen on; 0: a free one.")
    token_file: FilePath | None = Field(
        None, description="File with the bearer token that the switches need; reading needs none."
    )


class Xds(Section):
    """The gRPC server that Envoys take their configuration from."""

    address: Host = Field("127.0.0.1", description="Address to listen on.")
    port: AnyPort = Field(18000, description="Port to listen on; 0: a free one.")
    tls: Tls | None = Field(None, description="Certificates. Without them the server speaks plain text.")


def _redis_url(value: str) -> str:
    if not re.fullmatch(r"rediss?://[^\s/?#]+(/[0-9]{1,3})?", value):
        raise refusal("not the URL of a Redis", "redis://HOST:PORT/DATABASE, or rediss:// for TLS")
    if "@" in value:
        raise refusal("has credentials in it", "`username` and `password_file` beside a URL without them")
    return value


OnStoreFailure = Literal["bounded_local", "open", "closed"]


class Redis(Section):
    """A Redis (6.2 or newer) or Valkey that counts quotas."""

    url: Annotated[str, AfterValidator(_redis_url)] = Field(
        description="`redis://HOST:PORT/DATABASE`, or `rediss://` for TLS.", examples=["redis://redis:6379/0"]
    )
    username: PlainText | None = Field(None, description="ACL user. Default: the default user.")
    password_file: FilePath | None = Field(None, description="File with the password.")
    ca_file: FilePath | None = Field(
        None, description="CA of the server's certificate, PEM; for `rediss://`."
    )


class PolicyServer(Section):
    """The service that Envoys ask about quotas. `tidegate serve` runs it when a tenant has a quota;
    `tidegate policy` runs it alone, in any number of processes with `store: redis`."""

    address: Host = Field("127.0.0.1", description="Address to listen on.")
    port: AnyPort = Field(18001, description="Port to listen on; 0: a free one.")
    host: Host | None = Field(
        None,
        description="Address or name by which Envoys find it. Default: `address`.",
        examples=["tidegate-policy"],
    )
    embedded: bool = Field(
        True, description="`tidegate serve` runs it; false: `tidegate policy` does, elsewhere."
    )
    store: Literal["memory", "redis"] = Field(
        "memory",
        description="Where quotas are counted. `memory` is for one process and forgets when it ends.",
    )
    redis: Redis | None = Field(None, description="The store, for `store: redis`.")
    timeout_ms: Annotated[int, Field(ge=1, le=1000)] = Field(
        20, description="Longest wait for one answer of the store, milliseconds."
    )
    on_store_failure: OnStoreFailure = Field(
        "bounded_local",
        description="While the store does not answer: each process counts for itself within limit / "
        "`gateways.max` (`bounded_local`), everything passes (`open`), or everything with a quota is "
        "refused (`closed`).",
    )


class Cors(Section):
    """Browsers of other origins."""

    allow_origins: list[Origin] = Field(
        [], description="Origins that may call, exact, or `*`.", examples=[["https://chat.example.com"]]
    )
