"""What a pool does without its signal, second by second: held, then on to the contract, never up, never 0."""

import math

import pytest
from judging import OFF, RAW, Run, load, policy, pool

from controlplane.model.decision import PoolState
from controlplane.model.policy import Guards


def run(**rate: object) -> Run:
    return Run(policy(pools=[pool(**rate)]))


def silence(pools: Run, seconds: float) -> tuple[PoolState, float]:
    """State and rate after so many more seconds without any reading."""
    for _ in range(int(seconds)):
        got = pools.tick(gpu_util_percent=None)
    return got.state, got.rate_per_s


def test_before_any_reading_the_contract_rate_applies() -> None:
    pools = run()
    first = pools.tick()
    assert (first.state, first.rate_per_s, first.factor) == (PoolState.CONTRACT, 40.0, None)
    assert "no reading yet" in first.reason
    assert silence(pools, 600) == (PoolState.CONTRACT, 40.0)


def test_the_contract_rate_is_never_above_the_base_rate() -> None:
    assert run(base_rate_per_s=20.0).tick().rate_per_s == 20.0


@pytest.mark.parametrize("guards", [Guards(), OFF], ids=["guards-on", "guards-off"])
def test_the_timeline_of_a_lost_signal(guards: Guards) -> None:
    pools = run(guards=guards)
    pools.tick(gpu_util_percent=15.0)
    assert silence(pools, 15) == (PoolState.LIVE, 100.0)  # within max_age_s the last reading counts
    assert silence(pools, 1) == (PoolState.HELD, 100.0)
    assert silence(pools, 59) == (PoolState.HELD, 100.0)
    assert silence(pools, 60) == (PoolState.DECAYING, pytest.approx(70.0))
    assert silence(pools, 59) == (PoolState.DECAYING, pytest.approx(40.5))
    assert silence(pools, 1) == (PoolState.CONTRACT, 40.0)
    assert silence(pools, 3600) == (PoolState.CONTRACT, 40.0)


def test_an_old_sample_counts_like_none() -> None:
    pools = run()
    pools.tick(gpu_util_percent=15.0)
    for _ in range(30):
        old = load(pools.now_s + 1 - 100, gpu_util_percent=99.0)
        got = pools.tick(load=old)
    assert (got.state, got.rate_per_s) == (PoolState.HELD, 100.0)


def test_a_low_rate_is_never_raised_for_want_of_a_signal() -> None:
    pools = run()
    pools.tick(gpu_util_percent=95.0)
    assert silence(pools, 3600) == (PoolState.HELD, 10.0)


def test_a_contract_below_the_floor_is_where_it_ends() -> None:
    pools = run(contract_rate_per_s=4.0)
    pools.tick(gpu_util_percent=95.0)
    assert silence(pools, 300) == (PoolState.CONTRACT, 4.0)


def test_a_contract_of_zero_never_closes_the_pool() -> None:
    pools = run(contract_rate_per_s=0.0)
    assert pools.tick().rate_per_s == 10.0


def test_the_reason_says_how_old_the_last_reading_is() -> None:
    pools = run()
    pools.tick(gpu_util_percent=15.0)
    silence(pools, 29)
    got = pools.tick()
    assert "the last reading is 30 s old; held at 100/s until 60 s without it" in got.reason
    assert got.utilisation_percent is None
    assert got.inputs["age_s"] == 30.0


def test_a_signal_that_returns_is_slewed_with_guards() -> None:
    pools = run(guards=RAW)
    pools.tick(gpu_util_percent=15.0)
    silence(pools, 300)
    got = pools.tick(5.0, gpu_util_percent=15.0)
    assert (got.state, got.rate_per_s) == (PoolState.LIVE, pytest.approx(44.0))


def test_a_signal_that_returns_is_the_formula_again_without_guards() -> None:
    pools = run(guards=OFF)
    pools.tick(gpu_util_percent=15.0)
    silence(pools, 300)
    assert pools.tick(gpu_util_percent=60.0).rate_per_s == pytest.approx(40.0)


def test_the_hold_starts_anew_after_each_return() -> None:
    pools = run(guards=OFF)
    pools.tick(gpu_util_percent=15.0)
    silence(pools, 130)
    pools.tick(gpu_util_percent=15.0)
    assert silence(pools, 70) == (PoolState.HELD, 100.0)


@pytest.mark.parametrize("junk", [math.nan, -1.0, math.inf, 9.2e18], ids=str)
def test_junk_is_dropped_and_loosens_nothing(junk: float) -> None:
    pools = run(guards=OFF)
    pools.tick(gpu_util_percent=95.0)
    for _ in range(100):
        got = pools.tick(gpu_util_percent=junk)
    assert (got.state, got.rate_per_s) == (PoolState.HELD, 10.0)


def test_a_clock_that_goes_back_moves_nothing() -> None:
    pools = run(guards=RAW)
    pools.tick(gpu_util_percent=60.0)
    got = pools.tick(-3600.0, gpu_util_percent=15.0)
    assert got.rate_per_s == pytest.approx(40.0)
    assert pools.tick(5.0, gpu_util_percent=15.0).rate_per_s == pytest.approx(44.0)


def test_samples_from_before_the_clock_went_back_are_dropped() -> None:
    pools = run(guards=OFF)
    pools.tick(gpu_util_percent=95.0)
    ahead = load(pools.now_s, gpu_util_percent=15.0)
    assert pools.tick(-3600.0, load=ahead).rate_per_s == pytest.approx(10.0)


def test_a_clock_that_jumps_ahead_counts_as_one_minute() -> None:
    pools = run(guards=RAW)
    pools.tick(gpu_util_percent=95.0)
    assert pools.tick(1e6, gpu_util_percent=15.0).rate_per_s == pytest.approx(10 * 1.1**12)


def test_a_pool_that_is_not_observed_at_all_is_a_pool_without_a_signal() -> None:
    pools = Run(policy(pools=[pool(), pool("other")]))
    pools.tick(gpu_util_percent=15.0)
    assert pools.decision.pools["other:v1"].state is PoolState.CONTRACT
