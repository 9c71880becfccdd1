"""M12 and M13: the breaker of one pool. (memory, evidence, seconds) -> (memory, why). Pure.

    closed     -> open       many failures, or many slow calls, beyond doubt
    open       -> half-open  the dwell is over: open_s * 2^n, at most 300 s, jittered
    half-open  -> closed     10 good probes; the capacity then ramps 10 -> 25 -> 50 -> 100 %
    half-open  -> open       2 bad probes, or no verdict in time although there were probes

"Beyond doubt" is the lower end of Wilson's interval at z = 3: with few calls it stays low whatever they were,
so there is no rule for small numbers but one, failures in a row. n counts openings and starts anew after ten
minutes closed. Nothing latches: a dwell ends by the clock alone, half-open without probes lets the next
requests try, and a breaker that has not seen any count for ten minutes lets go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from controlplane.model.decision import BreakerState
from controlplane.model.policy import BreakerPolicy

Z = 3.0
SLOW_RATIO = 0.12  # 5 % is what a 95th percentile means
SLOW_EVALUATIONS = 5
EVALUATE_S = 1.0
_SOON_S = 0.1  # a tick that comes this much early is in time
SLOW_CALLS = 200  # in 10 s, else ...
SLOW_CALLS_LONG = 100  # ... in 60 s
FAILURE_CALLS = 20
IN_A_ROW = 25
DWELL_MAX_S = 300.0
FORGIVEN_S = 600.0  # closed for this long: the next dwell is the first again
BLIND_S = 600.0
PROBES_GOOD = 10
PROBES_BAD = 2
RAMP = (0.10, 0.25, 0.50)
RAMP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """`bad` out of `calls`."""

    calls: float = 0.0
    bad: float = 0.0

    @property
    def surely(self) -> float:
        """The share is above this beyond doubt."""
        return wilson_lower(self.bad, self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the calls since the last change of state say. `known` is False when nobody counted."""

    known: bool = True
    failures: Share = Share()  # of 10 s, or of the last 20 calls
    slow: Share = Share()  # of 10 s
    slow_long: Share = Share()  # of 60 s
    failures_in_a_row: int = 0
    probes: Share = Share()  # all calls since half-open began; slow ones are bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """What is carried from tick to tick."""

    state: BreakerState = BreakerState.CLOSED
    for_s: float = 0.0  # in this state
    dwell_s: float = 0.0  # of the last opening
    openings: int = 0  # since the last ten minutes closed
    slow_marks: int = 0
    evaluated_s: float = EVALUATE_S  # since slowness was looked at
    blind_s: float = 0.0  # since there were counts
    ramps: bool = False  # has closed again and is on its way to full capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One tick's outcome. `why` is empty when the state stayed."""

    breaker: Breaker
    why: str = ""


def wilson_lower(bad: float, calls: float, z: float = Z) -> float:
    """The lower end of Wilson's interval for a share of `bad` out of `calls`; 0 without calls."""
    if not calls > 0:
        return 0.0
    share = min(max(bad / calls, 0.0), 1.0)
    spread = z * math.sqrt(share * (1.0 - share) / calls + z * z / (4.0 * calls * calls))
    return max(0.0, (share + z * z / (2.0 * calls) - spread) / (1.0 + z * z / calls))


def capacity_ratio(breaker: Breaker, policy: BreakerPolicy) -> float:
    """The part of its rate that a pool may use, in 0..1."""
    if not breaker.ramps:
        return 1.0
    return RAMP[min(len(RAMP) - 1, int(breaker.for_s / ramp_s(policy) * len(RAMP)))]


def ramp_s(policy: BreakerPolicy) -> float:
    """How long a pool takes from the first step to full capacity."""
    return max(RAMP_S, policy.warmup_s)


def advance(before: Breaker, evidence: Evidence, policy: BreakerPolicy, dt_s: float, jitter: float) -> Step:
    """The breaker `dt_s` seconds later. `jitter` in [1, 1.2] stretches a dwell that begins now."""
    blind_s = 0.0 if evidence.known else before.blind_s + dt_s
    breaker = replace(
        before,
        for_s=before.for_s + dt_s,
        evaluated_s=before.evaluated_s + dt_s,
        blind_s=blind_s,
    )
    if breaker.state is BreakerState.OPEN:
        return _open(breaker)
    if not evidence.known:
        return _blind(breaker)
    if breaker.state is BreakerState.HALF_OPEN:
        return _half_open(breaker, evidence, policy, jitter)
    return _closed(breaker, evidence, policy, jitter)


def _closed(breaker: Breaker, evidence: Evidence, policy: BreakerPolicy, jitter: float) -> Step:
    breaker = _marked(breaker, evidence)
    if why := _failing(evidence, policy) or _slow(breaker, evidence):
        return _opened(breaker, policy, jitter, why)
    if breaker.for_s >= FORGIVEN_S:
        breaker = replace(breaker, openings=0)
    if breaker.ramps and breaker.for_s >= ramp_s(policy):
        breaker = replace(breaker, ramps=False)
    return Step(breaker=breaker)


def _open(breaker: Breaker) -> Step:
    if breaker.for_s < breaker.dwell_s:
        return Step(breaker=breaker)
    half = replace(breaker, state=BreakerState.HALF_OPEN, for_s=0.0)
    return Step(breaker=half, why=f"{breaker.dwell_s:.0f} s are over: a few requests may try")


def _half_open(breaker: Breaker, evidence: Evidence, policy: BreakerPolicy, jitter: float) -> Step:
    probes = evidence.probes
    good = probes.calls - probes.bad
    if probes.bad >= PROBES_BAD:
        why = f"{probes.bad:.0f} of {probes.calls:.0f} requests that tried failed or were slow"
        return _opened(breaker, policy, jitter, why)
    if good >= PROBES_GOOD:
        return _closed_again(breaker, f"{good:.0f} of {probes.calls:.0f} requests that tried were good")
    if breaker.for_s >= policy.half_open_timeout_s and probes.calls >= PROBES_GOOD:
        return _opened(breaker, policy, jitter, f"no verdict within {policy.half_open_timeout_s:g} s")
    return Step(breaker=breaker)


def _blind(breaker: Breaker) -> Step:
    """Without counts a state is kept, but a breaker that sees nothing does not refuse for ever."""
    if breaker.state is BreakerState.HALF_OPEN and breaker.blind_s >= BLIND_S:
        return _closed_again(breaker, f"no gateway has reported for {BLIND_S:.0f} s")
    return Step(breaker=breaker)


def _opened(breaker: Breaker, policy: BreakerPolicy, jitter: float, why: str) -> Step:
    dwell_s = min(DWELL_MAX_S, policy.open_s * 2.0 ** min(breaker.openings, 30) * jitter)
    after = replace(
        breaker,
        state=BreakerState.OPEN,
        for_s=0.0,
        dwell_s=dwell_s,
        openings=breaker.openings + 1,
        slow_marks=0,
        ramps=False,
    )
    return Step(breaker=after, why=why)


def _closed_again(breaker: Breaker, why: str) -> Step:
    after = replace(breaker, state=BreakerState.CLOSED, for_s=0.0, slow_marks=0, ramps=True)
    return Step(breaker=after, why=why)


def _marked(breaker: Breaker, evidence: Evidence) -> Breaker:
    """One evaluation of slowness a second: a mark more when it is beyond doubt, else one less."""
    if breaker.evaluated_s < EVALUATE_S - _SOON_S:
        return breaker
    share = _slow_share(evidence)
    marks = breaker.slow_marks + 1 if share and share.surely > SLOW_RATIO else breaker.slow_marks - 1
    return replace(breaker, slow_marks=max(0, marks), evaluated_s=0.0)


def _slow_share(evidence: Evidence) -> Share | None:
    """The window that has enough calls; None when neither has."""
    if evidence.slow.calls >= SLOW_CALLS:
        return evidence.slow
    return evidence.slow_long if evidence.slow_long.calls >= SLOW_CALLS_LONG else None


def _failing(evidence: Evidence, policy: BreakerPolicy) -> str:
    failures = evidence.failures
    if failures.calls >= FAILURE_CALLS and failures.surely > policy.failure_rate_threshold:
        limit = f"surely above {policy.failure_rate_threshold:.0%}"
        return f"{failures.bad:.0f} of the last {failures.calls:.0f} calls failed, {limit}"
    if evidence.failures_in_a_row >= IN_A_ROW:
        return f"{evidence.failures_in_a_row} calls in a row failed"
    return ""


def _slow(breaker: Breaker, evidence: Evidence) -> str:
    if breaker.slow_marks < SLOW_EVALUATIONS:
        return ""
    share = _slow_share(evidence) or evidence.slow_long
    return f"{share.bad:.0f} of the last {share.calls:.0f} calls were slow, surely above {SLOW_RATIO:.0%}"
