import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import OFF, key, policy, pool

from controlplane.decide.plan import compile_plan, lowest_rate_per_s, plan_pool, unserved_keys
from controlplane.model.policy import Guards, Policy, Priority, RatePolicy


def floors(of: Policy) -> list[float]:
    return [float(floor) for floor in compile_plan(of).pools[0].keys.floor_per_s]


@pytest.mark.parametrize(
    ("base", "contract", "guards", "lowest"),
    [
        pytest.param(100.0, 40.0, Guards(), 10.0, id="a-tenth"),
        pytest.param(5.0, 4.0, Guards(), 1.0, id="one-probe"),
        pytest.param(0.5, 0.4, Guards(), 0.4, id="not-above-the-contract"),
        pytest.param(0.5, 40.0, Guards(), 0.5, id="not-above-the-base"),
        pytest.param(5.0, 4.0, OFF, 0.5, id="guards-off"),
        pytest.param(100.0, 5.0, Guards(), 5.0, id="contract-below-the-floor"),
        pytest.param(100.0, 0.0, Guards(), 10.0, id="no-contract"),
        pytest.param(0.0, 40.0, Guards(), 0.0, id="closed"),
        pytest.param(math.nan, math.nan, Guards(), 0.0, id="junk-is-closed"),
    ],
)
def test_the_lowest_rate_of_a_pool(base: float, contract: float, guards: Guards, lowest: float) -> None:
    rate = RatePolicy(base_rate_per_s=base, contract_rate_per_s=contract, guards=guards)
    assert lowest_rate_per_s(rate) == pytest.approx(lowest)


def test_half_of_the_lowest_rate_is_set_aside_by_weight() -> None:
    assert floors(policy([key("a", weight=3.0), key("b")])) == pytest.approx([3.75, 1.25])


def test_guarantees_leave_at_least_a_fifth_for_floors() -> None:
    few = [key("a", guarantee_per_s=7.0), key("b")]
    many = [key("a", guarantee_per_s=70.0), key("b")]
    assert sum(floors(policy(few))) == pytest.approx(3.0)
    assert sum(floors(policy(many))) == pytest.approx(2.0)


def test_lower_classes_have_five_percent_of_the_floors() -> None:
    keys = [key("a", priority=Priority.HIGH), key("b"), key("c", priority=Priority.BATCH)]
    assert floors(policy(keys)) == pytest.approx([4.5, 0.25, 0.25])
    assert floors(policy(keys[1:])) == pytest.approx([4.75, 0.25])
    assert floors(policy(keys[2:])) == pytest.approx([5.0])


def test_a_floor_is_never_above_the_ceiling() -> None:
    assert floors(policy([key("a", ceiling_per_s=0.5), key("b", ceiling_per_s=0.0)])) == [0.5, 0.0]


def test_a_small_weight_gets_what_a_bucket_can_serve() -> None:
    keys = [key("a", weight=1e6), key("b", weight=1e-3)]
    assert floors(policy(keys))[1] == pytest.approx(0.001, rel=1e-4)
    assert floors(policy(keys, gateways_max=4))[1] == pytest.approx(0.004, rel=1e-4)
    assert unserved_keys(compile_plan(policy(keys, gateways_max=4))) == ()


def test_keys_that_no_bucket_can_serve_are_named() -> None:
    keys = [key(f"t{i:04}") for i in range(1000)]
    slow = policy(keys, [pool(base_rate_per_s=10.0)])
    assert len(unserved_keys(compile_plan(slow))) == 1000
    assert unserved_keys(compile_plan(policy(keys, [pool(base_rate_per_s=100.0)]))) == ()
    closed = policy([key("a", ceiling_per_s=0.0), key("b", pin_per_s=0.0)])
    assert unserved_keys(compile_plan(closed)) == ()


@pytest.mark.parametrize(
    ("tenants", "gateways", "class_s"),
    [
        (1, 1, 1.0),
        (5, 1, 1.0),
        (6, 1, 4.0),
        (20, 1, 4.0),
        (21, 1, 15.0),
        (5, 4, 15.0),
        (1000, 1, 240.0),
        (1000, 4, 1000.0),
    ],
)
def test_classes_of_equal_tenants_on_a_pool_of_100(tenants: int, gateways: int, class_s: float) -> None:
    plan = compile_plan(policy([key(f"t{i:04}") for i in range(tenants)], gateways_max=gateways))
    assert set(plan.burst_s) == {class_s}


def test_a_pin_keeps_the_class_unless_it_is_slower_than_the_floor() -> None:
    keys = [key("a"), key("b")]
    free = compile_plan(policy(keys)).burst_s
    fast = compile_plan(policy([key("a", pin_per_s=50.0), key("b")])).burst_s
    slow = compile_plan(policy([key("a", pin_per_s=0.1), key("b")])).burst_s
    assert free.tolist() == fast.tolist() == [1.0, 1.0]
    assert slow.tolist() == [15.0, 1.0]


def test_one_pool_planned_alone_is_the_pool_of_the_whole_plan() -> None:
    one = policy(
        [key("a"), key("a", "other", weight=2.0), key("b", "other")], [pool(), pool("other")], gateways_max=2
    )
    alone, whole = plan_pool(one, "other:v1"), compile_plan(one).pools[1]
    assert alone is not None
    assert alone.keys.index.tolist() == whole.keys.index.tolist() == [1, 2]
    assert alone.keys.floor_per_s.tolist() == whole.keys.floor_per_s.tolist()
    assert plan_pool(one, "no:v1") is None


junk = st.floats(allow_nan=True, allow_infinity=True)


@given(
    rows=st.lists(
        st.tuples(junk, junk, st.none() | junk, st.none() | junk, st.sampled_from(Priority)), max_size=8
    ),
    base=junk,
    contract=junk,
    burst=junk,
)
def test_a_plan_of_junk_is_bounded(
    rows: list[tuple[float, float, float | None, float | None, Priority]],
    base: float,
    contract: float,
    burst: float,
) -> None:
    keys = [
        key(f"t{i}", weight=w, guarantee_per_s=g, ceiling_per_s=c, pin_per_s=p, priority=rank)
        for i, (w, g, c, p, rank) in enumerate(rows)
    ]
    rate = pool(base_rate_per_s=base, contract_rate_per_s=contract, burst_s=burst)
    plan = compile_plan(policy(keys, [rate]))
    made = plan.pools[0]
    assert 0 <= made.keys.floor_per_s.sum() <= made.lowest_per_s * (1 + 1e-9)
    assert 0 <= made.lowest_per_s <= made.contract_per_s or made.lowest_per_s == 0
    assert np.isfinite(plan.burst_s).all()
    assert (made.keys.weight > 0).all()
