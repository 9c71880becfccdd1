"""Models, their versions, and the servers behind each version."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from controlplane.config.schema.breaker import Breaker
from controlplane.config.schema.rate import Rate
from controlplane.config.schema.scalar import (
    Host,
    ModelName,
    PlainText,
    Port,
    Seconds,
    Section,
    ShortName,
    VersionName,
    refusal,
)

_ENDPOINT = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})")


def _metrics(value: Any) -> Any:
    if value is False or (isinstance(value, str) and re.fullmatch(r"https?://\S+", value)):
        return value
    raise refusal("neither a URL nor `false`", "http://host:port/path, or `false` for none")


_METRICS_SCHEMA = {"anyOf": [{"type": "string", "pattern": "^https?://"}, {"enum": [False, "off"]}]}
Metrics = Annotated[Any, AfterValidator(_metrics), WithJsonSchema(_METRICS_SCHEMA)]


class Endpoint(Section):
    """One model server: `host:port`, or a mapping."""

    address: Host = Field(description="IP address or DNS name.", examples=["10.0.0.7"])
    port: Port = Field(description="Its port.", examples=[8000])
    metrics: Metrics | None = Field(
        None,
        description="URL of its metrics; `false`: none. Default: `metrics_path` at the same address and "
        "port, and none where names are resolved by DNS.",
    )
    pod: PlainText | None = Field(None, description="Kubernetes pod; joins GPU metrics to the endpoint.")
    namespace: PlainText | None = Field(None, description="Kubernetes namespace of the pod.")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, dict | Endpoint):
            return value
        found = _ENDPOINT.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise refusal(
                "not an endpoint", "`host:port` in quotes when in doubt, or a mapping with address and port"
            )
        return {"address": found["six"] or found["host"], "port": int(found["port"])}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(core)]}


class Version(Section):
    """One model version and the servers behind it (a pool, which has one rate)."""

    endpoints: Annotated[list[Endpoint], Field(min_length=1)] = Field(
        description="Its servers.", examples=[["10.0.0.7:8000"]]
    )
    dns: bool | None = Field(
        None, description="Endpoints are names that Envoy resolves. Default: true when one of them is a name."
    )
    engine: ShortName = Field(
        "vllm",
        description="Which names of the signal catalogue its metrics use: `vllm`, `sglang`, `tgi`, ...",
    )
    model_label: PlainText | None = Field(
        None,
        description="Value of the engine's own model label. Default: the model's name.",
        examples=["llama-3-8b"],
    )
    metrics_path: Annotated[str, Field(pattern=r"^/[^\s]*$", max_length=256)] = Field(
        "/metrics", description="Where endpoints serve their metrics."
    )
    http2: bool = Field(False, description="Speak HTTP/2 to the servers (gRPC needs it).")
    connect_timeout_s: Seconds = Field(2.0, description="Time to connect, seconds.")
    max_requests: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1024, description="Requests in flight per gateway, at most."
    )
    rate: Rate = Field(Rate(), description="What differs from `defaults.rate`.")
    breaker: Breaker = Field(Breaker(), description="What differs from `defaults.breaker`.")


class Model(Section):
    """A model name that clients use."""

    default_version: VersionName | None = Field(
        None,
        description="The version a bare model name means. May be left out when there is only one.",
        examples=["v1"],
    )
    versions: Annotated[dict[VersionName, Version], Field(min_length=1)] = Field(
        description="Its versions by name; clients ask for `model:version`."
    )


Models = Annotated[dict[ModelName, Model], Field(min_length=1)]


class Slo(Section):
    """What a model promises."""

    ttft_s: Seconds = Field(description="Time to first token, 95th percentile, seconds.", examples=[0.8])
