"""The demo's verdict must fail when the limiter leaks, over-limits, or when the check proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.demo.real_answer import RealAnswer
from controlplane.demo.story import story
from controlplane.demo.verdict import Evidence, KeyLog, RateLine, Window, criteria, given_away_ratio


def _every(rate_per_s: float, start_s: float, end_s: float) -> list[float]:
    step = 1.0 / rate_per_s
    return [start_s + i * step for i in range(int((end_s - start_s) * rate_per_s))]


def _evidence(admitted_per_s: float = 40.0, offered_per_s: float = 100.0) -> Evidence:
    window = Window(phase="pressure", start_s=100.0, end_s=110.0, limited=True, follows_slew=False)
    key = KeyLog(
        key="chat|acme|m:1",
        weight_share=1.0,
        offered_s=_every(offered_per_s, 100.0, 110.0),
        admitted_s=_every(admitted_per_s, 100.0, 110.0),
    )
    return Evidence(
        windows=[window],
        keys=[key],
        lines={key.key: RateLine(times_s=[90.0, 100.0], rates_per_s=[100.0, 40.0], burst_s=1.0)},
        curve_per_s={"pressure": 40.0},
        nacks=0,
        pushes=3,
        visible_to_acked_s=[0.05, 0.06],
        spoofed_requests=10,
        spoofed_replaced=10,
        sse_added_ms=2.0,
    )


def _failing(evidence: Evidence) -> set[str]:
    return {criterion.id for criterion in criteria(evidence) if not criterion.holds}


def test_an_exact_limiter_passes_everything() -> None:
    assert _failing(_evidence()) == set()


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        pytest.param({"nacks": 1}, {"nacks"}, id="a rejected resource"),
        pytest.param({"pushes": 0}, {"nacks"}, id="nothing was ever pushed"),
        pytest.param({"visible_to_acked_s": [0.9] * 20}, {"visible_to_acked_p95"}, id="slow reaction"),
        pytest.param({"visible_to_acked_s": []}, {"visible_to_acked_p95"}, id="no reaction measured"),
        pytest.param({"spoofed_replaced": 9}, {"colours"}, id="one spoofed value got through"),
        pytest.param({"spoofed_requests": 0}, {"colours"}, id="nothing was spoofed"),
        pytest.param({"sse_added_ms": None}, {"sse_first_chunk_added"}, id="streams not measured"),
        pytest.param({"sse_added_ms": 80.0}, {"sse_first_chunk_added"}, id="streams held up"),
    ],
)
def test_each_broken_promise_fails_its_own_criterion(change: dict[str, object], broken: set[str]) -> None:
    assert _failing(replace(_evidence(), **change)) == broken  # type: ignore[arg-type]


def test_a_limiter_that_admits_too_much_fails_rate_and_giveaway() -> None:
    assert _failing(_evidence(admitted_per_s=60.0)) == {"rate.pressure", "given_away"}


def test_a_limiter_that_admits_too_little_fails_the_rate() -> None:
    assert _failing(_evidence(admitted_per_s=30.0)) == {"rate.pressure"}


def test_too_little_offered_load_fails_the_check_itself() -> None:
    assert "overload" in _failing(_evidence(offered_per_s=50.0))


def test_one_burst_is_no_gift_and_a_second_one_is() -> None:
    evidence = _evidence()
    key = evidence.keys[0]
    one = replace(key, admitted_s=sorted([*key.admitted_s, *[100.0] * 40]))
    two = replace(key, admitted_s=sorted([*key.admitted_s, *[100.0] * 140]))
    assert given_away_ratio(evidence, one) <= 0.01
    assert given_away_ratio(evidence, two) > 0.01


def test_the_integral_follows_every_step_of_the_rate() -> None:
    line = RateLine(times_s=[0.0, 10.0, 20.0], rates_per_s=[10.0, 20.0, 5.0], burst_s=1.0)
    assert line.integral(5.0, 25.0) == pytest.approx(5 * 10 + 10 * 20 + 5 * 5)


def test_the_story_lasts_what_was_asked_and_turns_guards_on_before_its_last_scene() -> None:
    scenes = story(45.0)
    assert sum(scene.seconds for scene in scenes) == pytest.approx(45.0)
    assert [scene.gpu_util_percent for scene in scenes] == [15, 60, 95, 20, 95, 60]
    assert [scene.id for scene in scenes if scene.reload_guards] == ["relapse"]


@pytest.mark.parametrize(
    ("answer", "holds"),
    [
        pytest.param(RealAnswer(text="Paris.", chunks=2, status=200, ended=True), True, id="a stream"),
        pytest.param(RealAnswer(text="Paris.", chunks=1, status=200, ended=True), False, id="all at once"),
        pytest.param(RealAnswer(text="Par", chunks=2, status=200), False, id="cut off"),
        pytest.param(RealAnswer(status=429, ended=True), False, id="refused"),
        pytest.param(RealAnswer(), False, id="no answer"),
    ],
)
def test_the_real_model_answers_only_by_a_whole_stream(answer: RealAnswer, holds: bool) -> None:
    assert answer.criterion().holds is holds
