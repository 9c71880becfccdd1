"""When a model version gets a rest: M11 to M13."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from controlplane.config.schema.scalar import NotNegative, Seconds, Section, refusal


def _switch(value: Any) -> Any:
    """`on` and `off`, which YAML reads as booleans when they stand without quotes."""
    return {"on": True, "off": False}.get(value, value) if isinstance(value, str) else value


def _share(value: float) -> float:
    if 0 < value < 1:
        return value
    raise refusal("not a share", "a number above 0 and below 1, for example 0.1")


Switch = Annotated[bool, BeforeValidator(_switch), WithJsonSchema({"enum": [True, False, "on", "off"]})]
Share = Annotated[float, AfterValidator(_share)]


class Breaker(Section):
    """Requests for a model version that fails, or is too slow, are answered 503 at once for a while.

    Written under `defaults.breaker` for every model version, under a version's own `breaker` for what
    differs. Needs `gateways.stats`: without counts from gateways a breaker stays closed.
    """

    enabled: bool | None = Field(None, description="Whether there is one.")
    strategy: Literal["static", "moving_average", "drift"] | None = Field(
        None,
        description="What the threshold of a slow call follows: the SLO, the mean p95 of 15 minutes, or the "
        "p95 and its distance from that mean.",
    )
    guards: Switch | None = Field(
        None,
        description="`off`: the threshold is the literal formula, which rises with what it should catch.",
    )
    failure_rate_threshold: Share | None = Field(
        None, description="Opens when the share of failed calls is above this beyond doubt."
    )
    open_s: Seconds | None = Field(
        None, description="How long it stays open at first (seconds); doubles each time, 300 s at most."
    )
    half_open_timeout_s: Seconds | None = Field(
        None,
        description="Longest stay half-open with enough calls to judge, seconds; at least 1.5 times "
        "`warmup_s`. Default: 60, or that.",
        examples=[60],
    )
    warmup_s: NotNegative | None = Field(
        None, description="Until a new model server is fast (seconds): loading, streams, caches."
    )
