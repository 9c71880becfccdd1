"""A decision -> how one limit came about, in order, from the signal to the bucket, and what would change it.

Everything is read from the decision and the policy: nothing is judged a second time, so an explanation cannot
disagree with what is enforced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from controlplane.decide.burst import bursts_in_force_s, slowest_rate_per_s
from controlplane.decide.plan import plan_pool
from controlplane.decide.share import (
    BORROWS,
    CEILING,
    GUARANTEE,
    HEADROOM_RATIO,
    LENDS,
    MINIMUM,
    PINNED,
    SHED,
    SHRUNK,
    WEIGHT,
)
from controlplane.model.decision import (
    KEY_REASONS,
    BreakerDecision,
    BreakerState,
    Decision,
    PoolDecision,
    PoolState,
)
from controlplane.model.policy import Curve, Key, Mode, Policy, Pool, WindowLimit
from controlplane.model.price import window_burst_class_s

PER_S = "requests/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One step on the way to the limit. `value` is None when there is no number to it."""

    label: str
    value: float | str | None
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The steps in order; the last ones say what would have to change."""

    key: str
    lines: tuple[Line, ...]


def explain(policy: Policy, decision: Decision, key_id: str) -> Explanation:
    """Why the limits of `key_id` are what they are. KeyError when the policy has no such key."""
    index = next((i for i, key in enumerate(policy.keys) if key.id == key_id), None)
    if index is None:
        raise KeyError(key_id)
    case = _Case.of(policy, decision, index)
    steps = (
        _rest_lines,
        _pool_lines,
        _share_lines,
        _limit_lines,
        _window_lines,
        _breaker_lines,
        _mode_lines,
        _change_lines,
    )
    return Explanation(key=key_id, lines=tuple(line for step in steps for line in step(case)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One key, its pool and its row of the decision."""

    policy: Policy
    decision: Decision
    key: Key
    pool: Pool | None
    judged: PoolDecision | None
    breaker: BreakerDecision | None
    floor_per_s: float | None
    rate_per_s: float
    fair_per_s: float
    demand_per_s: float | None  # None: unknown
    reason: int
    burst_s: float

    @staticmethod
    def of(policy: Policy, decision: Decision, index: int) -> _Case:
        key = policy.keys[index]
        plan = plan_pool(policy, key.pool)
        row = [i for i, other in enumerate(policy.keys) if other.pool == key.pool].index(index)
        demand = float(decision.demand_per_s[index])
        return _Case(
            policy=policy,
            decision=decision,
            key=key,
            pool=plan.pool if plan else None,
            judged=decision.pools.get(key.pool),
            breaker=decision.breakers.get(key.pool),
            floor_per_s=float(plan.keys.floor_per_s[row]) if plan else None,
            rate_per_s=float(decision.rate_per_s[index]),
            fair_per_s=float(decision.fair_per_s[index]),
            demand_per_s=None if math.isnan(demand) else demand,
            reason=int(decision.reason[index]),
            burst_s=float(bursts_in_force_s(policy, decision)[index]),
        )

    @property
    def windows(self) -> list[WindowLimit]:
        return [window for window in self.policy.windows if window.name in self.key.windows]


def _rest_lines(case: _Case) -> Iterator[Line]:
    """Before everything else: a breaker that does not let everything pass, and when to come back."""
    made = case.breaker
    if made is None or made.state is BreakerState.CLOSED:
        return
    yield Line(label="breaker", value=made.state.value, unit="", reason=made.reason)
    if made.state is BreakerState.OPEN:
        reason = "everything is answered 503; then a few requests may try"
        yield Line(label="open for", value=float(made.retry_after_s), unit="s", reason=reason)
    if made.state is BreakerState.HALF_OPEN:
        reason = "of the requests may try; the others are answered 503"
        yield Line(label="passes", value=100 * made.probe_ratio, unit="%", reason=reason)


def _pool_lines(case: _Case) -> Iterator[Line]:
    judged = case.judged
    if judged is None:
        return
    inputs = judged.inputs
    raw, age_s = inputs.get("u_percent"), inputs.get("age_s")
    aged = "never measured" if age_s is None else f"measured {age_s:.1f} s ago"
    choice = case.pool.rate.signal.value if case.pool else "signal"
    yield Line(label="utilisation", value=raw, unit="%", reason=f"{choice}, {aged}")
    applied = judged.utilisation_percent
    if applied is not None and raw is not None and applied != raw:
        yield Line(label="as applied", value=applied, unit="%", reason="after the filter and the dead band")
    if judged.factor is not None and case.pool is not None:
        reason = f"curve {case.pool.rate.curve.value}"
        yield Line(label="factor", value=judged.factor, unit="", reason=reason)
    yield Line(label="base rate", value=judged.base_rate_per_s, unit=PER_S, reason="the pool at factor 1")
    yield Line(
        label="pool rate",
        value=judged.rate_per_s,
        unit=PER_S,
        reason=f"{judged.state.value}: {judged.reason}",
    )


def _share_lines(case: _Case) -> Iterator[Line]:
    key = case.key
    yield Line(
        label="share by weight",
        value=case.fair_per_s,
        unit=PER_S,
        reason=f"weight {key.weight:g}, class {key.priority.value}, before borrowing",
    )
    known = "offered by its clients, refused requests included"
    yield Line(
        label="demand",
        value=case.demand_per_s,
        unit=PER_S,
        reason="unknown without gateway counters" if case.demand_per_s is None else known,
    )
    bounds = (
        ("minimum", case.floor_per_s, "never less, at the pool's lowest rate"),
        ("guarantee", key.guarantee_per_s or None, "never less while the pool can pay all guarantees"),
        ("ceiling", key.ceiling_per_s, "never more: its contract"),
        ("pin", key.pin_per_s, "set by an operator, above every judgement"),
    )
    for label, value, reason in bounds:
        if value is not None:
            yield Line(label=label, value=value, unit=PER_S, reason=reason)


def _limit_lines(case: _Case) -> Iterator[Line]:
    yield Line(label="limit", value=case.rate_per_s, unit=PER_S, reason=KEY_REASONS[case.reason])
    at_once = case.burst_s * case.rate_per_s
    reason = f"class of {case.burst_s:g} s: {at_once:.4g} requests at once"
    yield Line(label="burst", value=at_once, unit="requests", reason=reason)
    gateways = case.decision.gateways
    if gateways > 1:
        reason = f"each of {gateways} gateways enforces its part"
        yield Line(label="per gateway", value=case.rate_per_s / gateways, unit=PER_S, reason=reason)
    if gateways > case.policy.gateways.max_count:
        reason = f"more gateways than `gateways.max` ({case.policy.gateways.max_count}): slow keys may starve"
        yield Line(label="warning", value=None, unit="", reason=reason)
    elif 0 < case.rate_per_s < slowest_rate_per_s(gateways):
        reason = "too slow for any bucket: nothing passes until the limit rises"
        yield Line(label="warning", value=None, unit="", reason=reason)


def _window_lines(case: _Case) -> Iterator[Line]:
    for window in case.windows:
        given = window_burst_class_s(window.rate_per_s, window.burst_tokens, case.policy.gateways.max_count)
        fields = ":".join(window.key_fields) or "everybody together"
        unit = PER_S if window.unit == "request" else "tokens/s"
        reason = (
            f"{window.tokens:g} per {window.window_s:g} s for each {fields}, "
            f"at once {given.burst_tokens:.4g} (class of {given.class_s:g} s)"
        )
        yield Line(label=f"window {window.name}", value=window.rate_per_s, unit=unit, reason=reason)
    limits = {"the adaptive limit": case.rate_per_s} | {
        f"window {window.name}": window.rate_per_s for window in case.windows if window.unit == "request"
    }
    if len(limits) > 1:
        least = min(limits, key=lambda name: limits[name])
        yield Line(label="binding", value=limits[least], unit=PER_S, reason=f"{least} is the lowest")


def _breaker_lines(case: _Case) -> Iterator[Line]:
    made = case.breaker
    if made is None:
        return
    if made.state is BreakerState.CLOSED:
        yield Line(label="breaker", value=made.state.value, unit="", reason=made.reason)
    if made.threshold_s is not None:
        reason = "a first byte later than this is slow"
        yield Line(label="slow above", value=made.threshold_s, unit="s", reason=reason)


def _mode_lines(case: _Case) -> Iterator[Line]:
    if case.policy.mode is Mode.OBSERVE:
        reason = "computed and counted, but nothing is refused"
        yield Line(label="mode", value=Mode.OBSERVE.value, unit="", reason=reason)


def _change_lines(case: _Case) -> Iterator[Line]:
    """What would have to change for a higher limit."""
    yield Line(label="to raise it", value=None, unit="", reason=_TO_RAISE[case.reason](case))
    if case.judged is not None and case.reason != PINNED:
        reason = _pool_change(case, case.judged)
        if reason:
            yield Line(label="to raise the pool", value=None, unit="", reason=reason)


def _pool_change(case: _Case, judged: PoolDecision) -> str | None:
    match judged.state:
        case PoolState.FROZEN:
            return "switch freeze off"
        case PoolState.UNINFORMATIVE:
            return "a signal that means something: `signal: effective`, or a drop of the counter"
        case PoolState.HELD | PoolState.DECAYING | PoolState.CONTRACT:
            return "a fresh reading of its signal; see `tidegate signals`"
    if judged.rate_per_s >= judged.base_rate_per_s:
        return "a higher base rate; its utilisation already gives all of it"
    if judged.rate_per_s < judged.target_per_s:
        return "time: it rises to the target as fast as the slew limit allows"
    literal = case.pool is not None and case.pool.rate.curve is Curve.FORMULA
    full = "0 %" if literal else "30 % or less"
    return f"lower utilisation; {full} gives the whole {judged.base_rate_per_s:g}/s"


def _raise_demand(case: _Case) -> str:
    if case.demand_per_s is None:
        return "gateway counters, so that its demand can be seen"
    return (
        f"demand: with the next tick it has {HEADROOM_RATIO:g} times what it sends, and its share in any case"
    )


_TO_RAISE: Mapping[int, Callable[[_Case], str]] = {
    WEIGHT: lambda case: f"a weight above {case.key.weight:g}, or others of the pool that want less",
    BORROWS: lambda case: "it is above its share already; others of the pool would have to want less",
    LENDS: _raise_demand,
    CEILING: lambda case: f"a higher `limit` of the tenant than {case.rate_per_s:g}/s",
    GUARANTEE: lambda case: "a higher guarantee, a higher weight, or others of the pool that want less",
    MINIMUM: lambda case: "a higher pool rate, a higher weight, or others of the pool that want less",
    PINNED: lambda case: "the tenant's pin: a higher one, or none",
    SHRUNK: lambda case: (
        "a pool rate that pays all guarantees of its tenants, or smaller guarantees of others"
    ),
    SHED: lambda case: "less demand in the classes above, or a higher priority of the tenant",
}
