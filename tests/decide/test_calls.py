"""Totals of calls -> what happened within the last seconds."""

from __future__ import annotations

import math

import pytest
from breaking import BOUNDS_S, Watched
from hypothesis import given
from hypothesis import strategies as st

from controlplane.decide.calls import KEPT_S, Growth, History
from controlplane.model.signal import Calls


def history(*seconds: tuple[float, float], first_byte_s: float = 0.08) -> History:
    """One sample a second, each with (good, failed) calls since the one before."""
    seen, found = Watched(), History()
    for at_s, (good, failed) in enumerate(((0.0, 0.0), *seconds)):
        seen.count(good, failed, first_byte_s)
        found = found.with_calls(at_s, seen.calls)
    return found


def counts(growth: Growth) -> tuple[float, float]:
    return growth.answered, growth.failed


def test_a_window_is_as_long_as_asked() -> None:
    past = history(*[(10.0, 1.0)] * 60)
    assert counts(past.window(10)) == (110, 10)
    assert counts(past.window(60)) == (660, 60)
    assert counts(past.window(1000)) == (660, 60)


def test_a_window_never_begins_before_the_state() -> None:
    past = history(*[(0.0, 50.0)] * 10, *[(50.0, 0.0)] * 5)
    assert counts(past.window(10, since_s=10)) == (250, 0)
    assert counts(past.window(math.inf, since_s=15)) == (0, 0)
    assert counts(past.recent(10, since_s=14)) == (50, 0)


def test_thin_traffic_is_judged_by_its_last_20_calls() -> None:
    past = history(*[(1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)] * 30)
    assert counts(past.window(10)) == (2, 0) or counts(past.window(10)) == (3, 0)
    assert past.recent(10).answered == 20


def test_less_than_20_calls_in_five_minutes_are_all_there_is() -> None:
    past = history(*[(1.0, 0.0), *[(0.0, 0.0)] * 59] * 10)
    assert past.recent(10).answered == 5
    assert len(past.samples) <= KEPT_S + 2


def test_totals_that_fall_begin_anew() -> None:
    past = history(*[(10.0, 0.0)] * 5)
    past = past.with_calls(6, Calls(answered=3, failed=3))
    assert counts(past.window(10)) == (0, 0)
    assert counts(past.with_calls(7, Calls(answered=8, failed=4)).window(10)) == (5, 1)


def test_nothing_is_known_from_one_sample() -> None:
    assert counts(history().window(10)) == (0, 0)
    assert history().window(10).failure_ratio is None
    assert history().window(10).p95_s() is None


@pytest.mark.parametrize(
    ("threshold_s", "slow"),
    [(0.05, 30), (0.1, 30), (0.11, 20), (0.2, 20), (0.3, 10), (0.5, 0), (5.0, 0), (None, 0)],
)
def test_a_call_is_slow_only_when_that_is_certain(threshold_s: float | None, slow: float) -> None:
    seen, past = Watched(), History()
    past = past.with_calls(0, seen.calls)
    seen.count(40, first_byte_s=[0.04, 0.15, 0.3, 0.6])
    growth = past.with_calls(1, seen.calls).window(10)
    assert growth.timed == 40
    assert growth.slow(threshold_s) == slow


@given(
    st.lists(st.sampled_from([0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 3.0, 9.0]), min_size=1, max_size=50), st.data()
)
def test_never_more_are_called_slow_than_are(times_s: list[float], data: st.DataObject) -> None:
    threshold_s = data.draw(st.floats(0.001, 10))
    seen, past = Watched(), History()
    past = past.with_calls(0, seen.calls)
    for time_s in times_s:
        seen.count(1, first_byte_s=time_s)
    growth = past.with_calls(1, seen.calls).window(10)
    assert growth.slow(threshold_s) <= sum(time_s > threshold_s for time_s in times_s)


def test_the_p95_is_that_of_prometheus() -> None:
    within = (0.0, 50.0, 90.0, 100.0, 100.0, 100.0, 100.0, 100.0)
    growth = Growth(answered=100, bounds_s=BOUNDS_S, within=within)
    assert growth.p95_s() == pytest.approx(0.2 + 0.2 * 5 / 10)
    beyond = Growth(answered=100, bounds_s=BOUNDS_S, within=(0.0,) * 7 + (100.0,))
    assert beyond.p95_s() == 3.2
