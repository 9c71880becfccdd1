"""How fast a model version may be used: M1 with its guards."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from controlplane.config.schema.scalar import NotNegative, Positive, Ratio, Seconds, Section, refusal

Points = Annotated[float, Field(ge=0, le=50)]


class Guards(Section):
    """Safety around the curve. `guards: off` gives the literal formulas; every guard has its own switch."""

    enabled: bool | None = Field(None, description="All guards. `guards: off` is short for `enabled: false`.")
    slew_up_ratio: Ratio | None = Field(None, description="Largest rise of a rate per 5 s, as a share of it.")
    slew_down_ratio: Ratio | None = Field(
        None, description="Largest fall of a rate per 5 s, as a share of it."
    )
    dead_band_points: Points | None = Field(
        None, description="Changes of utilisation smaller than this (percentage points) move nothing ..."
    )
    dead_band_ticks: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="... unless they last for this many ticks."
    )
    ewma_tau_s: Annotated[float, Field(ge=0, le=600)] | None = Field(
        None, description="Time constant of the filter on utilisation, seconds. 0: no filter."
    )
    uninformative: bool | None = Field(
        None,
        description="A utilisation that reads full while nothing waits and answers are fast loses its vote.",
    )

    @model_validator(mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return {"enabled": value}
        if isinstance(value, str) and value in ("on", "off"):
            return {"enabled": value == "on"}
        if not isinstance(value, dict | Guards):
            raise refusal("neither a switch nor a mapping", "`off`, `on`, or a mapping of guards")
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": [True, False, "on", "off"]}, handler(core)]}


class Rate(Section):
    """`rate = rate_factor(u) * base_rate`, in requests/s over all gateways together.

    Written under `defaults.rate` for every model version, under a version's own `rate` for what differs.
    """

    base_rate: Positive | None = Field(
        None, description="Requests/s of one model version at factor 1.", examples=[100]
    )
    curve: Literal["table", "formula", "strict80"] | None = Field(
        None, description="How utilisation becomes a factor; the numbers are in the guide to rates."
    )
    signal: Literal["gpu_util", "effective"] | None = Field(
        None,
        description="The utilisation: the raw GPU counter, or an effective one (KV cache, queue, cores).",
    )
    base_mode: Literal["static", "auto"] | None = Field(
        None, description="`static` keeps `base_rate`; `auto` takes it from the measured capacity."
    )
    guards: Guards | None = Field(
        None, description="Safety around the curve: `off`, or a mapping.", examples=["off"]
    )
    burst_s: Annotated[float, Field(ge=0.1, le=1000)] | None = Field(
        None,
        description="Burst, as seconds of the rate: the first that fits of 0.1, 1, 4, 15, 60, 240, 1000.",
    )
    contract_rate: Positive | None = Field(
        None,
        description="Requests/s before any reading, and where a rate decays to without a signal. "
        "Default: 0.4 of `base_rate`.",
        examples=[40],
    )
    max_age_s: Seconds | None = Field(None, description="A reading older than this (seconds) is stale.")
    hold_s: NotNegative | None = Field(
        None, description="Without a usable signal rates are held this long (seconds) ..."
    )
    decay_s: Seconds | None = Field(
        None, description="... then fall to `contract_rate` within this time (seconds)."
    )
    target_waiting: Positive | None = Field(
        None, description="Queued requests per endpoint that count as full (`signal: effective`)."
    )


# Field of the YAML -> field of `model.policy.RatePolicy`, whose defaults are the defaults here.
RATE_FIELDS = {
    "base_rate": "base_rate_per_s",
    "curve": "curve",
    "signal": "signal",
    "base_mode": "base_mode",
    "burst_s": "burst_s",
    "contract_rate": "contract_rate_per_s",
    "max_age_s": "max_age_s",
    "hold_s": "hold_s",
    "decay_s": "decay_s",
    "target_waiting": "target_waiting",
}
