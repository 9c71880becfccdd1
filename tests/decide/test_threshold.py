"""M11: the formula to the letter, and what the guards make of it."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.decide.threshold import (
    QUIET_SAMPLES_MIN,
    STATIC_AFTER_S,
    UPDATE_S,
    Measured,
    Threshold,
    follow,
    literal_s,
)
from controlplane.model.policy import BreakerPolicy, Strategy

LITERAL = BreakerPolicy(guards=False)
GUARDED = BreakerPolicy(slo_s=2.0)
times_s = st.floats(0.001, 100.0)


def after(
    *p95_s: float | None, policy: BreakerPolicy, start: Threshold | None = None, **measured: float | bool
) -> Threshold:
    """The threshold after one update for each p95."""
    threshold = start or Threshold()
    for each in p95_s:
        shown = Measured(**({"p95_s": each, "timed": 500.0} | measured))  # type: ignore[arg-type]
        threshold = follow(threshold, shown, policy, UPDATE_S)
    return threshold


def quiet(p95_s: float = 0.2, policy: BreakerPolicy = GUARDED, samples: int = 100) -> Threshold:
    """A threshold that knows its pool."""
    return after(*[p95_s] * samples, policy=policy)


@pytest.mark.parametrize(
    ("p95_s", "failure_ratio", "average_s", "expected_s"),
    [
        (1.0, 0.0, 1.0, 1.0),
        (1.0, 0.1, 1.0, 1.05),
        (2.0, 0.0, 1.0, 2.1),
        (1.0, 0.0, 2.0, 1.1),
        (0.8, 0.5, 0.6, 1.02),
        (0.5, 1.0, 0.5, 0.75),
    ],
)
def test_the_formula(p95_s: float, failure_ratio: float, average_s: float, expected_s: float) -> None:
    assert literal_s(p95_s, failure_ratio, average_s) == pytest.approx(expected_s)


def test_without_guards_the_formula_is_followed_to_the_letter() -> None:
    series = [0.3, 0.5, 0.4, 5.0]
    threshold = Threshold()
    for count, p95_s in enumerate(series, start=1):
        threshold = after(p95_s, policy=LITERAL, start=threshold, failure_ratio=0.4, closed=False)
        average_s = statistics.fmean(series[:count])
        assert threshold.value_s == pytest.approx(p95_s * 1.2 + 0.1 * abs(p95_s - average_s))


def test_the_mean_is_that_of_fifteen_minutes() -> None:
    threshold = after(*[9.0] * 10, *[1.0] * 29, 2.0, policy=LITERAL)
    assert threshold.value_s == pytest.approx(2.0 + 0.1 * (2.0 - (29 * 1.0 + 2.0) / 30))


@pytest.mark.parametrize(
    ("strategy", "expected_s"),
    [(Strategy.STATIC, 2.0), (Strategy.MOVING_AVERAGE, 1.5 * 1.05), (Strategy.DRIFT, 2.0 * 1.05 + 0.05)],
)
def test_each_strategy_follows_something_else(strategy: Strategy, expected_s: float) -> None:
    policy = BreakerPolicy(guards=False, strategy=strategy, slo_s=2.0)
    assert after(1.0, 2.0, policy=policy, failure_ratio=0.1).value_s == pytest.approx(expected_s)


def test_it_moves_once_in_thirty_seconds() -> None:
    threshold = after(1.0, policy=LITERAL)
    for _ in range(29):
        threshold = follow(threshold, Measured(p95_s=5.0), LITERAL, 1.0)
        assert threshold.value_s == 1.0
    assert follow(threshold, Measured(p95_s=5.0), LITERAL, 1.0).value_s == pytest.approx(5.2)


@pytest.mark.parametrize(("slo_s", "expected_s"), [(2.0, 2.0), (None, None)])
def test_before_there_is_a_reference_the_slo_is_the_threshold(
    slo_s: float | None, expected_s: float | None
) -> None:
    policy = BreakerPolicy(slo_s=slo_s)
    assert after(*[0.2] * (QUIET_SAMPLES_MIN - 1), policy=policy).value_s == expected_s


def test_it_settles_at_1_3_times_the_reference() -> None:
    assert quiet(0.2).value_s == pytest.approx(0.26)
    assert quiet(0.2, samples=QUIET_SAMPLES_MIN).value_s == pytest.approx(0.26), "at once"


def test_a_wide_spread_lifts_the_floor() -> None:
    threshold = after(*[0.1, 0.3, 0.2] * 60, policy=GUARDED)
    assert threshold.reference_s == pytest.approx(0.2)
    assert threshold.value_s == pytest.approx(0.2 + 3 * 0.1)


def test_the_slo_wins_over_the_floor() -> None:
    assert quiet(0.9, BreakerPolicy(slo_s=1.0)).value_s == 1.0
    assert quiet(5.0, BreakerPolicy(slo_s=1.0)).value_s == 1.0


def test_without_an_slo_nothing_is_slow() -> None:
    assert quiet(0.2, BreakerPolicy()).value_s is None


def test_overload_does_not_become_the_measure_of_itself() -> None:
    day = 2880
    threshold = after(*[0.8] * (day - 1), policy=GUARDED, start=quiet(0.2))
    assert threshold.reference_s == pytest.approx(0.2)
    assert threshold.value_s == pytest.approx(0.8), "the threshold follows, up to the SLO"
    anew = after(*[0.8] * (QUIET_SAMPLES_MIN + 1), policy=GUARDED, start=threshold)
    assert anew.reference_s == pytest.approx(0.8), "after a day it is no overload any more"


def test_failures_do_not_move_the_p95() -> None:
    before = quiet()
    broken = after(*[0.01] * 20, policy=GUARDED, start=before, failure_ratio=0.3)
    assert (broken.p95_s, broken.reference_s, broken.series_s) == (
        before.p95_s,
        before.reference_s,
        before.series_s,
    )
    resting = after(*[9.0] * 20, policy=GUARDED, start=before, closed=False)
    assert resting.value_s == before.value_s


def test_failures_loosen_by_a_fortieth_at_most() -> None:
    start = replace(quiet(0.2), quiet_s=(), floor_s=0.01)
    few = after(0.2, policy=GUARDED, start=start, failure_ratio=0.0)
    many = after(0.2, policy=GUARDED, start=start, failure_ratio=1.0)
    assert few.value_s is not None
    assert many.value_s is not None
    assert many.value_s <= few.value_s * 1.1


def test_it_moves_by_a_tenth_at_a_time() -> None:
    threshold = quiet()
    for _ in range(30):
        before_s = threshold.value_s
        threshold = after(1.9, policy=GUARDED, start=threshold, slow=True)
        assert before_s is not None
        assert threshold.value_s is not None
        assert before_s * 0.9 <= threshold.value_s <= before_s * 1.1 + 1e-12
    assert threshold.value_s == pytest.approx(1.9 + 0.0, rel=0.05)


def test_missing_data_freezes_it_and_then_gives_way_to_the_slo() -> None:
    threshold = quiet()
    elapsed_s = 0.0
    while elapsed_s < STATIC_AFTER_S - UPDATE_S:
        threshold = after(None, policy=GUARDED, start=threshold)
        elapsed_s += UPDATE_S
        assert threshold.value_s == pytest.approx(0.26)
    assert after(None, policy=GUARDED, start=threshold).value_s == 2.0


@pytest.mark.parametrize("why", [{"slow": True}, {"timed": 99.0}, {"failure_ratio": 0.02}])
def test_only_quiet_times_make_the_reference(why: dict[str, float | bool]) -> None:
    before = quiet()
    assert after(*[0.25] * 50, policy=GUARDED, start=before, **why).reference_s == before.reference_s


@given(st.lists(st.tuples(times_s, st.floats(0, 1), st.booleans(), st.booleans()), max_size=60))
def test_guarded_it_stays_between_floor_and_slo(samples: list[tuple[float, float, bool, bool]]) -> None:
    threshold = Threshold()
    for p95_s, failure_ratio, closed, slow in samples:
        shown = Measured(p95_s=p95_s, failure_ratio=failure_ratio, timed=200.0, closed=closed, slow=slow)
        before_s = threshold.value_s
        threshold = follow(threshold, shown, GUARDED, UPDATE_S)
        assert threshold.value_s is not None
        assert 0 < threshold.value_s <= 2.0
        if before_s is not None:
            assert threshold.value_s <= before_s * 1.1 + 1e-9
            assert threshold.value_s >= min(before_s * 0.9, 2.0) - 1e-9


@given(st.lists(st.tuples(times_s, st.floats(0, 1)), min_size=1, max_size=40))
def test_the_letter_is_never_below_the_p95(samples: list[tuple[float, float]]) -> None:
    threshold = Threshold()
    for p95_s, failure_ratio in samples:
        threshold = after(p95_s, policy=LITERAL, start=threshold, failure_ratio=failure_ratio)
        assert threshold.value_s is not None
        assert threshold.value_s >= p95_s * (1 - 1e-12)
