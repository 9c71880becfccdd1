"""Policy and decision become script text: stable, small, quick, and of one mind with judgement."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from controlplane.model import price
from controlplane.model.decision import Decision
from controlplane.model.policy import (
    Gateways,
    Key,
    Listener,
    Model,
    Policy,
    Pool,
    Priority,
    Route,
    SignalPolicy,
    Tenant,
    WindowLimit,
)
from controlplane.model.price import cost_units_of
from controlplane.xds.lua_identity import identity_script
from controlplane.xds.lua_limits import costs_text, limits_script, window_class_s


def _policy(tenants: int, models: int) -> Policy:
    names = [f"model-{number}" for number in range(models)]
    pools = tuple(Pool(model=name, version="2024-06-01", endpoints=()) for name in names)
    ids = [f"tenant-{number:05d}" for number in range(tenants)]
    keys = [
        Key(
            route="chat",
            tenant=tenant,
            pool=pool.id,
            priority=Priority.NORMAL,
            weight=1.0,
            guarantee_per_s=0.0,
            ceiling_per_s=None,
            pin_per_s=None,
        )
        for tenant in ids
        for pool in pools
    ]
    return Policy(
        listener=Listener(),
        gateways=Gateways(),
        signals=SignalPolicy(),
        models=tuple(Model(name=n, versions=("2024-06-01",), default_version="2024-06-01") for n in names),
        pools=pools,
        routes=(Route(id="chat", pattern="/v1/chat/completions", models=tuple(names)),),
        tenants=tuple(Tenant(id=id, key_digests=(f"{number:064x}",)) for number, id in enumerate(ids)),
        keys=tuple(sorted(keys, key=lambda key: key.id)),
    )


def _decision(policy: Policy, seed: int = 0) -> Decision:
    rate = np.random.default_rng(seed).uniform(0.01, 100.0, len(policy.keys))
    return Decision(
        now_s=float(seed),
        pools={},
        rate_per_s=rate,
        demand_per_s=rate,
        fair_per_s=rate,
        reason=np.zeros(len(rate), dtype=np.int8),
        burst_s=np.ones(len(rate)),
    )


def test_equal_inputs_give_equal_bytes() -> None:
    first, second = _policy(20, 3), _policy(20, 3)
    assert first is not second
    assert limits_script(first, _decision(first), "code") == limits_script(second, _decision(second), "code")
    assert identity_script(first, "code") == identity_script(second, "code")


def test_a_tick_changes_the_numbers_and_nothing_else() -> None:
    policy = _policy(50, 2)
    before = limits_script(policy, _decision(policy, 1), "code")
    after = limits_script(policy, _decision(policy, 2), "code")
    same_time = limits_script(policy, replace(_decision(policy, 1), now_s=99.0), "code")
    assert len(before) == len(after)
    assert before != after
    assert before == same_time
    assert before.partition("local TICK=")[0] == after.partition("local TICK=")[0]


def test_ten_thousand_keys_in_a_tick() -> None:
    policy = _policy(1000, 10)
    limits_script(policy, _decision(policy), "code")
    decisions = [_decision(policy, seed) for seed in range(1, 6)]
    started = time.process_time()
    texts = [limits_script(policy, decision, "code") for decision in decisions]
    spent_s = (time.process_time() - started) / len(texts)
    assert len(set(texts)) == 5
    assert len(texts[0]) < 200_000
    assert spent_s < 0.040


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_costs_agree_with_judgement(rates: list[float]) -> None:
    values = np.array(rates, dtype=np.float64)
    assert cost_units_of(values).tolist() == [price.cost_units(rate) for rate in rates]
    text = costs_text(values)
    assert [int(text[at : at + 10]) for at in range(0, len(text), 10)] == cost_units_of(values).tolist()


@given(
    st.floats(min_value=0.0, max_value=1e6),
    st.sampled_from([1.0, 60.0, 3600.0, 86400.0]),
    st.floats(min_value=0.01, max_value=1e5),
    st.integers(1, 40),
)
def test_window_classes_agree_with_judgement(
    tokens: float, window_s: float, burst_tokens: float, n: int
) -> None:
    window = WindowLimit(name="w", tokens=tokens, window_s=window_s, burst_tokens=burst_tokens, key_fields=())
    expected = price.window_burst_class_s(window.rate_per_s, burst_tokens, n).class_s
    assert window_class_s(window, n) == expected
