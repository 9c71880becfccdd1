"""`breaker:` of the defaults and of a version -> a BreakerPolicy. Pure."""

from __future__ import annotations

from typing import Any

from controlplane.config.schema.breaker import Breaker
from controlplane.model import policy as words

WARMUP_FACTOR = 1.5  # half-open has to outlast the warm-up of a server by this


def breaker_policy(default: Breaker, own: Breaker, slo_s: float | None) -> words.BreakerPolicy:
    """The version's own numbers over the defaults over the built-in ones, field by field.

    A half-open time-out that nobody wrote is long enough for the warm-up.
    """
    given: dict[str, Any] = {**default.model_dump(exclude_none=True), **own.model_dump(exclude_none=True)}
    if "strategy" in given:
        given["strategy"] = words.Strategy(given["strategy"])
    built_in = words.BreakerPolicy()
    warmup_s = given.get("warmup_s", built_in.warmup_s)
    given.setdefault("half_open_timeout_s", max(built_in.half_open_timeout_s, WARMUP_FACTOR * warmup_s))
    return words.BreakerPolicy(**given, slo_s=slo_s)
