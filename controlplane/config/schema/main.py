"""`tidegate.yaml`: everything but the tenants."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from controlplane.config.schema.breaker import Breaker
from controlplane.config.schema.limit import Windows
from controlplane.config.schema.rate import Rate
from controlplane.config.schema.route import Route
from controlplane.config.schema.scalar import (
    FilePath,
    PlainText,
    Scope,
    Section,
    ShortName,
    TenantId,
)
from controlplane.config.schema.server import Admin, Cors, Gateways, Listener, PolicyServer, Xds
from controlplane.config.schema.signal import Signals
from controlplane.config.schema.upstream import Models, Slo


class JwtProvider(Section):
    """An issuer of JWTs whose verified claim names the tenant."""

    issuer: PlainText = Field(description="The `iss` claim.", examples=["https://login.example.com"])
    audiences: list[PlainText] = Field(
        [], description="Accepted `aud` claims. Default: any.", examples=[["llm"]]
    )
    jwks_file: FilePath = Field(
        description="File with the issuer's public keys (JWKS).", examples=["jwks/corp.json"]
    )
    tenant_claim: PlainText = Field("tenant", description="The claim that names the tenant.")


class Identity(Section):
    """How callers prove who they are, besides API keys."""

    jwt: dict[ShortName, JwtProvider] = Field({}, description="Providers by name.")


class Defaults(Section):
    """What holds where nothing else is said."""

    rate: Rate = Field(Rate(), description="The rate of every model version.")
    breaker: Breaker = Field(Breaker(), description="The breaker of every model version.")


class MainFile(Section):
    """The main file."""

    mode: Literal["enforce", "observe"] = Field(
        "enforce", description="`observe` computes and counts, but refuses nobody."
    )
    freeze: bool = Field(False, description="Keep every rate as it is.")
    listener: Listener = Field(Listener(), description="Where clients connect.")
    gateways: Gateways = Field(Gateways(), description="The fleet of Envoys.")
    cors: Cors = Field(Cors(), description="Browsers of other origins.")
    admin: Admin = Field(Admin(), description="Tidegate's own HTTP server.")
    xds: Xds = Field(Xds(), description="Tidegate's server for Envoys.")
    policy: PolicyServer = Field(PolicyServer(), description="The service that counts quotas.")
    signals: Signals = Field(Signals(), description="Where numbers come from.")
    identity: Identity = Field(Identity(), description="JWT providers.")
    default_tenant: TenantId | None = Field(
        None,
        description="Tenant of requests without identity, on routes that allow it.",
        examples=["anonymous"],
    )
    defaults: Defaults = Field(Defaults(), description="Rates and breakers where nothing else is said.")
    models: Models = Field(description="Models by name.")
    slos: dict[Scope, Slo] = Field(
        {}, description="Promises by `model` or `model:version`.", examples=[{"chat": {"ttft_s": 0.8}}]
    )
    routes: Annotated[list[Route], Field(min_length=1)] = Field(
        description="Paths in matching order: the first that matches wins."
    )
    per_route_rate_limit: Windows = Field(
        [], description="Limits per window over all routes and tenants they match; one, or a list."
    )
