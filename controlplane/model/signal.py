"""What was measured. A value that is not there is a state of its own, never zero and never full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One signal of one model-version pool at one time.

    `value` is None when nothing usable was measured; `absent` then says why (for people).
    `sampled_at_s` is the time of the sample on the control plane's clock (Unix seconds).
    """

    value: float | None = None
    sampled_at_s: float | None = None
    count: int = 0  # samples (endpoints, GPUs, requests) behind the value
    source: str = ""
    absent: str = ""
    not_exposed: bool = False  # the source answers, but the metric vanished or was renamed (`signal_absent`)

    def age_s(self, now_s: float) -> float | None:
        """Seconds since the sample was taken; None without a sample."""
        return None if self.sampled_at_s is None else max(0.0, now_s - self.sampled_at_s)


ABSENT = Reading(absent="never measured")

SIGNALS: tuple[str, ...] = (
    "gpu_util_percent",  # 0..100, mean over the pool's GPUs
    "sm_active_ratio",  # 0..1
    "kv_cache_usage_ratio",  # 0..1, mean over endpoints
    "waiting_requests",  # queued per endpoint, mean
    "running_requests",  # running per endpoint, mean
    "ttft_p95_s",
    "latency_p95_s",  # end to end
    "failure_ratio",  # 0..1
    "completed_per_s",
    "endpoints_up",  # endpoints that answered the last scrape
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One window of measurements of one pool: signal name (see SIGNALS) -> Reading."""

    readings: Mapping[str, Reading] = field(default_factory=dict)

    def get(self, name: str) -> Reading:
        """The reading of `name`, ABSENT when no source gave one."""
        return self.readings.get(name, ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTraffic:
    """Traffic of one key over the last interval, all gateways together, per second."""

    offered_per_s: float
    limited_per_s: float = 0.0
    would_limit_per_s: float = 0.0
    shed_per_s: float = 0.0  # refused because the breaker of the pool was not closed
    by_rule: Mapping[str, float] = field(default_factory=dict)  # limited and would-be limited, by what bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What the model servers of one pool answered, all gateways together: totals since some start.

    They never fall; totals that do are those of a new start. Only the growth between two of them means
    something. What a gateway answered by itself (its own 429 and 503) is not in here.
    """

    answered: float  # good answers and failures; 4xx are the client's doing and count as neither
    failed: float  # 5xx, and servers that could not be reached
    bounds_s: tuple[float, ...] = ()  # upper bounds of the time to first byte, the last one infinite
    within: tuple[float, ...] = ()  # good answers within each bound, cumulative
    failures_in_a_row: int = 0  # at least so many now


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that judgement may know about the world at one tick."""

    now_s: float
    loads: Mapping[str, Load]  # by Pool.id
    traffic: Mapping[str, KeyTraffic] | None  # by Key.id; None: no gateway counters this tick
    gateways: int = 1  # Envoys that share the limits now
    calls: Mapping[str, Calls] | None = None  # by Pool.id; None: too few gateways answer
