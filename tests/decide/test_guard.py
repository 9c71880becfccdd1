import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.decide.guard import (
    Record,
    Smooth,
    Symptoms,
    record,
    slew_bounds_per_s,
    smooth,
    why_uninformative,
)
from controlplane.model.policy import Guards

BAND = Guards(ewma_tau_s=0.0)  # the dead band alone
FILTER = Guards(dead_band_points=0.0)  # the filter alone


def through(guards: Guards, *percents: float, dt_s: float = 1.0) -> list[float]:
    """What the curve sees after each of `percents`."""
    state: Smooth | None = None
    applied = []
    for percent in percents:
        state = smooth(state, percent, dt_s, guards)
        applied.append(state.applied)
    return applied


@pytest.mark.parametrize(
    ("percents", "applied"),
    [
        pytest.param([50, 54, 46, 54, 46], [50, 50, 50, 50, 50], id="noise-is-ignored"),
        pytest.param([50, 53, 53, 53], [50, 50, 50, 53], id="three-ticks-on-one-side-close-it"),
        pytest.param([50, 53, 53, 50, 53, 53, 53], [50, 50, 50, 50, 50, 50, 53], id="the-count-starts-anew"),
        pytest.param([50, 56], [50, 56], id="beyond-the-band-at-once"),
        pytest.param([50, 52, 48, 47, 46], [50, 50, 50, 50, 46], id="sides-are-counted-apart"),
    ],
)
def test_the_dead_band(percents: list[float], applied: list[float]) -> None:
    assert through(BAND, *percents) == applied


def test_a_dead_band_of_zero_is_off() -> None:
    assert through(Guards(ewma_tau_s=0.0, dead_band_points=0.0), 50, 51, 50.5) == [50, 51, 50.5]


def test_the_filter_follows_with_its_time_constant() -> None:
    assert through(FILTER, 0, 100, dt_s=2.0)[1] == pytest.approx(100 * (1 - math.exp(-1)))


def test_the_filter_takes_equal_times_not_equal_ticks() -> None:
    assert through(FILTER, 0, 100, 100, 100, 100, dt_s=0.5)[-1] == pytest.approx(
        through(FILTER, 0, 100, dt_s=2.0)[-1]
    )


def test_a_constant_signal_arrives_exactly() -> None:
    assert through(Guards(), 10, *[80.0] * 60)[-1] == 80.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_what_is_applied_stays_within_what_was_seen(percents: list[float]) -> None:
    assert min(percents) - 1e-9 <= min(through(Guards(), *percents))
    assert max(through(Guards(), *percents)) <= max(percents) + 1e-9


@pytest.mark.parametrize(
    ("dt_s", "low", "high"),
    [(5.0, 70.0, 110.0), (10.0, 49.0, 121.0), (0.0, 100.0, 100.0), (1.0, 93.114, 101.924)],
)
def test_slew_is_ten_percent_up_and_thirty_down_per_five_seconds(
    dt_s: float, low: float, high: float
) -> None:
    assert slew_bounds_per_s(100.0, dt_s, Guards()) == (
        pytest.approx(low, rel=1e-4),
        pytest.approx(high, rel=1e-4),
    )


@given(st.lists(st.floats(0.01, 20), min_size=1, max_size=20))
def test_slew_depends_on_time_and_not_on_ticks(steps: list[float]) -> None:
    low = high = 100.0
    for dt_s in steps:
        low, high = slew_bounds_per_s(low, dt_s, Guards())[0], slew_bounds_per_s(high, dt_s, Guards())[1]
    once = slew_bounds_per_s(100.0, math.fsum(steps), Guards())
    assert (low, high) == (pytest.approx(once[0], rel=1e-9), pytest.approx(once[1], rel=1e-9))


def test_a_slew_ratio_of_zero_is_off() -> None:
    assert slew_bounds_per_s(100.0, 1.0, Guards(slew_up_ratio=0, slew_down_ratio=0)) == (0.0, math.inf)


def symptoms(
    ttft_p95_s: float | None = 0.5, waiting: float | None = 0.0, correlation: float | None = None
) -> Symptoms:
    return Symptoms(ttft_p95_s=ttft_p95_s, waiting_requests=waiting, ttft_slo_s=2.0, correlation=correlation)


@pytest.mark.parametrize(
    ("percent", "seen", "blind"),
    [
        pytest.param(99.0, symptoms(), True, id="reads-full-but-serves-well"),
        pytest.param(95.0, symptoms(), False, id="only-above-95"),
        pytest.param(99.0, symptoms(ttft_p95_s=1.0), False, id="first-tokens-are-late"),
        pytest.param(99.0, symptoms(waiting=0.5), False, id="something-waits"),
        pytest.param(99.0, symptoms(ttft_p95_s=None), False, id="ttft-unknown-keeps-the-vote"),
        pytest.param(99.0, symptoms(waiting=None), False, id="queue-unknown-keeps-the-vote"),
        pytest.param(60.0, symptoms(correlation=0.1), True, id="does-not-follow-the-work"),
        pytest.param(60.0, symptoms(correlation=0.31), False, id="follows-the-work"),
        pytest.param(60.0, symptoms(correlation=-0.9, waiting=1.0), False, id="a-queue-gives-the-vote-back"),
        pytest.param(
            60.0, symptoms(correlation=-0.9, ttft_p95_s=2.0), False, id="a-missed-slo-gives-it-back"
        ),
        pytest.param(60.0, symptoms(None, None, 0.1), True, id="correlation-alone-is-enough"),
    ],
)
def test_the_vote(percent: float, seen: Symptoms, blind: bool) -> None:
    assert (why_uninformative(percent, seen) is not None) is blind


def recorded(pairs: list[tuple[float, float | None]], dt_s: float = 5.0) -> Record:
    state = Record()
    for percent, work in pairs:
        state = record(state, percent, work, dt_s)
    return state


WAVE = [20.0 + 10 * math.sin(i / 5) for i in range(120)]


def test_a_signal_that_follows_the_work_correlates() -> None:
    assert recorded([(2 * work, work) for work in WAVE]).correlation == pytest.approx(1.0)


def test_a_signal_that_is_stuck_does_not() -> None:
    assert recorded([(98.0, work) for work in WAVE]).correlation == 0.0


def test_without_movement_in_the_work_nothing_can_be_said() -> None:
    assert recorded([(50.0 + i % 3, 20.0) for i in range(120)]).correlation is None


def test_five_minutes_are_needed() -> None:
    assert recorded([(98.0, work) for work in WAVE[:59]]).correlation is None


def test_ticks_with_binding_limits_are_left_out() -> None:
    assert recorded([(90.0, None)] * 200).pairs == ()


def test_a_pair_is_kept_every_five_seconds_for_ten_minutes() -> None:
    assert len(recorded([(50.0, 1.0)] * 25, dt_s=1.0).pairs) == 5
    assert len(recorded([(50.0, 1.0)] * 300).pairs) == 120
