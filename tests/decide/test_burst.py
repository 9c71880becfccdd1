import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.decide.burst import burst_class_s, slowest_rate_per_s
from controlplane.model.ladder import ADAPTIVE_LADDER_S, COST_MAX, LADDER_S, UNITS_PER_S
from controlplane.model.price import cost_units, cost_units_of, window_burst_class_s

rates = st.floats(1e-6, 1e6)
fleets = st.integers(1, 64)


def room_units(class_s: float, gateways: int) -> float:
    """What one gateway's bucket holds: Envoy scales by a float share and cuts the fraction off."""
    return math.floor(min(UNITS_PER_S * class_s, COST_MAX - 1) * (1 / gateways))


@pytest.mark.parametrize(
    ("floor", "gateways", "wanted", "class_s"),
    [
        pytest.param(10.0, 1, 1.0, 1.0, id="fast-key-has-what-it-wants"),
        pytest.param(10.0, 1, 0.1, 0.1, id="a-tenth"),
        pytest.param(1.0, 1, 1.0, 1.0, id="one-request-fits-exactly"),
        pytest.param(0.99, 1, 1.0, 4.0, id="below-one-per-second"),
        pytest.param(0.1, 1, 1.0, 15.0, id="a-tenth-per-second"),
        pytest.param(0.005, 1, 1.0, 240.0, id="a-two-hundredth-per-second"),
        pytest.param(1.0, 4, 1.0, 15.0, id="four-gateways-need-room-and-a-margin"),
        pytest.param(1.1, 4, 1.0, 4.0, id="four-gateways"),
        pytest.param(0.0001, 1, 1.0, 1000.0, id="beyond-the-ladder"),
        pytest.param(10.0, 1, 2.0, 4.0, id="wanted-rounds-up"),
        pytest.param(10.0, 1, 5000.0, 1000.0, id="wanted-beyond-the-ladder"),
        pytest.param(0.0, 4, 1.0, 1.0, id="closed"),
        pytest.param(math.nan, 4, math.nan, 0.1, id="junk"),
    ],
)
def test_the_class_is_the_smallest_that_admits(
    floor: float, gateways: int, wanted: float, class_s: float
) -> None:
    assert burst_class_s(floor, gateways, wanted) == class_s


@given(floor=rates, gateways=fleets, wanted=st.floats(0.01, 2000))
def test_one_request_always_fits_every_gateway(floor: float, gateways: int, wanted: float) -> None:
    class_s = burst_class_s(floor, gateways, wanted)
    assert class_s in ADAPTIVE_LADDER_S
    if floor >= slowest_rate_per_s(gateways):
        for fewer in range(1, gateways + 1):
            assert cost_units(floor) <= room_units(class_s, fewer)


@given(low=rates, high=rates, gateways=fleets)
def test_a_faster_key_never_needs_a_larger_class(low: float, high: float, gateways: int) -> None:
    low, high = sorted((low, high))
    assert burst_class_s(high, gateways, 0.1) <= burst_class_s(low, gateways, 0.1)


@pytest.mark.parametrize(
    ("rate", "cost"),
    [(1.0, 1_000_000), (37.5, 26_667), (2000.0, 500), (0.005, 200_000_000), (1e7, 1), (1e-9, COST_MAX)],
)
def test_a_rate_is_a_price(rate: float, cost: int) -> None:
    assert cost_units(rate) == cost


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, -math.inf], ids=str)
def test_without_a_rate_a_key_is_closed(rate: float) -> None:
    assert cost_units(rate) == COST_MAX
    assert all(cost_units(rate) > room_units(class_s, 1) for class_s in LADDER_S)


@given(st.lists(st.floats(), max_size=30))
def test_the_array_form_agrees(values: list[float]) -> None:
    assert cost_units_of(np.array(values, float)).tolist() == [cost_units(value) for value in values]


@given(rate=st.floats(0.002, 2000))
def test_rounding_a_price_costs_less_than_a_part_in_a_thousand(rate: float) -> None:
    assert UNITS_PER_S / cost_units(rate) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "window_s", "burst", "gateways", "class_s", "given_burst"),
    [
        pytest.param(1000, 60, 100, 1, 6.0, 100.0, id="a-tenth-of-a-minute"),
        pytest.param(3600, 3600, 360, 1, 360.0, 360.0, id="a-tenth-of-an-hour"),
        pytest.param(1000, 60, 99, 1, 4.0, 66.7, id="never-more-than-asked"),
        pytest.param(10, 60, 1, 1, 6.0, 1.0, id="one-request"),
        pytest.param(10, 60, 1, 4, 60.0, 10.0, id="four-gateways-need-more-room"),
        pytest.param(1, 3600, 1, 1, 1000.0, 0.278, id="too-slow-for-every-class"),
        pytest.param(0, 60, 1, 1, 0.1, 0.0, id="nothing"),
    ],
)
def test_the_class_of_a_window(
    tokens: float, window_s: float, burst: float, gateways: int, class_s: float, given_burst: float
) -> None:
    got = window_burst_class_s(tokens / window_s, burst, gateways)
    assert got.class_s == class_s
    assert got.burst_tokens == pytest.approx(given_burst, rel=1e-2)


@given(rate=st.floats(0.1, 1e4), burst=st.floats(0, 1e6), gateways=fleets)
def test_a_window_gives_at_most_its_burst_or_what_one_request_needs(
    rate: float, burst: float, gateways: int
) -> None:
    class_s, given_burst = window_burst_class_s(rate, burst, gateways)
    assert cost_units(rate) <= room_units(class_s, gateways)
    smaller = [room_units(other, gateways) for other in LADDER_S if other < class_s]
    none_smaller_admits = not smaller or cost_units(rate) * (1 + 2e-5) >= smaller[-1]
    assert given_burst <= burst * (1 + 1e-6) or none_smaller_admits
