"""The replay keeps the trace's pattern at any rate, and is the same each time."""

from __future__ import annotations

from itertools import islice, pairwise, takewhile
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.sim.trace import EXCERPT, Trace, TraceRequest, arrivals, compress, read_trace, split


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace()


def _until(
    trace: Trace, schedule: list[tuple[float, float]], end_s: float, evenness: float = 0.0
) -> list[float]:
    found = takewhile(lambda r: r.at_s < end_s, arrivals(trace, schedule, evenness=evenness))
    return [request.at_s for request in found]


def _burstiness(times_s: list[float]) -> float:
    gaps = [after - before for before, after in pairwise(times_s)]
    return pstdev(gaps) / fmean(gaps)


def test_the_excerpt_is_a_stretch_of_the_azure_conversation_trace(trace: Trace) -> None:
    assert len(trace) == 1200
    assert trace[0].at_s == 0.0
    assert 150 < trace[-1].at_s < 250
    assert all(before.at_s <= after.at_s for before, after in pairwise(trace))
    assert all(request.prompt_tokens > 0 and request.answer_tokens > 0 for request in trace)


def test_the_excerpt_names_its_source_and_licence() -> None:
    note = (EXCERPT.parent / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for needed in (EXCERPT.name, "CC-BY 4.0", "Azure Public Dataset", "Splitwise", "ISCA 2024"):
        assert needed in note


def test_an_empty_trace_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"empty\.csv: no requests"):
        read_trace(path)


def test_compressing_changes_times_and_nothing_else(trace: Trace) -> None:
    fast = compress(trace, 20.0)
    assert [r.at_s for r in fast] == pytest.approx([r.at_s / 20 for r in trace])
    assert [r.prompt_tokens for r in fast] == [r.prompt_tokens for r in trace]


def test_a_split_is_complete_ordered_weighted_and_repeatable(trace: Trace) -> None:
    weights = {"gold": 3.0, "silver": 2.0, "bronze": 1.0}
    parts = split(trace, weights, seed=1)
    assert parts == split(trace, dict(reversed(weights.items())), seed=1)
    assert parts != split(trace, weights, seed=2)
    assert sorted((r for part in parts.values() for r in part), key=lambda r: r.at_s) == list(trace)
    assert len(parts["gold"]) / len(trace) == pytest.approx(0.5, abs=0.05)
    assert len(parts["bronze"]) / len(trace) == pytest.approx(1 / 6, abs=0.05)


@given(rate=st.floats(0.5, 500.0))
def test_the_offered_rate_is_the_scheduled_one(rate: float) -> None:
    trace = read_trace()
    whole = len(trace) / rate  # after one turn of the trace its mean is exact
    assert len(_until(trace, [(0.0, rate)], whole + 1e-6)) == pytest.approx(len(trace), abs=1)


def test_burstiness_is_the_traces_own_at_every_rate(trace: Trace) -> None:
    own = _burstiness([request.at_s for request in trace])
    for rate in (2.0, 200.0):
        times_s = [r.at_s for r in islice(arrivals(trace, [(0.0, rate)]), len(trace))]
        assert _burstiness(times_s) == pytest.approx(own, rel=0.01)


def test_evenness_goes_from_the_trace_to_a_metronome(trace: Trace) -> None:
    found = [
        _burstiness([r.at_s for r in islice(arrivals(trace, [(0.0, 10.0)], evenness=evenness), 1000)])
        for evenness in (0.0, 0.5, 1.0)
    ]
    assert found[0] > found[1] > found[2]
    assert found[2] == pytest.approx(0.0, abs=1e-9)


def test_a_schedule_steps_at_its_second(trace: Trace) -> None:
    times_s = _until(trace, [(0.0, 10.0), (20.0, 100.0), (30.0, 0.0), (40.0, 10.0)], 60.0)
    counts = [
        sum(start <= at < end for at in times_s) for start, end in ((0, 20), (20, 30), (30, 40), (40, 60))
    ]
    assert counts[2] == 0
    assert [counts[0], counts[1], counts[3]] == pytest.approx([200, 1000, 200], rel=0.25)


def test_a_schedule_that_ends_at_zero_ends(trace: Trace) -> None:
    assert 50 < len(list(arrivals(trace, [(0.0, 10.0), (10.0, 0.0)]))) < 200


@example(gaps=[0.0] * 7 + [1.0], rates=[9.0, 3e-191])  # what rounding left was divided by next to nothing
@given(
    gaps=st.lists(st.floats(0, 10), min_size=1, max_size=20),
    rates=st.lists(st.floats(0, 50), min_size=1, max_size=6),
)
def test_arrivals_never_go_back_in_time(gaps: list[float], rates: list[float]) -> None:
    at_s, requests = 0.0, []
    for gap in gaps:
        at_s += gap
        requests.append(TraceRequest(at_s=at_s, prompt_tokens=1, answer_tokens=1))
    schedule = [(float(second), rate) for second, rate in enumerate(rates)]
    times_s = [r.at_s for r in islice(arrivals(tuple(requests), schedule), 500)]
    assert times_s == sorted(times_s)
    assert all(at >= 0 for at in times_s)
