"""One pool's breaker at one tick: totals of calls in, a BreakerDecision out.

calls -> history -> windows since the last change of state -> evidence -> breaker
              |                                                  ^
              +-> p95 and failures of 5 minutes -> threshold ----+
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field, replace

from controlplane.decide import breaker as machine
from controlplane.decide.breaker import Breaker, Evidence, Share
from controlplane.decide.calls import Growth, History
from controlplane.decide.threshold import CALLS_MIN, Measured, Threshold, follow
from controlplane.model.decision import BreakerDecision, BreakerState
from controlplane.model.policy import BreakerPolicy
from controlplane.model.signal import Calls

SHORT_S, LONG_S, SPAN_S = 10.0, 60.0, 300.0
PROBES_PER_S = 3.0  # over all gateways together
_PROBE_RATIO_MIN = 0.001
_PROBE_MOVE_RATIO = 0.25  # a smaller change of the share is not worth a push
JITTER_MAX_RATIO = 0.2
BELIEVED_S = 90
_BEAT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerMemory:
    """What one pool's breaker carries from tick to tick."""

    clock_s: float = 0.0  # of judgement: the sum of all ticks, which never goes back
    since_s: float = -math.inf  # when the state began, on that clock
    history: History = field(default_factory=History)
    threshold: Threshold = field(default_factory=Threshold)
    breaker: Breaker = field(default_factory=Breaker)
    why: str = "nothing speaks against it"  # the last change of state
    since_failed: float = 0.0  # failures counted before that
    opened: int = 0  # times, ever
    probe_ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerTick:
    """What one breaker sees at one tick."""

    pool: str
    dt_s: float
    calls: Calls | None  # None: nobody counted
    offered_per_s: float | None  # requests that want this pool, refused ones included; None: unknown


def judge_breaker(
    policy: BreakerPolicy, before: BreakerMemory, tick: BreakerTick
) -> tuple[BreakerMemory, BreakerDecision]:
    """The breaker after this tick."""
    clock_s = before.clock_s + tick.dt_s
    history = before.history if tick.calls is None else before.history.with_calls(clock_s, tick.calls)
    seen = replace(before, clock_s=clock_s, history=history)
    if tick.calls is None:
        threshold = follow(before.threshold, Measured(p95_s=None), policy, tick.dt_s)
        evidence = Evidence(known=False)
    else:
        threshold = follow(before.threshold, _measured(seen), policy, tick.dt_s)
        evidence = _evidence(seen, threshold.value_s, tick.calls)
    jitter = jitter_of(tick.pool, before.opened)
    step = machine.advance(before.breaker, evidence, policy, tick.dt_s, jitter)
    after = replace(seen, threshold=threshold, breaker=step.breaker, probe_ratio=_probe_ratio(seen, tick))
    if step.why:
        last = history.samples[-1].calls if history.samples else None
        after = replace(after, why=step.why, since_s=clock_s, since_failed=last.failed if last else 0.0)
        if step.breaker.state is BreakerState.OPEN:
            after = replace(after, opened=before.opened + 1)
    return after, _decision(policy, after, tick, evidence)


def jitter_of(pool: str, times: int) -> float:
    """A stretch in [1, 1 + JITTER_MAX_RATIO] that pools and openings do not share. Deterministic."""
    return 1.0 + JITTER_MAX_RATIO * zlib.crc32(f"{pool} {times}".encode()) / 0xFFFFFFFF


def _measured(memory: BreakerMemory) -> Measured:
    span = memory.history.window(SPAN_S, since_s=memory.since_s)
    return Measured(
        p95_s=span.p95_s() if span.timed >= CALLS_MIN else None,
        failure_ratio=span.failure_ratio or 0.0,
        timed=span.timed,
        closed=memory.breaker.state is BreakerState.CLOSED,
        slow=memory.breaker.slow_marks > 0,
    )


def _evidence(memory: BreakerMemory, threshold_s: float | None, calls: Calls) -> Evidence:
    since_s, history = memory.since_s, memory.history
    recent = history.recent(SHORT_S, since_s=since_s)
    short, long = history.window(SHORT_S, since_s=since_s), history.window(LONG_S, since_s=since_s)
    probes = Share()
    if memory.breaker.state is BreakerState.HALF_OPEN:
        tried = history.window(math.inf, since_s=since_s)
        probes = Share(calls=tried.answered, bad=tried.failed + tried.slow(threshold_s))
    return Evidence(
        failures=Share(calls=recent.answered, bad=recent.failed),
        slow=_slow(short, threshold_s),
        slow_long=_slow(long, threshold_s),
        failures_in_a_row=int(min(calls.failures_in_a_row, _failed_since(memory, calls))),
        probes=probes,
    )


def _failed_since(memory: BreakerMemory, calls: Calls) -> float:
    """Failures in this state; totals that began anew since then are all of it."""
    return calls.failed - memory.since_failed if calls.failed >= memory.since_failed else calls.failed


def _slow(growth: Growth, threshold_s: float | None) -> Share:
    return Share(calls=growth.timed, bad=growth.slow(threshold_s))


def _probe_ratio(memory: BreakerMemory, tick: BreakerTick) -> float:
    """The share of requests that makes about PROBES_PER_S of what is offered."""
    if tick.offered_per_s is None:
        return memory.probe_ratio
    wanted = 1.0 if tick.offered_per_s <= PROBES_PER_S else PROBES_PER_S / tick.offered_per_s
    wanted = max(_PROBE_RATIO_MIN, round(wanted, 3))
    moved = abs(wanted - memory.probe_ratio) > _PROBE_MOVE_RATIO * memory.probe_ratio
    return wanted if moved or wanted == 1.0 else memory.probe_ratio


def _decision(
    policy: BreakerPolicy, memory: BreakerMemory, tick: BreakerTick, evidence: Evidence
) -> BreakerDecision:
    breaker = memory.breaker
    left_s = breaker.dwell_s - breaker.for_s if breaker.state is BreakerState.OPEN else 0.0
    is_half = breaker.state is BreakerState.HALF_OPEN
    return BreakerDecision(
        pool=tick.pool,
        state=breaker.state,
        threshold_s=memory.threshold.value_s,
        failure_ratio=_ratio(evidence.failures),
        reason=_reason(policy, memory, evidence),
        retry_after_s=max(1, math.ceil(left_s)),
        probe_ratio=memory.probe_ratio if is_half else 1.0,
        capacity_ratio=machine.capacity_ratio(breaker, policy),
        believed_s=BELIEVED_S + int(breaker.for_s / _BEAT_S) % 2 if is_half else 0,
        inputs=_inputs(memory, evidence),
    )


def _reason(policy: BreakerPolicy, memory: BreakerMemory, evidence: Evidence) -> str:
    breaker = memory.breaker
    words = [f"{breaker.state.value}: {memory.why}"]
    if breaker.ramps:
        words.append(f"on the way to full capacity, {machine.capacity_ratio(breaker, policy):.0%} now")
    if not evidence.known:
        words.append("kept, for too few gateways report")
    return "; ".join(words) + "."


def _inputs(memory: BreakerMemory, evidence: Evidence) -> dict[str, float | None]:
    """Every number that entered; None where there was none."""
    breaker, threshold = memory.breaker, memory.threshold
    return {
        "calls": evidence.failures.calls,
        "failures": evidence.failures.bad,
        "failures_surely_ratio": evidence.failures.surely,
        "failures_in_a_row": float(evidence.failures_in_a_row),
        "timed_10s": evidence.slow.calls,
        "slow_10s": evidence.slow.bad,
        "slow_surely_ratio": evidence.slow.surely,
        "slow_marks": float(breaker.slow_marks),
        "probes": evidence.probes.calls,
        "probes_bad": evidence.probes.bad,
        "p95_s": threshold.p95_s,
        "reference_p95_s": threshold.reference_s,
        "threshold_floor_s": threshold.floor_s,
        "state_for_s": breaker.for_s,
        "dwell_s": breaker.dwell_s or None,
        "openings": float(breaker.openings),
        "probe_ratio": memory.probe_ratio,
    }


def _ratio(share: Share) -> float | None:
    return share.bad / share.calls if share.calls >= machine.FAILURE_CALLS else None
