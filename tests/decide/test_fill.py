import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from controlplane.decide.fill import Floats, fill

INF = np.inf
amounts = st.floats(0, 1e4, allow_subnormal=False)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Floats, Floats, Floats, float]:
    size = draw(st.integers(1, 12))
    weight = draw(hnp.arrays(float, size, elements=st.floats(1e-3, 1e3)))
    low = draw(hnp.arrays(float, size, elements=amounts))
    room = draw(hnp.arrays(float, size, elements=st.one_of(amounts, st.just(INF))))
    return weight, low, low + room, draw(st.floats(0, 1e5))


def arrays(*rows: list[float]) -> tuple[Floats, ...]:
    return tuple(np.array(row, float) for row in rows)


@pytest.mark.parametrize(
    ("weight", "low", "high", "budget", "expected"),
    [
        pytest.param([1, 1], [0, 0], [INF, INF], 10, [5, 5], id="equal"),
        pytest.param([3, 1], [0, 0], [INF, INF], 8, [6, 2], id="by-weight"),
        pytest.param([1, 1, 2], [0, 0, 0], [1, INF, INF], 10, [1, 3, 6], id="one-wants-little"),
        pytest.param([1, 1, 2], [6, 0, 0], [INF, INF, INF], 9, [6, 1, 2], id="one-is-owed-much"),
        pytest.param([1, 1], [2, 3], [9, 9], 4, [2, 3], id="less-than-owed"),
        pytest.param([1, 1], [0, 0], [2, 3], 99, [2, 3], id="more-than-wanted"),
        pytest.param([1, 1], [2, 0], [2, 5], 4, [2, 2], id="one-fixed"),
    ],
)
def test_the_level_rises_between_the_bounds(
    weight: list[float], low: list[float], high: list[float], budget: float, expected: list[float]
) -> None:
    assert fill(*arrays(weight, low, high), budget) == pytest.approx(expected)  # type: ignore[arg-type]


@given(problems())
def test_the_budget_is_spent_exactly_within_the_bounds(problem: tuple[Floats, Floats, Floats, float]) -> None:
    weight, low, high, budget = problem
    got = fill(weight, low, high, budget)
    assert (got >= low - 1e-9).all()
    assert (got <= high + 1e-9).all()
    assert got.sum() == pytest.approx(min(max(budget, low.sum()), high.sum()), rel=1e-9, abs=1e-9)


@given(problems())
def test_nobody_who_could_give_has_more_per_weight_than_one_who_could_take(
    problem: tuple[Floats, Floats, Floats, float],
) -> None:
    weight, low, high, budget = problem
    got = fill(weight, low, high, budget)
    level = got / weight
    gives, takes = got > low + 1e-6, got < high - 1e-6
    if gives.any() and takes.any():
        assert level[gives].max() <= level[takes].min() * (1 + 1e-6) + 1e-6 / weight.min()
