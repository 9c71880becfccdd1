"""What was judged, and why: the number never travels without its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class PoolState(StrEnum):
    """How the rate of a pool came about; visible in metrics and explanations."""

    LIVE = "live"  # follows its signal
    HELD = "held"  # signal stale or absent: last rate kept
    DECAYING = "decaying"  # on the way to the contract rate
    CONTRACT = "contract"  # at the contract rate for want of a signal
    FROZEN = "frozen"  # an operator's freeze
    UNINFORMATIVE = "uninformative"  # the signal lost its vote (M1 guard b)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecision:
    """The rate of one model-version pool at one tick."""

    pool: str
    state: PoolState
    rate_per_s: float  # what is enforced
    target_per_s: float  # what the curve asks for before slew and floor
    factor: float | None  # rate_factor(u); None without a usable signal
    base_rate_per_s: float
    utilisation_percent: float | None  # the u that entered the curve
    reason: str  # one sentence for people
    inputs: Mapping[str, float | None] = field(default_factory=dict)


class BreakerState(StrEnum):
    """What a pool's breaker does with requests; the words are those of `resilience.status`."""

    CLOSED = "closed"  # lets everything pass
    OPEN = "open"  # lets nothing pass
    HALF_OPEN = "half-open"  # lets a few pass, to see


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerDecision:
    """The breaker of one model-version pool at one tick."""

    pool: str
    state: BreakerState
    threshold_s: float | None  # a first byte later than this is slow; None: no threshold yet
    failure_ratio: float | None  # of the last 10 s or 20 calls; None: too few calls
    reason: str  # one sentence for people
    retry_after_s: int = 1  # while not closed: when to come back, whole seconds
    probe_ratio: float = 1.0  # share of requests that pass while half-open
    capacity_ratio: float = 1.0  # of the pool's rate, below 1 for a while after closing again
    believed_s: int = 0  # half-open: for how long a gateway that hears nothing more goes on like this
    inputs: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """Every limit of one tick. Arrays are indexed like `Policy.keys`."""

    now_s: float
    pools: Mapping[str, PoolDecision]
    rate_per_s: NDArray[np.float64]  # enforced rate of each key, whole fleet
    demand_per_s: NDArray[np.float64]  # offered work that entered sharing (nan: unknown)
    fair_per_s: NDArray[np.float64]  # weight share of the pool's rate, before borrowing
    reason: NDArray[np.int8]  # index into KEY_REASONS
    burst_s: NDArray[np.float64]  # burst class of each key (s); a function of the policy alone
    gateways: int = 1
    breakers: Mapping[str, BreakerDecision] = field(default_factory=dict)  # by Pool.id, where enabled


KEY_REASONS: tuple[str, ...] = (
    "weighted share of the pool's rate",
    "borrows what others leave unused",
    "lends: its demand is below its share",
    "ceiling of its contract",
    "guarantee",
    "minimum share, so that nobody starves",
    "pinned by an operator",
    "guarantees shrunk in proportion: the pool cannot serve them all",
    "shed first: lower priority class",
)

KEY_REASON_CODES: tuple[str, ...] = (
    "share",
    "borrows",
    "lends",
    "ceiling",
    "guarantee",
    "minimum",
    "pinned",
    "guarantees-shrunk",
    "shed-first",
)
"""One stable word for each of KEY_REASONS, for machines and narrow tables."""
