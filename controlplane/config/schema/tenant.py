"""A tenant quota file: who the tenant is and what it has bought."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from controlplane.config.schema.limit import Quotas, Windows
from controlplane.config.schema.scalar import (
    FilePath,
    NotNegative,
    PlainText,
    Scope,
    Section,
    Sha256,
    TenantId,
    refusal,
)
from controlplane.config.schema.server import OnStoreFailure

Weight = Annotated[float, Field(gt=0, le=1e6)]


class ApiKey(Section):
    """One API key: its SHA-256 digest, or a file that holds the key. The key itself is never kept."""

    sha256: Sha256 | None = Field(
        None,
        description="SHA-256 of the key: `printf %s KEY | sha256sum`.",
        examples=["2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90"],
    )
    file: FilePath | None = Field(
        None,
        description="File that holds one key, relative to the configuration directory.",
        examples=["secrets/acme-key"],
    )

    @model_validator(mode="after")
    def _one(self) -> ApiKey:
        if (self.sha256 is None) == (self.file is None):
            raise refusal("an API key is given in exactly one way", "either `sha256` or `file`")
        return self


class TenantIdentity(Section):
    """How requests of this tenant are recognised."""

    api_keys: list[ApiKey] = Field(
        [], description="API keys, as `Authorization: Bearer KEY` or `x-api-key: KEY`."
    )
    jwt: list[PlainText] = Field(
        [], description="Values of the provider's `tenant_claim` that mean this tenant.", examples=[["acme"]]
    )


class Share(Section):
    """What a tenant has of each model version, on each route."""

    weight: Weight | None = Field(
        None, description="Its part when tenants compete, relative to the others' weights."
    )
    guarantee: NotNegative | None = Field(
        None,
        description="Requests/s it gets whenever it asks for them, as long as all guarantees can be served.",
    )
    limit: NotNegative | None = Field(
        None,
        description="Its contract: never more requests/s than this. 0 refuses everything. Default: none.",
    )
    pin: NotNegative | None = Field(
        None, description="An operator's fixed rate (requests/s) above every judgement. Default: none."
    )


class TenantFile(Share):
    """One tenant. Numbers hold for each route and model version; `overrides` says where they differ."""

    id: TenantId = Field(description="The tenant's id, unique over all files.", examples=["acme"])
    priority: Literal["high-priority", "normal", "batch-low"] = Field(
        "normal", description="Priority class; the lowest is shed first."
    )
    identity: TenantIdentity = Field(TenantIdentity(), description="How its requests are recognised.")
    models: list[Scope] | None = Field(
        None,
        description="Models (`model`) or versions (`model:version`) it may use. Default: all.",
        examples=[["chat", "embed:v1"]],
    )
    overrides: dict[Scope, Share] = Field(
        {},
        description="Other numbers for one `model` or `model:version`; the more specific wins, "
        "field by field.",
        examples=[{"chat:v2": {"limit": 5}}],
    )
    limits: Windows = Field([], description="Limits per window, for this tenant alone.")
    per_route_rate_limit: Windows = Field([], description="The same as `limits`; one, or a list.")
    quotas: Quotas = Field(Quotas(), description="LLM tokens per calendar day and month.")
    on_store_failure: OnStoreFailure | None = Field(
        None, description="Above `policy.on_store_failure` of the main file."
    )


class TenantList(Section):
    """Several tenants in one file. One that is wrong does not touch the others."""

    tenants: list[TenantFile] = Field(description="Each as in a file of its own.")
