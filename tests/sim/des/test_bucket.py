"""The simulated buckets charge what Envoy's do, for the prices that the limits script has."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.config import load
from controlplane.decide import step
from controlplane.model.ladder import COST_MAX, LADDER_S, UNITS_PER_S
from controlplane.model.price import cost_units, cost_units_of, window_burst_class_s
from controlplane.model.signal import Observation
from controlplane.sim.des.bucket import ADAPTIVE, Bucket, Buckets
from controlplane.xds import lua_limits
from controlplane.xds.ratelimit import local_rate_limit

EXAMPLE = Path(__file__).parents[3] / "examples/multi-tenant"


class EnvoyBucket:
    """Envoy's token bucket in exact arithmetic, from its configuration: full, then filled evenly."""

    def __init__(self, class_s: float) -> None:
        (found,) = (
            descriptor.token_bucket
            for descriptor in local_rate_limit().descriptors
            if descriptor.entries[0].value == f"{class_s:g}"
        )
        assert found is not None
        assert found.tokens_per_fill is not None
        assert found.fill_interval is not None
        self.most = found.max_tokens
        self.per_s = Fraction(found.tokens_per_fill) / Fraction(found.fill_interval.total_seconds())
        self.level, self.at_s = Fraction(self.most), Fraction(0)

    def consume(self, now_s: Fraction, units: int) -> bool:
        self.level = min(Fraction(self.most), self.level + (now_s - self.at_s) * self.per_s)
        self.at_s = now_s
        if self.level < units:
            return False
        self.level -= units
        return True


@given(
    st.sampled_from(LADDER_S),
    st.lists(
        # multiples of 1/1024 s are exact in floating point, so that both see the very same times
        st.tuples(st.integers(0, 4096), st.sampled_from([1, 997, 10_000, 333_333, 2_000_000, COST_MAX])),
        max_size=60,
    ),
)
@settings(max_examples=100, deadline=None)
def test_a_bucket_admits_exactly_what_envoys_admits(class_s: float, asks: list[tuple[int, int]]) -> None:
    ours, envoys, ticks = Bucket(class_s), EnvoyBucket(class_s), 0
    for gap, units in asks:
        ticks += gap
        assert ours.take(ticks / 1024, units) == envoys.consume(Fraction(ticks, 1024), units)
    assert ours.excess_max <= ours.depth + 1e-3


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_prices_are_those_of_the_limits_script(rates: list[float]) -> None:
    given_rates = np.array(rates)
    text = lua_limits.costs_text(given_rates)
    rendered = [
        int(text[at : at + lua_limits.COST_DIGITS]) for at in range(0, len(text), lua_limits.COST_DIGITS)
    ]
    assert cost_units_of(given_rates).tolist() == rendered


def test_windows_have_the_class_of_the_limits_script() -> None:
    policy = load(EXAMPLE).policy
    assert policy is not None
    for window in policy.windows:
        ours = window_burst_class_s(window.rate_per_s, window.burst_tokens, policy.gateways.max_count)
        assert ours.class_s == lua_limits.window_class_s(window, policy.gateways.max_count)


def buckets_of_example(gateways: int) -> tuple[Buckets, int, float]:
    """The example's buckets, a key without windows in them, and its rate."""
    policy = load(EXAMPLE).policy
    assert policy is not None
    state, decision = step.step(
        policy, step.start(policy), Observation(now_s=0.0, loads={}, traffic=None, gateways=gateways)
    )
    buckets = Buckets(policy, state.plan.burst_s)
    buckets.enforce(decision)
    plain = next(n for n, key in enumerate(policy.keys) if not key.windows and decision.rate_per_s[n] > 1)
    return buckets, plain, float(decision.rate_per_s[plain])


@pytest.mark.parametrize("gateways", [1, 2, 3])
def test_gateways_share_a_limit(gateways: int) -> None:
    buckets, key, rate = buckets_of_example(gateways)
    for n in range(400_000):  # empty them all
        if all(buckets.refusal(0.0, key, gateway, 100) for gateway in range(gateways)):
            break
        assert n < 399_999
    admitted = sum(buckets.refusal(0.01 * n, key, n % gateways, 100) is None for n in range(1, 20_001))
    assert admitted == pytest.approx(200.0 * rate, abs=gateways + 0.001 * 200 * rate)


def test_a_key_is_closed_before_the_first_decision() -> None:
    policy = load(EXAMPLE).policy
    assert policy is not None
    buckets = Buckets(policy, step.start(policy).plan.burst_s)
    plain = next(n for n, key in enumerate(policy.keys) if not key.windows)
    assert buckets.refusal(0.0, plain, 0, 100) == ADAPTIVE


def test_a_refusal_keeps_what_earlier_slots_took() -> None:
    policy = load(EXAMPLE).policy
    assert policy is not None
    buckets = Buckets(policy, step.start(policy).plan.burst_s)
    with_window = next(n for n, key in enumerate(policy.keys) if key.windows)
    refusals = {buckets.refusal(0.0, with_window, 0, 100) for _ in range(5000)}
    assert None not in refusals  # the adaptive limit is still closed ...
    assert refusals <= {ADAPTIVE, *policy.keys[with_window].windows}
    assert buckets.overdrawn_ratio <= 1.0  # ... and what windows before it gave is within their burst


def test_a_price_change_gives_nothing_away() -> None:
    bucket, admitted = Bucket(1.0), 0
    for n in range(20_000):
        rate = 40.0 if n // 100 % 2 else 10.0  # changes every second
        admitted += bucket.take(n * 0.01, cost_units(rate))
    assert admitted == pytest.approx(200 * 25, abs=40 + 1)
    assert bucket.excess_max <= 1.0 * UNITS_PER_S + 1e-3
