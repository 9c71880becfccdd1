"""Whole ticks: shares over time, burst classes that outlive every drop, reloads, equal numbers."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import OFF, Run, key, load, policy, pool, traffic

from controlplane.decide import step
from controlplane.decide.plan import lowest_rate_per_s
from controlplane.model.ladder import COST_MAX, UNITS_PER_S
from controlplane.model.policy import Mode, Priority
from controlplane.model.price import cost_units
from controlplane.model.signal import Observation

SATURATED = traffic(a=1e4, b=1e4, c=1e4)


def three(**fields: object) -> Run:
    keys = [key("a", weight=5.0), key("b", weight=3.0), key("c", weight=2.0)]
    return Run(policy(keys, [pool(guards=OFF)], **fields))


def test_saturated_shares_are_exactly_by_weight_at_every_pressure() -> None:
    pools = three()
    for percent in (15.0, 60.0, 95.0, 15.0):
        rate = pools.tick(gpu_util_percent=percent, traffic=SATURATED).rate_per_s
        assert pools.decision.rate_per_s == pytest.approx(np.array([0.5, 0.3, 0.2]) * rate, rel=1e-9)


def test_an_owner_has_its_share_back_with_the_next_tick() -> None:
    pools = three()
    pools.tick(gpu_util_percent=60.0, traffic=traffic(a=0.0, b=1e4, c=1e4))
    assert pools.rate_of("a") < 3.0
    pools.tick(gpu_util_percent=60.0, traffic=SATURATED)
    assert pools.rate_of("a") == pytest.approx(20.0)


def test_without_gateway_counters_everybody_has_its_weight() -> None:
    pools = three()
    pools.tick(gpu_util_percent=60.0, traffic=None)
    assert np.isnan(pools.decision.demand_per_s).all()
    assert pools.decision.rate_per_s == pytest.approx([20.0, 12.0, 8.0])


def test_a_tick_in_which_nothing_changed_gives_equal_numbers() -> None:
    pools = Run(policy([key("a"), key("b")]))
    for _ in range(60):
        pools.tick(gpu_util_percent=47.0, traffic=traffic(a=7.0, b=90.0))
    before = pools.decision
    pools.tick(gpu_util_percent=47.0, traffic=traffic(a=7.0, b=90.0))
    assert pools.decision.rate_per_s.tobytes() == before.rate_per_s.tobytes()
    assert pools.decision.burst_s.tobytes() == before.burst_s.tobytes()


def test_judgement_is_deterministic() -> None:
    one = policy([key("a"), key("b")])
    seen = Observation(now_s=5.0, loads={"chat:v1": load(5.0, gpu_util_percent=51.0)}, traffic=traffic(a=3.0))
    first, second = step.step(one, step.start(one), seen)[1], step.step(one, step.start(one), seen)[1]
    assert first.rate_per_s.tobytes() == second.rate_per_s.tobytes()
    assert first.pools == second.pools


def test_observe_mode_judges_the_same_numbers() -> None:
    enforced, observed = three(), three(mode=Mode.OBSERVE)
    for pools in (enforced, observed):
        pools.tick(gpu_util_percent=60.0, traffic=SATURATED)
    assert observed.decision.rate_per_s.tolist() == enforced.decision.rate_per_s.tolist()


def test_a_pin_holds_through_every_pressure() -> None:
    pools = Run(policy([key("a", pin_per_s=3.0), key("b")], [pool(guards=OFF)]))
    for percent in (15.0, 95.0):
        pools.tick(gpu_util_percent=percent, traffic=traffic(a=0.0, b=1e4))
        assert pools.rate_of("a") == 3.0


def test_a_reload_keeps_demand_by_key_and_gives_new_keys_their_weight() -> None:
    pools = three()
    pools.tick(gpu_util_percent=60.0, traffic=traffic(a=0.0, b=1e4, c=1e4))
    pools.reload(keys=(key("0"), *pools.policy.keys[1:]))
    pools.tick(gpu_util_percent=60.0, traffic=None)
    assert np.isnan(pools.decision.demand_per_s[0])
    assert pools.decision.demand_per_s[1:].tolist() == [1e4, 1e4]


def test_an_explicit_carry_is_what_step_does_by_itself() -> None:
    pools = three()
    pools.tick(gpu_util_percent=60.0, traffic=SATURATED)
    changed = replace(pools.policy, keys=pools.policy.keys[:2])
    carried = step.carry(pools.state, pools.policy, changed)
    seen = Observation(now_s=pools.now_s + 1, loads={}, traffic=None)
    explicit, implicit = step.step(changed, carried, seen)[1], step.step(changed, pools.state, seen)[1]
    assert explicit.rate_per_s.tolist() == implicit.rate_per_s.tolist()


def test_pools_do_not_touch_each_other() -> None:
    keys = [key("a"), key("a", "other"), key("b")]
    pools = Run(policy(keys, [pool(guards=OFF), pool("other", guards=OFF, base_rate_per_s=50.0)]))
    pools.tick(gpu_util_percent=95.0)
    assert pools.decision.rate_per_s == pytest.approx([5.0, 40.0, 5.0])


def test_a_key_of_no_pool_is_closed() -> None:
    pools = Run(policy([key("a"), key("b", "nowhere")]))
    pools.tick()
    assert pools.rate_of("b") == 0.0


# Burst classes


def within_its_class(pools: Run, gateways: int) -> bool:
    """Every key can have one request admitted by each of `gateways` Envoys."""
    decision = pools.decision
    rooms = np.minimum(UNITS_PER_S * decision.burst_s, COST_MAX - 1) // gateways
    return all(cost_units(r) <= room for r, room in zip(decision.rate_per_s, rooms, strict=True))


@pytest.mark.parametrize(
    ("tenants", "base", "crossed"),
    [(3, 10.0, 1.0), (20, 10.0, 0.1), (2, 1.0, 0.1)],
    ids=["across-1", "across-0.1", "one-probe-across-0.1"],
)
def test_an_adaptive_drop_keeps_every_class_and_serves_everybody(
    tenants: int, base: float, crossed: float
) -> None:
    keys = [key(f"t{i:02}") for i in range(tenants)]
    pools = Run(
        policy(keys, [pool(base_rate_per_s=base, contract_rate_per_s=base, guards=OFF)], gateways_max=4)
    )
    busy = traffic(**{f"t{i:02}": 1e4 for i in range(tenants)})
    classes, lowest, highest = set(), np.inf, 0.0
    for percent in (15.0, 60.0, 95.0, 100.0, 40.0, 15.0):
        pools.tick(gpu_util_percent=percent, traffic=busy)
        classes.add(pools.decision.burst_s.tobytes())
        lowest = min(lowest, pools.decision.rate_per_s.min())
        highest = max(highest, pools.decision.rate_per_s.max())
        assert within_its_class(pools, 4)
    assert lowest < crossed < highest
    assert len(classes) == 1


def test_a_scale_out_to_the_largest_fleet_changes_no_class() -> None:
    one = policy([key("a"), key("b")], [pool(base_rate_per_s=2.0, contract_rate_per_s=2.0)], gateways_max=4)
    state, bursts = step.start(one), set()
    for gateways in (1, 2, 3, 4, 1):
        state, decision = step.step(
            one, state, Observation(now_s=1.0, loads={}, traffic=None, gateways=gateways)
        )
        bursts.add(decision.burst_s.tobytes())
        assert decision.gateways == gateways
    assert len(bursts) == 1


def test_rates_down_to_a_two_hundredth_per_second_are_served() -> None:
    keys = [key(f"t{i:04}") for i in range(1000)]
    pools = Run(policy(keys, [pool(guards=OFF)]))
    only_one = traffic(t0000=1e4) | {k.id: traffic(x=0.0)["api|x|chat:v1"] for k in keys[1:]}
    pools.tick(gpu_util_percent=100.0, traffic=only_one)
    assert pools.decision.rate_per_s[1:].min() == pytest.approx(0.005)
    assert within_its_class(pools, 1)


@given(
    weights=st.lists(st.tuples(st.floats(0.1, 20), st.sampled_from(Priority)), min_size=1, max_size=12),
    guarantee=st.floats(0, 80),
    percents=st.lists(st.none() | st.floats(0, 100), min_size=1, max_size=6),
    busy=st.sets(st.integers(0, 11)),
    gateways=st.integers(1, 8),
)
def test_whatever_happens_every_key_fits_its_class(
    weights: list[tuple[float, Priority]],
    guarantee: float,
    percents: list[float | None],
    busy: set[int],
    gateways: int,
) -> None:
    keys = [key(f"t{i:02}", weight=w, priority=p) for i, (w, p) in enumerate(weights)]
    keys[0] = replace(keys[0], guarantee_per_s=guarantee)
    pools = Run(policy(keys, [pool(guards=OFF)], gateways_max=gateways))
    for percent in percents:
        pools.tick(40.0, gpu_util_percent=percent, traffic=traffic(**{f"t{i:02}": 1e4 for i in busy}))
        assert within_its_class(pools, gateways)
        assert pools.decision.rate_per_s.sum() <= pools.decision.pools["chat:v1"].rate_per_s * (1 + 1e-9)
        assert pools.decision.pools["chat:v1"].rate_per_s >= lowest_rate_per_s(pools.policy.pools[0].rate)


def test_more_tenants_change_classes_only_at_the_steps_of_the_ladder() -> None:
    seen = [
        float(step.start(policy([key(f"t{i:03}") for i in range(n)])).plan.burst_s[0]) for n in range(1, 101)
    ]
    assert sum(a != b for a, b in itertools.pairwise(seen)) == 3
    assert sorted(set(seen)) == [1.0, 4.0, 15.0, 60.0]
