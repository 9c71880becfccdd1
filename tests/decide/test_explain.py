from dataclasses import replace

import numpy as np
import pytest
from judging import OFF, Run, key, policy, pool, traffic

from controlplane.decide.explain import Explanation, explain
from controlplane.model.decision import BreakerDecision, BreakerState
from controlplane.model.policy import Key, Mode, Policy, WindowLimit

WINDOW = WindowLimit(
    name="minute", tokens=60, window_s=60, burst_tokens=6, key_fields=("tenant_id", "model_version")
)


def told(pools: Run, tenant: str = "a") -> Explanation:
    return explain(pools.policy, pools.decision, f"api|{tenant}|chat:v1")


def by_label(explanation: Explanation) -> dict[str, tuple[object, str]]:
    return {line.label: (line.value, line.reason) for line in explanation.lines}


def run(*keys: Key, **fields: object) -> Run:
    return Run(policy(keys or (key("a", weight=3.0), key("b")), [pool(guards=OFF)], **fields))


def test_the_lines_lead_from_the_signal_to_the_bucket() -> None:
    pools = run()
    pools.tick(gpu_util_percent=60.0, traffic=traffic(a=500.0, b=500.0))
    assert [line.label for line in told(pools).lines] == [
        "utilisation",
        "factor",
        "base rate",
        "pool rate",
        "share by weight",
        "demand",
        "minimum",
        "limit",
        "burst",
        "breaker",
        "to raise it",
        "to raise the pool",
    ]
    lines = by_label(told(pools))
    assert lines["utilisation"] == (60.0, "gpu_util, measured 0.0 s ago")
    assert lines["factor"][0] == 0.4
    assert lines["limit"] == (pytest.approx(30.0), "weighted share of the pool's rate")
    assert lines["burst"][0] == pytest.approx(30.0)
    assert lines["to raise the pool"][1] == "lower utilisation; 30 % or less gives the whole 100/s"


def test_the_explained_limit_is_the_enforced_one() -> None:
    pools = run()
    pools.tick(gpu_util_percent=77.0, traffic=traffic(a=1.0, b=500.0))
    assert by_label(told(pools, "b"))["limit"][0] == pools.rate_of("b")


def test_unknown_demand_is_said_to_be_unknown() -> None:
    pools = run()
    pools.tick(gpu_util_percent=60.0)
    assert by_label(told(pools))["demand"] == (None, "unknown without gateway counters")


@pytest.mark.parametrize(
    ("fields", "label", "words"),
    [
        ({"ceiling_per_s": 2.0}, "to raise it", "a higher `limit` of the tenant than 2/s"),
        ({"pin_per_s": 2.0}, "to raise it", "the tenant's pin"),
        ({"guarantee_per_s": 39.0, "weight": 1.0}, "guarantee", "never less while the pool can pay"),
    ],
)
def test_what_binds_says_what_would_change_it(fields: dict[str, float], label: str, words: str) -> None:
    pools = run(key("a", **fields), key("b", weight=9.0))
    pools.tick(gpu_util_percent=60.0, traffic=traffic(a=500.0, b=500.0))
    assert words in by_label(told(pools))[label][1]


def test_a_pool_without_a_signal_asks_for_one() -> None:
    pools = run()
    pools.tick()
    lines = by_label(told(pools))
    assert lines["utilisation"] == (None, "gpu_util, never measured")
    assert "factor" not in lines
    assert "a fresh reading" in lines["to raise the pool"][1]


def test_a_frozen_pool_says_how_to_thaw_it() -> None:
    pools = run(freeze=True)
    pools.tick(gpu_util_percent=15.0)
    assert by_label(told(pools))["to raise the pool"][1] == "switch freeze off"


def test_windows_are_explained_and_the_lowest_limit_binds() -> None:
    pools = run(key("a", windows=("minute",)), windows=(WINDOW,))
    pools.tick(gpu_util_percent=15.0)
    lines = by_label(told(pools))
    assert lines["window minute"] == (
        1.0,
        "60 per 60 s for each tenant_id:model_version, at once 6 (class of 6 s)",
    )
    assert lines["binding"] == (1.0, "window minute is the lowest")


def test_several_gateways_have_their_parts() -> None:
    pools = run(gateways_max=4)
    pools.tick(gpu_util_percent=60.0)
    shown = explain(pools.policy, replace(pools.decision, gateways=4), "api|a|chat:v1")
    assert by_label(shown)["per gateway"][0] == pytest.approx(7.5)
    crowded = explain(pools.policy, replace(pools.decision, gateways=5), "api|a|chat:v1")
    assert "more gateways than `gateways.max`" in by_label(crowded)["warning"][1]


def test_observe_mode_is_said() -> None:
    pools = run(mode=Mode.OBSERVE)
    pools.tick()
    assert by_label(told(pools))["mode"][0] == "observe"


@pytest.mark.parametrize("code", range(9))
def test_every_reason_can_be_explained(code: int) -> None:
    pools = run()
    pools.tick()
    shown = explain(pools.policy, replace(pools.decision, reason=np.full(2, code, np.int8)), "api|a|chat:v1")
    assert by_label(shown)["to raise it"][1]


def test_an_unknown_key_is_an_error() -> None:
    pools = run()
    pools.tick()
    with pytest.raises(KeyError, match="nobody"):
        told(pools, "nobody")


def test_a_key_whose_pool_is_not_decided_still_has_its_limit() -> None:
    pools = run()
    pools.tick()
    shown = explain(_without_pools(pools.policy), replace(pools.decision, pools={}), "api|a|chat:v1")
    assert "limit" in by_label(shown)


def _without_pools(of: Policy) -> Policy:
    return replace(of, pools=())


def test_a_breaker_that_is_open_is_the_first_thing_told() -> None:
    pools = run()
    pools.tick(gpu_util_percent=60.0)
    made = BreakerDecision(
        pool="chat:v1",
        state=BreakerState.OPEN,
        threshold_s=0.4,
        failure_ratio=0.6,
        reason="open: 30 of the last 50 calls failed.",
        retry_after_s=17,
    )
    pools.decision = replace(pools.decision, breakers={"chat:v1": made})
    first, second, *_ = told(pools).lines
    assert (first.label, first.value, first.reason) == ("breaker", "open", made.reason)
    assert (second.label, second.value, second.unit) == ("open for", 17.0, "s")
    assert by_label(told(pools))["slow above"][0] == 0.4
