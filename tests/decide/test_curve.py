import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.decide.curve import rate_factor
from controlplane.model.policy import Curve

EXACT = {
    Curve.TABLE: {
        0: 1.0,
        15: 1.0,
        29.9: 1.0,
        30: 1.0,
        31: 0.98,
        45: 0.7,
        59.9: 0.402,
        60: 0.4,
        60.1: 0.399,
        75: 0.25,
        80: 0.2,
        89.9: 0.101,
        90: 0.1,
        95: 0.1,
        100: 0.1,
    },
    Curve.FORMULA: {0: 1.0, 15: 0.85, 29.9: 0.701, 30: 0.7, 45: 0.55, 60: 0.4, 80: 0.2, 90: 0.1, 100: 0.1},
    Curve.STRICT80: {0: 1.0, 30: 1.0, 45: 0.7, 60: 0.4, 70: 0.3, 79.9: 0.201, 80: 0.1, 85: 0.1, 100: 0.1},
}
CASES = [(curve, u, factor) for curve, rows in EXACT.items() for u, factor in rows.items()]
every_curve = pytest.mark.parametrize("curve", list(Curve))


@pytest.mark.parametrize(("curve", "u", "factor"), CASES, ids=[f"{c.value}-{u}" for c, u, _ in CASES])
def test_the_curve_is_exact(curve: Curve, u: float, factor: float) -> None:
    assert rate_factor(u, curve) == pytest.approx(factor, abs=1e-9, rel=0)


@every_curve
@pytest.mark.parametrize("u", [None, math.nan, math.inf, -math.inf], ids=["none", "nan", "inf", "-inf"])
def test_no_signal_is_no_factor(curve: Curve, u: float | None) -> None:
    assert rate_factor(u, curve) is None


@every_curve
@pytest.mark.parametrize(("outside", "edge"), [(-1e-9, 0), (-40, 0), (100.1, 100), (9e18, 100)])
def test_what_is_outside_the_scale_is_clamped(curve: Curve, outside: float, edge: float) -> None:
    assert rate_factor(outside, curve) == rate_factor(edge, curve)


@given(u=st.floats(0, 100), v=st.floats(0, 100), curve=st.sampled_from(Curve))
def test_more_utilisation_never_gives_more_rate(u: float, v: float, curve: Curve) -> None:
    low, high = sorted((u, v))
    assert rate_factor(low, curve) >= rate_factor(high, curve)  # type: ignore[operator]


@given(u=st.floats(allow_nan=False, allow_infinity=False), curve=st.sampled_from(Curve))
def test_the_factor_is_bounded(u: float, curve: Curve) -> None:
    assert 0.1 <= rate_factor(u, curve) <= 1.0  # type: ignore[operator]


@given(u=st.floats(0, 99.999), curve=st.sampled_from([Curve.TABLE, Curve.FORMULA]))
def test_table_and_formula_have_no_jumps(u: float, curve: Curve) -> None:
    before, after = rate_factor(u, curve), rate_factor(u + 1e-6, curve)
    assert abs(after - before) <= 0.021e-6  # type: ignore[operator]


def test_table_and_formula_agree_from_60_on() -> None:
    for tenth in range(600, 1001):
        assert rate_factor(tenth / 10, Curve.TABLE) == pytest.approx(
            rate_factor(tenth / 10, Curve.FORMULA), abs=1e-9
        )
