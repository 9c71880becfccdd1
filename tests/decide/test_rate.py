"""The rate of one pool over simulated time: the literal formula, the guards, freeze and reloads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import OFF, RAW, Run, key, load, policy, pool, traffic

from controlplane.decide import step
from controlplane.decide.curve import rate_factor
from controlplane.model.decision import PoolState
from controlplane.model.policy import BaseMode, Curve, Guards, SignalChoice
from controlplane.model.signal import Observation


def run(**rate: object) -> Run:
    return Run(policy(pools=[pool(**rate)]))


# Guards off: the formula to the letter


@given(st.lists(st.floats(0, 100), min_size=1, max_size=10), st.sampled_from(Curve))
def test_with_guards_off_every_tick_is_the_formula(percents: list[float], curve: Curve) -> None:
    pools = run(curve=curve, guards=OFF)
    for percent in percents:
        got = pools.tick(gpu_util_percent=percent)
        factor = rate_factor(percent, curve)
        assert factor is not None
        assert got.rate_per_s == pytest.approx(100 * factor, abs=1e-9, rel=0)
        assert got.state is PoolState.LIVE


def test_the_reference_points_at_the_default_base_rate() -> None:
    pools = run(guards=OFF)
    rates = [pools.tick(gpu_util_percent=u).rate_per_s for u in (15, 60, 95)]
    assert rates == pytest.approx([100.0, 40.0, 10.0], abs=1e-9)


def test_a_decision_carries_its_inputs_and_a_sentence() -> None:
    got = run().tick(gpu_util_percent=60.0, failure_ratio=0.02)
    assert got.reason == "GPU utilisation 60.0 %: 0.4 of 100/s is 40/s."
    assert got.inputs["u_percent"] == got.inputs["gpu_util_percent"] == 60.0
    assert got.inputs["age_s"] == 0.0
    assert got.inputs["failure_ratio"] == 0.02
    assert got.inputs["kv_cache_usage_ratio"] is None
    assert (got.target_per_s, got.factor, got.base_rate_per_s) == (40.0, 0.4, 100.0)


# Slew, dead band, floor


def test_the_first_signal_sets_the_rate_directly() -> None:
    assert run().tick(gpu_util_percent=15.0).rate_per_s == 100.0


def test_a_rise_is_slewed_and_says_so() -> None:
    pools = run(guards=RAW)
    pools.tick(gpu_util_percent=95.0)
    got = pools.tick(5.0, gpu_util_percent=15.0)
    assert got.rate_per_s == pytest.approx(11.0)
    assert got.target_per_s == 100.0
    assert "slew" in got.reason
    assert got.inputs["slew_highest_per_s"] == pytest.approx(11.0)


def test_a_fall_is_slewed_too() -> None:
    pools = run(guards=RAW)
    pools.tick(gpu_util_percent=15.0)
    assert pools.tick(5.0, gpu_util_percent=95.0).rate_per_s == pytest.approx(70.0)
    assert pools.tick(60.0, gpu_util_percent=95.0).rate_per_s == 10.0


@given(st.lists(st.tuples(st.floats(0.1, 20), st.floats(0, 100)), min_size=1, max_size=20))
def test_no_tick_ever_breaks_the_slew_limit(ticks: list[tuple[float, float]]) -> None:
    pools = run()
    before = pools.tick(gpu_util_percent=50.0).rate_per_s
    for dt_s, percent in ticks:
        rate = pools.tick(dt_s, gpu_util_percent=percent).rate_per_s
        assert before * 0.7 ** (dt_s / 5) * (1 - 1e-6) <= rate <= before * 1.1 ** (dt_s / 5) * (1 + 1e-6)
        before = rate


def test_noise_within_the_dead_band_moves_nothing() -> None:
    pools = run()
    pools.tick(gpu_util_percent=50.0)
    rates = {pools.tick(gpu_util_percent=50.0 + (-1) ** i * 4).rate_per_s for i in range(50)}
    assert len(rates) == 1


def test_a_constant_signal_ends_in_equal_numbers() -> None:
    pools = run()
    pools.tick(gpu_util_percent=80.0)
    pools.ticks(300, gpu_util_percent=35.3)
    first, second = pools.ticks(2, gpu_util_percent=35.3)
    assert first.rate_per_s == second.rate_per_s == pytest.approx(89.4)


@pytest.mark.parametrize(
    ("base", "rate"), [(100.0, 10.0), (5.0, 1.0), (0.5, 0.5)], ids=["a-tenth", "one-probe", "all-of-little"]
)
def test_the_floor_is_a_tenth_or_one_probe(base: float, rate: float) -> None:
    got = run(base_rate_per_s=base, contract_rate_per_s=base).tick(gpu_util_percent=100.0)
    assert got.rate_per_s == pytest.approx(rate)
    assert ("floor" in got.reason) is (base < 10)


# The vote


def test_a_counter_that_reads_full_loses_its_vote_and_fine_servers_get_more_slowly() -> None:
    pools = run()
    pools.tick(gpu_util_percent=50.0)
    got = pools.tick(5.0, gpu_util_percent=99.0, ttft_p95_s=0.4, waiting_requests=0.0)
    assert (got.state, got.rate_per_s) == (PoolState.UNINFORMATIVE, pytest.approx(66.0))
    assert got.factor is None
    assert "99 % while first tokens come in 0.40 s and nothing waits" in got.reason
    assert "the servers are fine" in got.reason


def test_without_a_vote_the_rate_never_climbs_above_the_base_rate() -> None:
    pools = run()
    pools.tick(gpu_util_percent=50.0)
    last = pools.ticks(120, gpu_util_percent=99.0, ttft_p95_s=0.4, waiting_requests=0.0)[-1]
    assert (last.state, last.rate_per_s) == (PoolState.UNINFORMATIVE, pytest.approx(100.0))


@pytest.mark.parametrize(
    "symptoms",
    [{}, {"ttft_p95_s": 0.4}, {"waiting_requests": 0.0}, {"ttft_p95_s": 1.2, "waiting_requests": 0.0}],
    ids=["nothing-known", "no-queue-known", "no-ttft-known", "half-the-slo-gone"],
)
def test_without_a_vote_and_without_proof_of_health_the_rate_is_held(symptoms: dict[str, float]) -> None:
    pools = run()
    for i in range(70):  # the work moves, the counter does not: no correlation
        pools.tick(5.0, gpu_util_percent=70.0, traffic=traffic(acme=10.0 + 5 * (i % 4)), **symptoms)
    before, after = pools.ticks(2, gpu_util_percent=70.0, **symptoms)
    assert after.state is PoolState.UNINFORMATIVE
    assert after.rate_per_s == before.rate_per_s
    assert "held at" in after.reason


def test_a_counter_that_always_reads_full_does_not_ratchet_the_rate_down() -> None:
    pools = run()
    pools.tick(gpu_util_percent=50.0)
    for _ in range(200):  # one tick in ten has something waiting, which gives the counter its vote
        pools.tick(gpu_util_percent=99.0, ttft_p95_s=0.4, waiting_requests=1.0)
        pools.ticks(9, gpu_util_percent=99.0, ttft_p95_s=0.4, waiting_requests=0.0)
    last = pools.tick(gpu_util_percent=99.0, ttft_p95_s=0.4, waiting_requests=0.0)
    assert last.rate_per_s > 60.0


def test_the_vote_returns_with_the_queue() -> None:
    pools = run(guards=RAW)
    pools.tick(gpu_util_percent=50.0)
    blind = pools.ticks(20, gpu_util_percent=99.0, ttft_p95_s=0.4, waiting_requests=0.0)[-1]
    got = pools.tick(5.0, gpu_util_percent=99.0, ttft_p95_s=0.4, waiting_requests=3.0)
    assert (got.state, got.rate_per_s) == (PoolState.LIVE, pytest.approx(blind.rate_per_s * 0.7))


def test_a_stuck_counter_loses_its_vote_by_correlation() -> None:
    pools = run()
    states = [
        pools.tick(5.0, gpu_util_percent=70.0, traffic=traffic(acme=10.0 + 5 * (i % 4))).state
        for i in range(70)
    ]
    assert states[:59] == [PoolState.LIVE] * 59
    assert states[-1] is PoolState.UNINFORMATIVE


def test_full_kv_cache_never_loses_its_vote() -> None:
    got = run(signal=SignalChoice.EFFECTIVE).tick(
        kv_cache_usage_ratio=0.92, ttft_p95_s=0.1, waiting_requests=0.0
    )
    assert (got.state, got.rate_per_s) == (PoolState.LIVE, pytest.approx(10.0))


@pytest.mark.parametrize("guards", [Guards(uninformative=False), OFF], ids=["this-guard-off", "all-off"])
def test_the_vote_can_be_switched_off(guards: Guards) -> None:
    got = run(guards=guards).tick(gpu_util_percent=99.0, ttft_p95_s=0.4, waiting_requests=0.0)
    assert got.state is PoolState.LIVE


def test_a_pool_that_starts_uninformative_has_its_contract_rate() -> None:
    got = run().tick(gpu_util_percent=99.0, ttft_p95_s=0.4, waiting_requests=0.0)
    assert (got.state, got.rate_per_s) == (PoolState.UNINFORMATIVE, 40.0)


# Effective utilisation


def test_a_lost_part_does_not_loosen() -> None:
    pools = run(signal=SignalChoice.EFFECTIVE, guards=OFF)
    pools.tick(kv_cache_usage_ratio=0.828, waiting_requests=0.0)
    for _ in range(300):
        got = pools.tick(kv_cache_usage_ratio=None, waiting_requests=0.0)
    assert got.rate_per_s == pytest.approx(10.0)
    assert "no new KV-cache use" in got.reason


# Base rate


def test_auto_without_an_estimate_behaves_as_static_and_says_so() -> None:
    got = run(base_mode=BaseMode.AUTO, guards=OFF).tick(gpu_util_percent=60.0)
    assert got.rate_per_s == pytest.approx(40.0)
    assert "the configured base rate" in got.reason


# Freeze and reload


def test_freeze_keeps_the_rate_and_the_shares() -> None:
    pools = run(guards=OFF)
    pools.tick(gpu_util_percent=60.0, traffic=traffic(acme=5.0))
    before = pools.decision
    pools.reload(freeze=True)
    got = pools.tick(gpu_util_percent=95.0, traffic=traffic(acme=500.0))
    assert (got.state, got.rate_per_s) == (PoolState.FROZEN, 40.0)
    assert pools.decision.rate_per_s.tolist() == before.rate_per_s.tolist()
    assert "operator" in got.reason


def test_after_a_freeze_the_signal_has_the_word_again() -> None:
    pools = run(guards=OFF)
    pools.tick(gpu_util_percent=60.0)
    pools.reload(freeze=True)
    pools.ticks(100, gpu_util_percent=None)
    pools.reload(freeze=False)
    assert pools.tick(gpu_util_percent=95.0).rate_per_s == pytest.approx(10.0)


def test_a_freeze_before_any_signal_keeps_the_contract_rate() -> None:
    pools = Run(policy(freeze=True))
    assert (pools.tick().state, pools.tick().rate_per_s) == (PoolState.FROZEN, 40.0)


def test_a_reload_keeps_what_was_learned() -> None:
    pools = run(guards=RAW)
    pools.tick(gpu_util_percent=95.0)
    pools.reload(pools=(pool(guards=RAW, base_rate_per_s=200.0), pool("other")))
    assert pools.tick(5.0, gpu_util_percent=15.0).rate_per_s == pytest.approx(20.0)  # the new floor
    assert pools.tick(5.0, gpu_util_percent=15.0).rate_per_s == pytest.approx(22.0)  # then the slew


def test_a_lower_base_rate_holds_at_once() -> None:
    pools = run()
    pools.tick(gpu_util_percent=15.0)
    pools.reload(pools=(pool(base_rate_per_s=20.0),))
    assert pools.tick(gpu_util_percent=15.0).rate_per_s == 20.0


@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=True, allow_infinity=True),
            st.none() | st.floats(allow_nan=True, allow_infinity=True),
            st.floats(-1e6, 1e6),
        ),
        max_size=20,
    )
)
def test_junk_never_takes_the_rate_out_of_its_bounds(
    ticks: list[tuple[float, float | None, float]],
) -> None:
    pools = run(signal=SignalChoice.EFFECTIVE)
    for kv, waiting, dt_s in ticks:
        now_s = pools.now_s + dt_s
        got = pools.tick(dt_s, load=load(now_s, kv_cache_usage_ratio=kv, waiting_requests=waiting))
        assert 10.0 <= got.rate_per_s <= 100.0


@pytest.mark.parametrize(("requests", "told"), [(0, None), (19, None), (20, 0.5)])
def test_a_failure_ratio_of_few_requests_says_nothing(requests: int, told: float | None) -> None:
    one = policy([key("a")])
    seen = Observation(now_s=1.0, loads={"chat:v1": load(1.0, of=requests, failure_ratio=0.5)}, traffic=None)
    _, decision = step.step(one, step.start(one), seen)
    assert decision.pools["chat:v1"].inputs["failure_ratio"] == told
