"""Limits per window (M6) and quotas per calendar period (M7)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from controlplane.config.match import FIELDS, MatchError, parse_match
from controlplane.config.schema.scalar import PlainText, Seconds, Section, ShortName, refusal

Tokens = Annotated[float, Field(gt=0, le=9_007_199_254_740_992)]


def _template(value: str) -> str:
    parts = value.split(":")
    if len(set(parts)) == len(parts) and all(part in FIELDS for part in parts):
        return value
    raise refusal("not a key template", f"some of {', '.join(FIELDS)}, joined by `:`, each at most once")


KeyTemplate = Annotated[str, AfterValidator(_template)]


class Match(Section):
    """Which requests a limit is for: an expression, or a mapping. A field left out matches everything."""

    tenant_id: PlainText | None = Field(None, description="A tenant's id.", examples=["acme"])
    path: PlainText | None = Field(
        None,
        description="A route's `path`, as written there; never the path of the request.",
        examples=["/v1/models/*"],
    )
    model_version: PlainText | None = Field(
        None, description="`model:version`, or a version that only one model has.", examples=["chat:v2"]
    )

    @model_validator(mode="before")
    @classmethod
    def _expression(cls, value: Any) -> Any:
        if isinstance(value, dict | Match):
            return value
        shape = "`field == 'literal'` joined by `&&`, or a mapping; fields: " + ", ".join(FIELDS)
        if not isinstance(value, str):
            raise refusal("neither an expression nor a mapping", shape)
        try:
            return parse_match(value)
        except MatchError as error:
            raise refusal(f"the expression does not parse: {error}", shape) from None

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(core)]}


class Window(Section):
    """At most `tokens` in `window_seconds` for each distinct key, beside the adaptive rate.

    No interval of `window_seconds` admits more than `tokens + burst`. At most two such limits apply to one
    request.
    """

    name: ShortName | None = Field(
        None,
        description="Name in metrics and explanations. A new name starts with a full bucket. "
        "Default: where it is written, such as `chat.0` or `acme/0`.",
    )
    tokens: Tokens = Field(description="What one window holds, in `unit`.", examples=[1000])
    window_seconds: Seconds = Field(description="Length of the window, seconds.", examples=[60])
    key_template: KeyTemplate = Field(
        "tenant_id:model_version:path",
        description="What has a bucket of its own: some of `tenant_id`, `model_version`, `path`, "
        "joined by `:`. `path` means the pattern of the route that matched.",
    )
    match: Match | None = Field(
        None,
        description="Which requests it is for. Default: everything at the place where it is written.",
        examples=["tenant_id == 'acme' && path == '/v1/models/*'"],
    )
    unit: Literal["request", "llm_token"] = Field(
        "request",
        description="What is counted. `llm_token` is an estimate made before the answer (a warning says so).",
    )
    burst: Tokens | None = Field(
        None, description="Most that passes at once, in `unit`. Default: a tenth of `tokens`, at least 1."
    )


def _one_or_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Windows = Annotated[list[Window], BeforeValidator(_one_or_list, json_schema_input_type=Window | list[Window])]


class QuotaLine(Section):
    """LLM tokens of one model version in one period. Versions are independent of each other."""

    model_version: PlainText = Field(
        description="`model:version`, or a version that only one model has.", examples=["chat:v2"]
    )
    tokens: Annotated[int, Field(ge=0, le=9_007_199_254_740_991)] = Field(
        description="LLM tokens per period, prompt and answer. 0 refuses everything.", examples=[500000]
    )


class Quotas(Section):
    """LLM tokens per calendar period. A request is refused when any of its quotas has too little left."""

    daily: list[QuotaLine] = Field([], description="Per calendar day.")
    monthly: list[QuotaLine] = Field([], description="Per calendar month.")
    time_zone: PlainText = Field(
        "UTC", description="IANA time zone of the calendar.", examples=["Europe/Berlin"]
    )
