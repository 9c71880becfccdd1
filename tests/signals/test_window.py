"""Counters at successive scrapes, and quantiles of what they grew by."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.signals.histogram import merge, quantile
from controlplane.signals.window import Window, growth


def test_the_first_scrape_sets_the_start_only() -> None:
    window = Window(30.0)
    window.add(0.0, {"n": 1_000_000.0})
    assert window.covered_s == 0
    assert window.grown == {}


def test_growth_is_summed_over_the_window_and_forgotten_after_it() -> None:
    window = Window(3.0)
    for second in range(10):
        window.add(float(second), {"n": 5.0 * second})
    assert window.grown == {"n": 15.0}
    assert window.covered_s == 3.0


def test_a_counter_that_fell_counts_from_zero() -> None:
    assert growth({"a": 100.0, "b": 7.0}, {"a": 3.0, "b": 9.0}) == {"a": 3.0, "b": 9.0}


def test_a_counter_that_appears_began_at_zero() -> None:
    assert growth({"a": 1.0}, {"a": 1.0, "b": 4.0}) == {"a": 0.0, "b": 4.0}


@pytest.mark.parametrize(
    ("before_s", "after_s"), [(10.0, 10.0), (10.0, 9.0), (10.0, 45.0)], ids=["same", "back", "gap"]
)
def test_a_clock_that_jumped_starts_again(before_s: float, after_s: float) -> None:
    window = Window(30.0)
    window.add(9.5, {"n": 0.0})
    window.add(before_s, {"n": 1.0})
    window.add(after_s, {"n": 50.0})
    assert window.grown == {}
    window.add(after_s + 1, {"n": 51.0})
    assert window.grown == {"n": 1.0}


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20), st.integers(0, 19))
def test_whatever_resets_the_growth_is_never_negative_and_never_more_than_what_happened(
    steps: list[int], reset_at: int
) -> None:
    window, value = Window(1e9), 0.0
    for number, step in enumerate(steps):
        value = float(step) if number == reset_at else value + step
        window.add(float(number), {"n": value})
    assert 0 <= window.grown.get("n", 0.0) <= sum(steps)


def promql_quantile(q: float, buckets: dict[float, float]) -> float:
    """The rule of Prometheus' manual, written down a second time."""
    total = buckets[math.inf]
    rank = q * total
    bounds = sorted(buckets)
    at = next(index for index, bound in enumerate(bounds) if buckets[bound] >= rank)
    if bounds[at] == math.inf:
        return bounds[at - 1]
    low = bounds[at - 1] if at else 0.0
    before = buckets[bounds[at - 1]] if at else 0.0
    inside = buckets[bounds[at]] - before
    return low + (bounds[at] - low) * (rank - before) / inside


@given(
    st.lists(st.integers(0, 50), min_size=3, max_size=8).filter(lambda counts: sum(counts) > 0),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_the_quantile_is_that_of_promql(counts: list[int], q: float) -> None:
    bounds = [0.1 * 2**n for n in range(len(counts) - 1)] + [math.inf]
    cumulative = {bound: float(sum(counts[: n + 1])) for n, bound in enumerate(bounds)}
    found = quantile(q, cumulative)
    assert found is not None
    assert found.value == pytest.approx(promql_quantile(q, cumulative))
    assert found.count == sum(counts)


def test_above_the_top_bucket_the_value_is_a_lower_bound() -> None:
    found = quantile(0.95, {1.0: 10.0, math.inf: 100.0})
    assert found is not None
    assert (found.value, found.saturated) == (1.0, True)


@pytest.mark.parametrize("buckets", [{}, {math.inf: 5.0}, {1.0: 0.0, math.inf: 0.0}, {1.0: 3.0}], ids=str)
def test_without_observations_there_is_no_quantile(buckets: dict[float, float]) -> None:
    assert quantile(0.95, buckets) is None


def test_histograms_with_different_bounds_meet_in_the_bounds_they_share() -> None:
    merged = merge([{"1.0": 1.0, "2.0": 2.0, "+Inf": 3.0}, {"1": 10.0, "4": 20.0, "+Inf": 30.0}])
    assert merged == {1.0: 11.0, math.inf: 33.0}


def test_histograms_without_a_common_bound_have_no_sum() -> None:
    assert merge([{"1.0": 1.0, "+Inf": 3.0}, {"4": 20.0, "+Inf": 30.0}]) == {}
