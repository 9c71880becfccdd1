"""One pool's breaker over time: from counts to states, and back."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from breaking import POOL, Watched
from judging import OFF, Run, key, policy, pool, traffic

from controlplane.decide.breakers import PROBES_PER_S, jitter_of
from controlplane.decide.step import step
from controlplane.model.decision import BreakerState
from controlplane.model.policy import BreakerPolicy
from controlplane.model.signal import Calls, Observation

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
SHORT = BreakerPolicy(open_s=3.0)


def calm(seconds: int = 900, **breaker: object) -> Watched:
    """A pool that has been good for a while: its reference is known."""
    seen = Watched(policy=BreakerPolicy(**breaker))  # type: ignore[arg-type]
    seen.run(seconds)
    return seen


def seconds_to_open(seen: Watched, **calls: float) -> int:
    for second in range(1, 60):
        if seen.run(1, **calls).state is OPEN:
            return second
    raise AssertionError(f"still {seen.last}")


def test_a_failure_step_opens_within_seconds() -> None:
    seen = calm(60)
    assert seconds_to_open(seen, good=20, failed=30) <= 4
    assert seen.last is not None
    assert "failed" in seen.last.reason
    assert seen.last.retry_after_s >= 30


def test_one_failure_out_of_one_call_opens_nothing_and_25_in_a_row_do() -> None:
    seen = Watched()
    seen.tick()
    for count in range(1, 26):
        assert seen.tick().state is CLOSED, count
        seen.count(failed=1)
        seen.tick()
        for _ in range(19):  # one call in 20 s: never 20 within 5 minutes
            seen.tick()
    assert seen.last is not None
    assert seen.last.state is not CLOSED
    assert "25 calls in a row" in seen.last.reason or OPEN in seen.states


def test_three_times_the_latency_opens_within_ten_seconds() -> None:
    seen = calm(slo_s=2.0)
    assert seconds_to_open(seen, first_byte_s=0.3) <= 10
    assert seen.last is not None
    assert "slow" in seen.last.reason


def test_latency_within_the_slo_never_opens() -> None:
    seen = calm(strategy="static", slo_s=0.8)
    assert seen.run(3600, first_byte_s=0.7).state is CLOSED


def test_without_an_slo_or_a_reference_nothing_is_slow() -> None:
    seen = Watched()
    decision = seen.run(300, first_byte_s=3.0)
    assert (decision.state, decision.threshold_s) == (CLOSED, None)


def test_it_rests_tries_and_comes_back_in_steps() -> None:
    seen = Watched(policy=SHORT)
    seen.run(30)
    seen.run(3, good=0, failed=50)
    assert seen.last is not None
    assert seen.last.state is OPEN
    seen.run(20)
    assert seen.states == [CLOSED, OPEN, HALF_OPEN, CLOSED]
    assert seen.last.capacity_ratio < 1
    assert seen.run(40).capacity_ratio == 1


def test_what_opened_it_is_not_held_against_it_again() -> None:
    seen = Watched(policy=SHORT)
    seen.run(30)
    seen.run(3, good=0, failed=2)  # thin: 20 calls reach back minutes
    seen.count(failed=25)
    seen.tick()
    seen.run(40)
    assert seen.states[-1] is CLOSED
    assert seen.states.count(OPEN) == 1


def test_a_broken_pool_rests_longer_each_time() -> None:
    seen = Watched(policy=SHORT)
    dwells = []
    for _ in range(120):
        seen.run(1, good=0, failed=50)
        dwell_s = seen.memory.breaker.dwell_s
        if dwell_s and dwell_s not in dwells:
            dwells.append(dwell_s)
    assert len(dwells) >= 4
    assert dwells == sorted(dwells)
    assert all(late > 1.5 * early for early, late in pairwise(dwells))


def test_a_probe_that_is_slow_is_a_bad_probe() -> None:
    seen = calm(slo_s=0.5, open_s=3.0)
    seen.run(5, good=0, failed=50)
    while seen.last and seen.last.state is OPEN:
        seen.tick()
    seen.count(3, first_byte_s=3.0)
    assert seen.tick().state is OPEN


@pytest.mark.parametrize(
    ("offered_per_s", "share"), [(0.0, 1.0), (3.0, 1.0), (50.0, 0.06), (3000.0, 0.001), (1e9, 0.001)]
)
def test_a_few_probes_a_second_pass(offered_per_s: float, share: float) -> None:
    seen = Watched(policy=SHORT)
    seen.run(30)
    seen.run(2, good=0, failed=50)
    for _ in range(8):
        decision = seen.tick(offered_per_s=offered_per_s)
    assert decision.state is HALF_OPEN
    assert decision.probe_ratio == pytest.approx(share)
    assert offered_per_s * share <= PROBES_PER_S + 1 or offered_per_s > 3000


def test_small_changes_of_the_traffic_do_not_move_the_share() -> None:
    seen = Watched()
    first = seen.tick(offered_per_s=50.0)
    assert first.probe_ratio == 1.0, "closed"
    seen.tick(offered_per_s=55.0)
    assert seen.memory.probe_ratio == pytest.approx(0.06)


@pytest.mark.parametrize("state", [CLOSED, HALF_OPEN])
def test_silent_gateways_change_no_state(state: BreakerState) -> None:
    seen = Watched(policy=SHORT)
    seen.run(30)
    if state is HALF_OPEN:
        seen.run(2, good=0, failed=50)
        while seen.last and seen.last.state is not HALF_OPEN:
            seen.tick()
    for _ in range(300):
        decision = seen.tick(silent=True)
    assert decision.state is state
    assert "too few gateways" in decision.reason


def test_a_breaker_that_sees_nothing_lets_go_in_the_end() -> None:
    seen = Watched(policy=SHORT)
    seen.run(30)
    seen.run(2, good=0, failed=50)
    for _ in range(620):
        seen.tick(silent=True)
    assert seen.states == [CLOSED, OPEN, HALF_OPEN, CLOSED]


def test_a_clock_that_stands_still_changes_nothing() -> None:
    seen = Watched(policy=SHORT)
    seen.run(30)
    seen.run(2, good=0, failed=50)
    for _ in range(100):
        assert seen.tick(0.0).state is OPEN


def test_jitter_differs_between_pools_and_openings_and_is_repeatable() -> None:
    found = {jitter_of(name, times) for name in ("a:v1", "b:v1", "c:v1") for times in range(5)}
    assert len(found) == 15
    assert all(1.0 <= jitter <= 1.2 for jitter in found)
    assert jitter_of("a:v1", 0) == jitter_of("a:v1", 0)


def test_sustained_overload_does_not_lift_the_baseline() -> None:
    """A day of eight times the latency at full capacity, and a good pool below: it opens again and again."""
    seen = calm(slo_s=2.0)
    before = seen.memory.threshold
    for _ in range(24 * 360):
        late = seen.last is not None and seen.last.state is CLOSED and seen.last.capacity_ratio == 1
        seen.run(2, good=250, first_byte_s=0.7 if late else 0.08, dt_s=5.0)
    assert before.reference_s is not None
    assert seen.memory.threshold.reference_s == pytest.approx(before.reference_s, rel=0.05)
    assert seen.last is not None
    assert seen.last.threshold_s is not None
    assert seen.last.threshold_s < 0.2
    assert seen.states.count(OPEN) > 10


@pytest.mark.parametrize("per_s", [5, 50])
def test_steady_traffic_with_noise_never_opens_it(per_s: int) -> None:
    """Two hours with 0.5 % failures and times that wander; a whole day was run once (docs/breakers.md)."""
    chance = random.Random(per_s)
    seen, wander = Watched(policy=BreakerPolicy(slo_s=2.0)), 0.0
    for _ in range(7200):
        wander = 0.95 * wander + 0.03 * chance.gauss(0, 1)
        calls = max(0, round(chance.gauss(per_s, per_s**0.5)))
        failed = sum(chance.random() < 0.005 for _ in range(calls))
        times = [0.15 * 2.718 ** (wander + 0.45 * chance.gauss(0, 1)) for _ in range(8)]
        seen.count(calls - failed, failed, times)
        assert seen.tick().state is CLOSED, seen.last


# Within judgement as a whole


def observed(run: Run, calls: Calls | None, dt_s: float = 1.0) -> None:
    run.now_s += dt_s
    observation = Observation(
        now_s=run.now_s,
        loads={},
        traffic=traffic(acme=100.0),
        calls=None if calls is None else {POOL: calls},
    )
    run.state, run.decision = step(run.policy, run.state, observation)


def broken(run: Run) -> Watched:
    seen = Watched()
    for good, failed in ((50, 0), (50, 0), (0, 50), (0, 50)):
        seen.count(good, failed)
        observed(run, seen.calls)
    return seen


def test_the_ramp_is_part_of_the_pools_rate() -> None:
    made = pool(guards=OFF, contract_rate_per_s=100.0)
    run = Run(policy([key()], [replace(made, breaker=SHORT)]))
    seen = broken(run)
    assert run.decision.breakers[POOL].state is OPEN
    rates = []
    while run.decision.breakers[POOL].state is not CLOSED or run.decision.breakers[POOL].capacity_ratio < 1:
        seen.count(3 if run.decision.breakers[POOL].state is not OPEN else 0)
        observed(run, seen.calls)
        if run.decision.breakers[POOL].state is CLOSED:
            rates.append(run.decision.pools[POOL].rate_per_s)
            assert run.rate_of("acme") == pytest.approx(rates[-1])
    assert list(dict.fromkeys(rates)) == [10.0, 25.0, 50.0, 100.0]
    assert "breaker" not in run.decision.pools[POOL].reason


def test_a_reload_keeps_the_state() -> None:
    run = Run(policy([key()], [pool()]))
    seen = broken(run)
    run.reload(keys=(key(), key("globex")))
    observed(run, seen.calls)
    assert run.decision.breakers[POOL].state is OPEN


def test_a_breaker_that_is_switched_off_is_gone() -> None:
    run = Run(policy([key()], [pool()]))
    seen = broken(run)
    run.reload(pools=(replace(pool(), breaker=BreakerPolicy(enabled=False)),))
    observed(run, seen.calls)
    assert run.decision.breakers == {}


def test_a_freeze_does_not_stop_breakers() -> None:
    run = Run(policy([key()], [pool()], freeze=True))
    broken(run)
    assert run.decision.breakers[POOL].state is OPEN
