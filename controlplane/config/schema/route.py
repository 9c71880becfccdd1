"""Paths that clients call."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controlplane.config.schema.limit import Windows
from controlplane.config.schema.scalar import (
    HeaderName,
    ModelName,
    PathPattern,
    Scope,
    Seconds,
    Section,
    ShortName,
)


class Route(Section):
    """One path pattern. The first route that matches wins."""

    path: PathPattern = Field(
        description="An exact path, or everything below a prefix when it ends in `/*`.",
        examples=["/v1/chat/completions"],
    )
    id: ShortName | None = Field(
        None, description="Name in metrics and explanations. Default: made of the path.", examples=["chat"]
    )
    models: list[ModelName] | None = Field(
        None, description="Models served here. Default: all; none on a `free` route.", examples=[["chat"]]
    )
    model_from: Literal["body", "header", "fixed"] | None = Field(
        None,
        description="Where a request names its model: the JSON field `model`, a header, or nowhere (a "
        "fixed model). Default: `fixed` with `fixed_model`, `header` with `model_header`, else `body`.",
    )
    model_header: HeaderName | None = Field(
        None, description="Header or gRPC metadata key for `model_from: header`."
    )
    fixed_model: Scope | None = Field(None, description="`model` or `model:version` for `model_from: fixed`.")
    identity: Literal["required", "default_tenant", "none"] = Field(
        "required",
        description="Without a verified identity: 401, or counted as `default_tenant`. `none`: nobody is "
        "looked for, and everything counts as `default_tenant`.",
    )
    free: bool = Field(False, description="Never limited and never counted.")
    unknown_model_status: Literal[400, 404] = Field(
        404, description="Answer to a model that is not served here."
    )
    idle_timeout_s: Seconds = Field(
        300.0, description="Longest silence of a stream, seconds; above the worst time to first token."
    )
    max_stream_duration_s: Seconds = Field(3600.0, description="Longest life of a stream, seconds.")
    per_route_rate_limit: Windows = Field([], description="Limits per window on this route; one, or a list.")
