"""One pool at one tick: (plan, memory, tick) -> (memory, the pool's rate and why).

    samples -> utilisation -> [vote] -> [EWMA, dead band] -> curve -> * base -> [floor] -> [slew] -> rate
                   |
                   +-- stale or absent: held for hold_s, then on a straight line, within decay_s, down to the
                       contract rate; never raised, never zero

What stands in brackets are guards. Only durations are remembered, never times of day, so that a clock that
jumps changes nothing but the ages of samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controlplane.decide.curve import rate_factor
from controlplane.decide.guard import (
    Record,
    Smooth,
    Symptoms,
    at_ease,
    record,
    slew_bounds_per_s,
    smooth,
    why_uninformative,
)
from controlplane.decide.plan import PoolPlan
from controlplane.decide.utilisation import (
    EFFECTIVE,
    LITERAL,
    WORDS,
    Sample,
    Utilisation,
    remember,
    utilisation,
)
from controlplane.model.decision import PoolDecision, PoolState
from controlplane.model.policy import BaseMode, RatePolicy
from controlplane.model.signal import Load

_REMEMBERED = (*LITERAL, *EFFECTIVE, "ttft_p95_s", "failure_ratio")
# The counters that can read full without being full; queue and KV-cache use never lose their vote.
_COUNTERS = frozenset({"gpu_util_percent", "sm_active_ratio"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """What one pool carries from tick to tick."""

    rate_per_s: float | None = None  # enforced last; None before the first tick
    base_rate_per_s: float | None = None  # learned by a capacity loop; used with `base_mode: auto`
    samples: Mapping[str, Sample] = field(default_factory=dict)
    smooth: Smooth | None = None
    record: Record = field(default_factory=Record)
    judged: bool = False  # a signal has set the rate at least once
    stale_s: float = 0.0  # since the signal was last fresh
    held_per_s: float = 0.0  # the rate at that time


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTick:
    """What one pool sees at one tick."""

    now_s: float
    dt_s: float
    load: Load
    admitted_per_s: float | None = None  # None: unknown, or held down by limits
    frozen: bool = False
    capacity_ratio: float = (
        1.0  # of the rate: below 1 while a breaker that closed again lets the pool warm up
    )


def judge(plan: PoolPlan, memory: PoolMemory, tick: PoolTick) -> tuple[PoolMemory, PoolDecision]:
    """The rate of the pool after this tick, always within [lowest, base].

    The memory knows nothing of the breaker's ramp: what the signal allows is there when the ramp ends.
    """
    memory, decision = _judged(plan, memory, tick)
    return memory, _ramped(plan, decision, tick.capacity_ratio)


def _ramped(plan: PoolPlan, decision: PoolDecision, capacity_ratio: float) -> PoolDecision:
    """`decision` with the part its breaker allows, never below the lowest rate: keys are promised that."""
    if capacity_ratio >= 1.0:
        return decision
    rate = min(decision.rate_per_s, max(plan.lowest_per_s, capacity_ratio * decision.rate_per_s))
    told = f" Its breaker closed a moment ago: {capacity_ratio:.0%} of that, {rate:.4g}/s."
    return replace(
        decision,
        rate_per_s=rate,
        reason=decision.reason + told,
        inputs={**decision.inputs, "breaker_capacity_ratio": capacity_ratio},
    )


def _judged(plan: PoolPlan, memory: PoolMemory, tick: PoolTick) -> tuple[PoolMemory, PoolDecision]:
    samples = remember(memory.samples, tick.load, _REMEMBERED, tick.now_s, tick.dt_s)
    memory = replace(memory, samples=samples)
    used = utilisation(samples, plan.pool.rate)
    if tick.frozen:
        return _frozen(plan, memory, used)
    if not used.fresh or used.percent is None:
        return _without_signal(plan, memory, tick, used)
    memory = replace(memory, record=record(memory.record, used.percent, tick.admitted_per_s, tick.dt_s))
    symptoms = _symptoms(plan.pool.rate, memory)
    blind = _why_blind(plan.pool.rate, used, symptoms)
    if blind is not None:
        return _without_vote(plan, memory, tick, used, (blind, at_ease(symptoms)))
    return _by_signal(plan, memory, tick, used)


def _by_signal(
    plan: PoolPlan, memory: PoolMemory, tick: PoolTick, used: Utilisation
) -> tuple[PoolMemory, PoolDecision]:
    """The curve has the word."""
    policy = plan.pool.rate
    base, base_note = _base_rate(plan, memory)
    smoothed = _smoothed(policy, memory, tick, used)
    percent = used.percent if smoothed is None else smoothed.applied
    factor = rate_factor(percent, policy.curve)
    target = base * (factor or 0.0)
    wanted = _within(plan, base, target)
    low, high = _slew_bounds(policy, memory, tick)
    rate = _within(plan, base, min(max(wanted, low), high))
    led = f"{_signal_words(used)} {percent:.1f} %"
    notes = [f"{led}: {factor:.3g} of {base:g}/s is {target:.4g}/s{base_note}"]
    if wanted > target:
        notes.append(f"raised to the floor of {plan.lowest_per_s:g}/s")
    if rate != wanted:
        notes.append(f"on the way from {memory.rate_per_s:.4g}/s, as fast as the slew limit allows")
    if used.lost:
        notes.append(f"no new {_list(used.lost)}: the last value counts on")
    decision = PoolDecision(
        pool=plan.pool.id,
        state=PoolState.LIVE,
        rate_per_s=rate,
        target_per_s=target,
        factor=factor,
        base_rate_per_s=base,
        utilisation_percent=percent,
        reason="; ".join(notes) + ".",
        inputs=_inputs(plan, memory, used)
        | {
            "u_filtered_percent": None if smoothed is None else smoothed.filtered,
            "u_applied_percent": percent,
            "slew_lowest_per_s": low if low > 0 else None,
            "slew_highest_per_s": high if high < math.inf else None,
        },
    )
    after = replace(memory, rate_per_s=rate, smooth=smoothed, judged=True, stale_s=0.0, held_per_s=rate)
    return after, decision


def _smoothed(policy: RatePolicy, memory: PoolMemory, tick: PoolTick, used: Utilisation) -> Smooth | None:
    """Filter and dead band after this tick; None with guards off. A signal that returns starts them anew."""
    if not policy.guards.enabled or used.percent is None:
        return None
    before = memory.smooth if memory.stale_s == 0 else None
    return smooth(before, used.percent, tick.dt_s, policy.guards)


def _slew_bounds(policy: RatePolicy, memory: PoolMemory, tick: PoolTick) -> tuple[float, float]:
    """Where the rate may go in this tick; anywhere with guards off and at the very first tick."""
    if not policy.guards.enabled or memory.rate_per_s is None:
        return 0.0, math.inf
    return slew_bounds_per_s(memory.rate_per_s, tick.dt_s, policy.guards)


def _without_vote(
    plan: PoolPlan, memory: PoolMemory, tick: PoolTick, used: Utilisation, why: tuple[str, bool]
) -> tuple[PoolMemory, PoolDecision]:
    """Servers that are known to be fine may have more, as fast as the slew limit allows; others keep theirs.

    Were it held in any case, a counter that always reads full would ratchet the rate down: each moment with
    something waiting gives it the vote and cuts, and nothing ever raises.
    """
    blind, fine = why
    base, _ = _base_rate(plan, memory)
    rate = _within(plan, base, plan.contract_per_s if memory.rate_per_s is None else memory.rate_per_s)
    target, what = rate, f"held at {rate:.4g}/s"
    if fine and memory.rate_per_s is not None:
        target, rate = base, _within(plan, base, _slew_bounds(plan.pool.rate, memory, tick)[1])
        what = f"the servers are fine, so {rate:.4g}/s, on the way to {base:g}/s" if rate < base else what
    reason = f"{_signal_words(used)} says nothing now: {blind}; {what}."
    decision = _unled(plan, memory, used, rate, target, PoolState.UNINFORMATIVE, reason)
    after = replace(memory, rate_per_s=rate, smooth=None, judged=True, stale_s=0.0, held_per_s=rate)
    return after, decision


def _without_signal(
    plan: PoolPlan, memory: PoolMemory, tick: PoolTick, used: Utilisation
) -> tuple[PoolMemory, PoolDecision]:
    base, _ = _base_rate(plan, memory)
    contract = min(plan.contract_per_s, base)
    why = "no reading yet" if used.age_s is None else f"the last reading is {used.age_s:.0f} s old"
    if not memory.judged:
        reason = f"{_choice_words(plan)}: {why}; the contract rate of {contract:g}/s applies."
        decision = _unled(plan, memory, used, contract, contract, PoolState.CONTRACT, reason)
        return replace(memory, rate_per_s=contract, smooth=None, held_per_s=contract), decision
    stale_s = memory.stale_s + tick.dt_s
    state, rate, what = _held(plan.pool.rate, memory.held_per_s, contract, stale_s)
    rate = _within(plan, base, rate)
    aim = min(memory.held_per_s, contract)
    reason = f"{_choice_words(plan)}: {why}; {what}."
    after = replace(memory, rate_per_s=rate, stale_s=stale_s)
    return after, _unled(plan, after, used, rate, aim, state, reason)


def _held(
    policy: RatePolicy, held_per_s: float, contract_per_s: float, stale_s: float
) -> tuple[PoolState, float, str]:
    """State, rate and words of a pool `stale_s` seconds after its signal went."""
    if held_per_s <= contract_per_s:
        return PoolState.HELD, held_per_s, f"held at {held_per_s:.4g}/s, below its contract rate"
    if stale_s <= policy.hold_s:
        return PoolState.HELD, held_per_s, f"held at {held_per_s:.4g}/s until {policy.hold_s:g} s without it"
    way = (stale_s - policy.hold_s) / policy.decay_s if policy.decay_s > 0 else 1.0
    if way >= 1.0:
        return PoolState.CONTRACT, contract_per_s, f"decayed to the contract rate of {contract_per_s:g}/s"
    rate = held_per_s + way * (contract_per_s - held_per_s)
    return (
        PoolState.DECAYING,
        rate,
        f"decaying from {held_per_s:.4g}/s to the contract rate {contract_per_s:g}/s",
    )


def _frozen(plan: PoolPlan, memory: PoolMemory, used: Utilisation) -> tuple[PoolMemory, PoolDecision]:
    base, _ = _base_rate(plan, memory)
    rate = _within(plan, base, plan.contract_per_s if memory.rate_per_s is None else memory.rate_per_s)
    reason = f"Frozen by an operator at {rate:.4g}/s; measurements change nothing."
    decision = _unled(plan, memory, used, rate, rate, PoolState.FROZEN, reason)
    return replace(memory, rate_per_s=rate, held_per_s=memory.held_per_s or rate), decision


def _unled(
    plan: PoolPlan,
    memory: PoolMemory,
    used: Utilisation,
    rate: float,
    target: float,
    state: PoolState,
    reason: str,
) -> PoolDecision:
    """A decision that no signal led."""
    return PoolDecision(
        pool=plan.pool.id,
        state=state,
        rate_per_s=rate,
        target_per_s=target,
        factor=None,
        base_rate_per_s=_base_rate(plan, memory)[0],
        utilisation_percent=used.percent if used.fresh else None,
        reason=reason,
        inputs=_inputs(plan, memory, used),
    )


def _base_rate(plan: PoolPlan, memory: PoolMemory) -> tuple[float, str]:
    """The rate at factor 1, and a note when it is not what `base_mode` promises."""
    if plan.pool.rate.base_mode is BaseMode.STATIC:
        return plan.base_per_s, ""
    if memory.base_rate_per_s is None:
        return plan.base_per_s, " (base_mode auto without a capacity estimate: the configured base rate)"
    return max(memory.base_rate_per_s, plan.lowest_per_s), " (base rate from the capacity estimate)"


def _within(plan: PoolPlan, base_per_s: float, rate_per_s: float) -> float:
    return max(plan.lowest_per_s, min(base_per_s, rate_per_s))


def _symptoms(policy: RatePolicy, memory: PoolMemory) -> Symptoms:
    fresh = {name: s.value for name, s in memory.samples.items() if s.age_s <= policy.max_age_s}
    return Symptoms(
        ttft_p95_s=fresh.get("ttft_p95_s"),
        waiting_requests=fresh.get("waiting_requests"),
        ttft_slo_s=policy.ttft_slo_s,
        correlation=memory.record.correlation,
    )


def _why_blind(policy: RatePolicy, used: Utilisation, symptoms: Symptoms) -> str | None:
    guards = policy.guards
    if not (guards.enabled and guards.uninformative) or used.percent is None or used.leading not in _COUNTERS:
        return None
    return why_uninformative(used.percent, symptoms)


def _inputs(plan: PoolPlan, memory: PoolMemory, used: Utilisation) -> dict[str, float | None]:
    """Every number that entered; None where there was none."""
    fresh_s = plan.pool.rate.max_age_s
    measured = {
        name: memory.samples[name].value
        if name in memory.samples and memory.samples[name].age_s <= fresh_s
        else None
        for name in _REMEMBERED
    }
    return {
        "u_percent": used.percent,
        "age_s": used.age_s,
        "stale_s": memory.stale_s,
        "previous_per_s": memory.rate_per_s,
        "lowest_per_s": plan.lowest_per_s,
        "contract_per_s": plan.contract_per_s,
        "correlation": memory.record.correlation,
        **measured,
    }


def _choice_words(plan: PoolPlan) -> str:
    return "GPU utilisation" if plan.pool.rate.signal == "gpu_util" else "Effective utilisation"


def _signal_words(used: Utilisation) -> str:
    if used.leading in LITERAL:
        return WORDS[used.leading]
    return f"Effective utilisation (led by {WORDS[used.leading]})"


def _list(names: tuple[str, ...]) -> str:
    return " and ".join(WORDS[name] for name in names)
