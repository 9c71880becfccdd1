from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import key, policy, pool

from controlplane.decide.fill import Floats
from controlplane.decide.plan import KeyTable, compile_plan
from controlplane.decide.share import Shares, share
from controlplane.model.decision import KEY_REASON_CODES
from controlplane.model.policy import Key, Policy, Priority

UNKNOWN = np.nan
FULL = 1e6  # more than anybody can have


def table(keys: list[Key], base: float = 100.0) -> KeyTable:
    return (
        compile_plan(policy(keys, [pool(base_rate_per_s=base, contract_rate_per_s=0.4 * base)])).pools[0].keys
    )


def limits(keys: list[Key], rate: float, demand: list[float]) -> list[float]:
    return [float(limit) for limit in share(table(keys), rate, np.array(demand)).rate_per_s]


def reasons(keys: list[Key], rate: float, demand: list[float]) -> list[str]:
    return [KEY_REASON_CODES[code] for code in share(table(keys), rate, np.array(demand)).reason]


ABC = [key("a", weight=5.0), key("b", weight=3.0), key("c", weight=2.0)]


@pytest.mark.parametrize("rate", [10.0, 10.5, 40.0, 100.0])
def test_saturated_keys_share_exactly_by_weight(rate: float) -> None:
    assert limits(ABC, rate, [FULL] * 3) == pytest.approx([0.5 * rate, 0.3 * rate, 0.2 * rate], rel=1e-12)


def test_unknown_demand_shares_by_weight() -> None:
    assert limits(ABC, 40.0, [UNKNOWN] * 3) == pytest.approx([20.0, 12.0, 8.0])


def test_nobody_wanting_anything_shares_by_weight() -> None:
    assert limits(ABC, 40.0, [0.0] * 3) == pytest.approx([20.0, 12.0, 8.0])


def test_what_one_leaves_others_borrow_by_weight() -> None:
    got = limits(ABC, 40.0, [0.0, FULL, FULL])
    assert got[0] < 3.0
    assert got[1] / got[2] == pytest.approx(1.5)
    assert sum(got) == pytest.approx(40.0)


def test_a_lone_tenant_has_most_of_the_pool_even_at_its_lowest_rate() -> None:
    assert limits([key(f"t{i}") for i in range(10)], 10.0, [FULL] + [0.0] * 9)[0] > 5.0


def test_demand_is_met_with_room_to_grow() -> None:
    assert limits([key("a"), key("b")], 100.0, [10.0, FULL])[0] == pytest.approx(10 * 1.15 + 0.5)


def test_headroom_raises_the_lowest_first() -> None:
    assert limits([key("a"), key("b")], 100.0, [60.0, 1.0]) == pytest.approx([69.5, 30.5])


def test_a_guarantee_holds_without_demand() -> None:
    keys = [key("a", guarantee_per_s=30.0), key("b")]
    assert limits(keys, 40.0, [0.0, FULL]) == pytest.approx([30.0, 10.0])
    assert reasons(keys, 40.0, [FULL, FULL]) == ["guarantee", "share"]


def test_guarantees_that_cannot_be_paid_shrink_in_proportion() -> None:
    keys = [key("a", guarantee_per_s=60.0), key("b", guarantee_per_s=30.0), key("c")]
    got = limits(keys, 40.0, [FULL] * 3)
    floor = table(keys).floor_per_s
    assert sum(got) == pytest.approx(40.0)
    assert (got[0] - floor[0]) / (60 - floor[0]) == pytest.approx((got[1] - floor[1]) / (30 - floor[1]))
    assert reasons(keys, 40.0, [FULL] * 3) == ["guarantees-shrunk", "guarantees-shrunk", "minimum"]


def test_a_ceiling_is_never_passed_and_its_rest_goes_to_others() -> None:
    keys = [key("a", ceiling_per_s=5.0), key("b")]
    assert limits(keys, 100.0, [FULL, FULL]) == pytest.approx([5.0, 95.0])
    assert reasons(keys, 100.0, [FULL, FULL]) == ["ceiling", "borrows"]


def test_with_every_key_at_its_ceiling_the_rest_is_not_given_out() -> None:
    assert limits([key("a", ceiling_per_s=5.0), key("b", ceiling_per_s=6.0)], 100.0, [FULL, 0.0]) == [
        5.0,
        6.0,
    ]


def test_a_pin_is_paid_first_and_exactly() -> None:
    keys = [key("a", pin_per_s=70.0), key("b"), key("c")]
    assert limits(keys, 100.0, [0.0, FULL, FULL]) == pytest.approx([70.0, 15.0, 15.0])
    assert reasons(keys, 100.0, [0.0, FULL, FULL])[0] == "pinned"


def test_pins_above_the_pool_leave_the_others_their_floors() -> None:
    keys = [key("a", pin_per_s=500.0), key("b"), key("c")]
    assert limits(keys, 100.0, [0.0, FULL, FULL])[1:] == table(keys).floor_per_s[1:].tolist()


def test_a_pin_of_zero_closes_a_key() -> None:
    assert limits([key("a", pin_per_s=0.0), key("b")], 100.0, [FULL, FULL]) == [0.0, 100.0]


CLASSES = [key("a", priority=Priority.HIGH), key("b"), key("c", priority=Priority.BATCH)]


def test_classes_are_shed_in_order_with_a_minimum_for_each_lower_one() -> None:
    assert limits(CLASSES, 100.0, [FULL] * 3) == pytest.approx([90.0, 5.0, 5.0])
    assert reasons(CLASSES, 100.0, [FULL] * 3) == ["borrows", "shed-first", "shed-first"]


def test_a_lower_class_has_what_the_higher_ones_leave() -> None:
    got = limits(CLASSES, 100.0, [20.0, 30.0, FULL])
    assert got[0] >= 20.0
    assert got[1] >= 30.0
    assert got[2] > 35.0
    assert sum(got) == pytest.approx(100.0)


def test_an_idle_lower_class_keeps_next_to_nothing() -> None:
    assert limits(CLASSES, 100.0, [FULL, 0.0, 0.0])[0] > 98.0


def test_batch_is_shed_before_normal() -> None:
    got = limits(CLASSES[1:], 40.0, [30.0, 30.0])
    assert got[0] >= 30.0
    assert got[1] < 10.0


@pytest.mark.parametrize("rate", [10.0, 100.0])
def test_a_thousand_tenants_are_all_served(rate: float) -> None:
    ranks = [Priority.HIGH, Priority.NORMAL, Priority.BATCH]
    keys = [key(f"t{i:04}", priority=ranks[i % 3], weight=1.0 + i % 9) for i in range(1000)]
    got = limits(keys, rate, [FULL if i % 3 == 0 else 1.0 for i in range(1000)])
    assert min(got) >= 0.001
    assert sum(got) == pytest.approx(rate)


def test_a_pool_without_keys_has_no_limits() -> None:
    assert share(table([key("a", "other")]), 100.0, np.zeros(0)).rate_per_s.tolist() == []


# Properties

demands = st.one_of(st.just(UNKNOWN), st.floats(0, 1e4, allow_subnormal=False))
some_rate = st.floats(10.0, 100.0)


@st.composite
def crowds(draw: st.DrawFn, ceilings: bool = True, pins: bool = True) -> tuple[Policy, Floats]:
    size = draw(st.integers(1, 10))
    rates = st.floats(0.01, 60)
    keys = [
        key(
            f"t{i}",
            weight=draw(st.floats(0.1, 10)),
            guarantee_per_s=draw(st.one_of(st.just(0.0), rates)),
            ceiling_per_s=draw(st.none() | rates) if ceilings else None,
            pin_per_s=draw(st.none() | rates) if pins and draw(st.integers(0, 4)) == 0 else None,
            priority=draw(st.sampled_from(Priority)),
        )
        for i in range(size)
    ]
    return policy(keys), np.array(draw(st.lists(demands, min_size=size, max_size=size)))


def shared(of: Policy, rate: float, demand: Floats) -> tuple[KeyTable, Shares]:
    keys = compile_plan(of).pools[0].keys
    return keys, share(keys, rate, demand)


@given(crowds(), some_rate)
@settings(max_examples=200)
def test_limits_never_exceed_the_pool(crowd: tuple[Policy, Floats], rate: float) -> None:
    keys, got = shared(crowd[0], rate, crowd[1])
    pinned = ~np.isnan(keys.pin_per_s)
    left = max(rate - keys.pin_per_s[pinned].sum(), keys.floor_per_s[~pinned].sum())
    assert got.rate_per_s[~pinned].sum() <= left * (1 + 1e-9)
    assert got.rate_per_s[pinned].tolist() == keys.pin_per_s[pinned].tolist()


@given(crowds(), some_rate)
@settings(max_examples=200)
def test_every_limit_is_within_its_floor_and_ceiling(crowd: tuple[Policy, Floats], rate: float) -> None:
    keys, got = shared(crowd[0], rate, crowd[1])
    free = np.isnan(keys.pin_per_s)
    assert (got.rate_per_s >= keys.floor_per_s * (1 - 1e-9))[free].all()
    assert (got.rate_per_s <= keys.ceiling_per_s * (1 + 1e-9))[free].all()


@given(crowds(pins=False), some_rate)
@settings(max_examples=200)
def test_guarantees_are_met_when_the_pool_can_pay_them(crowd: tuple[Policy, Floats], rate: float) -> None:
    keys, got = shared(crowd[0], rate, crowd[1])
    if np.maximum(keys.guarantee_per_s, keys.floor_per_s).sum() <= rate:
        assert (got.rate_per_s >= keys.guarantee_per_s * (1 - 1e-9)).all()


@given(crowds(pins=False), some_rate)
@settings(max_examples=200)
def test_nothing_is_left_over_below_the_ceilings(crowd: tuple[Policy, Floats], rate: float) -> None:
    keys, got = shared(crowd[0], rate, crowd[1])
    assert got.rate_per_s.sum() == pytest.approx(min(rate, keys.ceiling_per_s.sum()), rel=1e-9)


@given(crowds(pins=False), some_rate)
def test_no_demand_is_refused_while_somebody_has_headroom(crowd: tuple[Policy, Floats], rate: float) -> None:
    keys, got = shared(crowd[0], rate, crowd[1])
    wants = np.minimum(np.where(np.isnan(crowd[1]), got.fair_per_s, crowd[1]), keys.ceiling_per_s)
    refused = got.rate_per_s < wants * (1 - 1e-9)
    due = np.maximum(keys.guarantee_per_s, keys.floor_per_s)
    most = np.maximum(1.15 * wants + 0.01 * got.fair_per_s, due)
    if refused.any():
        assert (got.rate_per_s <= most * (1 + 1e-9)).all()


@given(crowds(), some_rate)
def test_the_order_of_keys_does_not_matter(crowd: tuple[Policy, Floats], rate: float) -> None:
    keys, got = shared(crowd[0], rate, crowd[1])
    order = np.random.default_rng(len(keys.weight)).permutation(len(keys.weight))
    mixed = replace(crowd[0], keys=tuple(crowd[0].keys[i] for i in order))
    _, again = shared(mixed, rate, crowd[1][order])
    assert again.rate_per_s == pytest.approx(got.rate_per_s[order], rel=1e-7, abs=1e-9)


@given(crowds(pins=False), some_rate, st.floats(1.0, 5.0))
@settings(max_examples=200)
def test_more_weight_never_means_less(crowd: tuple[Policy, Floats], rate: float, times: float) -> None:
    first = crowd[0].keys[0]
    heavier = replace(crowd[0], keys=(replace(first, weight=first.weight * times), *crowd[0].keys[1:]))
    _, before = shared(crowd[0], rate, crowd[1])
    _, after = shared(heavier, rate, crowd[1])
    assert after.rate_per_s[0] >= before.rate_per_s[0] * (1 - 1e-7)


@given(crowds(pins=False), some_rate, st.floats(0, 20))
def test_a_higher_pool_rate_never_lowers_the_sum_of_a_class(
    crowd: tuple[Policy, Floats], rate: float, more: float
) -> None:
    _, before = shared(crowd[0], rate, crowd[1])
    _, after = shared(crowd[0], rate + more, crowd[1])
    assert after.rate_per_s.sum() >= before.rate_per_s.sum() * (1 - 1e-9)


junk = st.floats(allow_nan=True, allow_infinity=True)


@given(
    rows=st.lists(
        st.tuples(junk, junk, st.none() | junk, st.none() | junk, st.sampled_from(Priority)), max_size=6
    ),
    rate=st.floats(0, 1e9),
    demand=st.floats(0, 1e300) | st.just(UNKNOWN),
)
def test_junk_stays_bounded(
    rows: list[tuple[float, float, float | None, float | None, Priority]], rate: float, demand: float
) -> None:
    keys = [
        key(f"t{i}", weight=w, guarantee_per_s=g, ceiling_per_s=c, pin_per_s=p, priority=rank)
        for i, (w, g, c, p, rank) in enumerate(rows)
    ]
    if not keys:
        return
    made, got = shared(policy(keys), rate, np.full(len(keys), demand))
    free = np.isnan(made.pin_per_s)
    assert np.isfinite(got.rate_per_s).all()
    assert (got.rate_per_s >= 0).all()
    assert got.rate_per_s[free].sum() <= max(rate, made.floor_per_s[free].sum()) * (1 + 1e-9)
