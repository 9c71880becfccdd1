"""Every charge of the simulation is the one that the limits script makes, in LuaJIT as Envoy runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lua_scripts import limits
from sample_policy import decision_of, policy_of

from controlplane.model.decision import Decision
from controlplane.model.policy import Policy, WindowLimit
from controlplane.sim.des.bucket import Buckets
from controlplane.xds import names

PROMPT_TOKENS = 500
WINDOWS = (
    WindowLimit(name="minute", tokens=1000, window_s=60, burst_tokens=100, key_fields=("tenant_id", "path")),
    WindowLimit(
        name="tokens",
        tokens=90_000,
        window_s=60,
        burst_tokens=9_000,
        key_fields=("tenant_id", "model_version"),
        unit="llm_token",
    ),
)


def policy(gateways: int) -> Policy:
    return policy_of(
        windows=WINDOWS, key_windows={"acme": ("minute", "tokens"), "beta": ()}, gateways_max=gateways
    )


def slots_of(metadata: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Class, bucket and cost of every slot that the script filled, in Envoy's order."""
    filled = [slot for slot in names.SLOTS if f"u{slot}" in metadata]
    return [(metadata[f"c{slot}"], metadata[f"k{slot}"], int(metadata[f"u{slot}"])) for slot in filled]


def decided(made: Policy, rates: list[float], classes_s: list[float], gateways: int) -> Decision:
    ids = [key.id for key in made.keys]
    return decision_of(
        made,
        dict(zip(ids, rates, strict=True)),
        burst_s=dict(zip(ids, classes_s, strict=True)),
        gateways=gateways,
    )


@given(
    rates=st.lists(st.floats(0.0, 5e4), min_size=6, max_size=6),
    gateways=st.integers(1, 5),
    classes=st.lists(st.sampled_from([0.1, 1.0, 4.0, 15.0, 60.0, 1000.0]), min_size=6, max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_classes_buckets_costs_and_order_are_the_scripts(
    rates: list[float], gateways: int, classes: list[float]
) -> None:
    made = policy(gateways)
    decision = decided(made, rates, classes, gateways)
    script, buckets = limits(made, decision), Buckets(made, decision.burst_s)
    buckets.enforce(decision)
    for number, key in enumerate(made.keys):
        stream = script.stream(
            metadata={names.METADATA: {"tenant": key.tenant}, names.BODY_METADATA: {"model": key.pool}},
            headers=[("content-length", str(4 * PROMPT_TOKENS))],
        ).request()
        charges = buckets.charges(number, PROMPT_TOKENS)
        assert [(f"{c.class_s:g}", c.bucket, c.units) for c in charges] == slots_of(stream.metadata)


@pytest.mark.parametrize("gateways", [1, 4])
def test_a_deep_bucket_has_every_shorter_one_before_it(gateways: int) -> None:
    made = policy(gateways)
    decision = decided(made, [50.0] * 6, [240.0] * 6, gateways)
    buckets = Buckets(made, decision.burst_s)
    buckets.enforce(decision)
    plain = next(n for n, key in enumerate(made.keys) if not key.windows)
    assert [charge.class_s for charge in buckets.charges(plain, PROMPT_TOKENS)] == [
        1.0,
        4.0,
        15.0,
        60.0,
        240.0,
    ]
