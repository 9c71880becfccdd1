"""M12, M13: every state with every event, the statistics, and no way to get stuck."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controlplane.decide.breaker import (
    BLIND_S,
    DWELL_MAX_S,
    FORGIVEN_S,
    SLOW_EVALUATIONS,
    Breaker,
    Evidence,
    Share,
    Step,
    advance,
    capacity_ratio,
    wilson_lower,
)
from controlplane.model.decision import BreakerState
from controlplane.model.policy import BreakerPolicy

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
POLICY = BreakerPolicy()
QUIET = Evidence(failures=Share(calls=500))


def failing(bad: float, calls: float) -> Evidence:
    return Evidence(failures=Share(calls=calls, bad=bad))


def probes(good: float, bad: float) -> Evidence:
    return Evidence(probes=Share(calls=good + bad, bad=bad))


def state(which: BreakerState, for_s: float = 5.0, **fields: float) -> Breaker:
    return replace(Breaker(state=which, for_s=for_s, dwell_s=30.0, openings=1), **fields)  # type: ignore[arg-type]


def advanced(breaker: Breaker, evidence: Evidence, dt_s: float = 1.0, jitter: float = 1.0) -> Step:
    return advance(breaker, evidence, POLICY, dt_s, jitter)


SLOW_NOW = Evidence(slow=Share(calls=200, bad=60))
EVENTS: dict[str, Evidence] = {
    "nothing": QUIET,
    "no counts": Evidence(known=False),
    "failures": failing(12, 25),
    "25 in a row": Evidence(failures_in_a_row=25),
    "fifth slow": SLOW_NOW,
    "10 good probes": probes(10, 1),
    "2 bad probes": probes(3, 2),
    "9 good probes": probes(9, 1),
}
STATES: dict[str, Breaker] = {
    "closed": state(CLOSED, slow_marks=SLOW_EVALUATIONS - 1),
    "open": state(OPEN, 5.0),
    "open, dwell over": state(OPEN, 29.5),
    "half-open": state(HALF_OPEN, 5.0),
    "half-open, late": state(HALF_OPEN, 500.0),
}
# What the table does not list stays as it is.
MOVES: dict[tuple[str, str], BreakerState] = {
    ("closed", "failures"): OPEN,
    ("closed", "25 in a row"): OPEN,
    ("closed", "fifth slow"): OPEN,
    **{("open, dwell over", event): HALF_OPEN for event in EVENTS},
    ("half-open", "10 good probes"): CLOSED,
    ("half-open", "2 bad probes"): OPEN,
    ("half-open, late", "10 good probes"): CLOSED,
    ("half-open, late", "2 bad probes"): OPEN,
    ("half-open, late", "9 good probes"): OPEN,
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("name", STATES)
def test_each_event_in_each_state(name: str, event: str) -> None:
    before = STATES[name]
    step = advanced(before, EVENTS[event])
    assert step.breaker.state is MOVES.get((name, event), before.state)
    assert bool(step.why) == (step.breaker.state is not before.state), "a move has a reason, a stay has none"


@pytest.mark.parametrize(
    ("bad", "calls", "expected"),
    [(0, 100, 0.0), (1, 1, 0.1), (20, 20, 20 / 29), (10, 20, 0.2215), (100, 1000, 0.0749), (0, 0, 0.0)],
)
def test_wilson_lower_bounds(bad: float, calls: float, expected: float) -> None:
    assert wilson_lower(bad, calls) == pytest.approx(expected, abs=2e-4)


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_a_lower_bound_is_below_the_share(bad: int, calls: int) -> None:
    bad = min(bad, calls)
    lower = wilson_lower(bad, calls)
    assert 0 <= lower <= bad / calls + 1e-12
    assert lower <= wilson_lower(min(bad + 1, calls), calls) + 1e-12


@pytest.mark.parametrize(
    ("bad", "calls", "opens"),
    [(1, 1, False), (19, 19, False), (6, 20, False), (8, 20, True), (50, 500, False), (80, 500, True)],
    ids=["one of one", "19 of 19", "6 of 20", "8 of 20", "10 % of 500", "16 % of 500"],
)
def test_failures_open_when_the_share_is_beyond_doubt(bad: float, calls: float, opens: bool) -> None:
    assert (advanced(state(CLOSED), failing(bad, calls)).breaker.state is OPEN) == opens


@pytest.mark.parametrize(("row", "opens"), [(24, False), (25, True)])
def test_25_in_a_row_open(row: int, opens: bool) -> None:
    assert (advanced(state(CLOSED), Evidence(failures_in_a_row=row)).breaker.state is OPEN) == opens


@pytest.mark.parametrize(
    ("evidence", "marks"),
    [
        (Evidence(slow=Share(calls=199, bad=199)), 0),
        (Evidence(slow=Share(calls=200, bad=30)), 0),
        (Evidence(slow=Share(calls=200, bad=60)), 1),
        (Evidence(slow_long=Share(calls=100, bad=40)), 1),
        (Evidence(slow_long=Share(calls=99, bad=99)), 0),
    ],
    ids=["too few", "15 %, in doubt", "30 %", "40 % of a minute", "too few of a minute"],
)
def test_slowness_needs_enough_calls(evidence: Evidence, marks: int) -> None:
    assert advanced(Breaker(), evidence).breaker.slow_marks == marks


def test_slowness_needs_five_evaluations_of_a_second() -> None:
    breaker, elapsed_s = Breaker(), 0.0
    while breaker.state is CLOSED:
        breaker = advanced(breaker, SLOW_NOW, dt_s=0.25).breaker
        elapsed_s += 0.25
    assert 4.0 <= elapsed_s <= 5.0


def test_a_good_second_takes_a_mark_away() -> None:
    breaker = Breaker()
    for evidence in (SLOW_NOW, SLOW_NOW, QUIET, SLOW_NOW):
        breaker = advanced(breaker, evidence).breaker
    assert breaker.slow_marks == 2


def test_dwells_double_up_to_300_s() -> None:
    breaker, dwells = Breaker(), []
    for _ in range(6):
        breaker = advanced(replace(breaker, state=HALF_OPEN), probes(0, 2)).breaker
        dwells.append(breaker.dwell_s)
    assert dwells == [30, 60, 120, 240, 300, 300]


def test_ten_minutes_closed_are_forgiven() -> None:
    late = advanced(state(CLOSED, FORGIVEN_S - 1, openings=3), QUIET).breaker
    assert advanced(late, failing(20, 20)).breaker.dwell_s == 30
    early = state(CLOSED, FORGIVEN_S - 10, openings=3)
    assert advanced(early, failing(20, 20)).breaker.dwell_s == 240


def test_a_jitter_stretches_the_dwell() -> None:
    assert advanced(Breaker(), failing(20, 20), jitter=1.15).breaker.dwell_s == pytest.approx(34.5)


def test_half_open_without_probes_stays_half_open() -> None:
    breaker = state(HALF_OPEN)
    for _ in range(2000):
        breaker = advanced(breaker, probes(1, 0)).breaker
    assert breaker.state is HALF_OPEN


def test_without_counts_for_ten_minutes_half_open_lets_go() -> None:
    blind = Evidence(known=False)
    assert advanced(state(HALF_OPEN, blind_s=BLIND_S - 2), blind).breaker.state is HALF_OPEN
    assert advanced(state(HALF_OPEN, blind_s=BLIND_S - 1), blind).breaker.state is CLOSED


def test_capacity_comes_back_in_steps() -> None:
    breaker = advanced(state(HALF_OPEN), probes(10, 0)).breaker
    seen = []
    for _ in range(35):
        seen.append(capacity_ratio(breaker, POLICY))
        breaker = advanced(breaker, QUIET).breaker
    assert list(dict.fromkeys(seen)) == [0.1, 0.25, 0.5, 1.0]
    assert [seen.count(ratio) for ratio in (0.1, 0.25, 0.5)] == [10, 10, 10]


def test_a_long_warm_up_stretches_the_ramp() -> None:
    breaker = replace(state(CLOSED, 89.0), ramps=True)
    assert capacity_ratio(breaker, BreakerPolicy(warmup_s=180)) == 0.25


class AnyEvents(RuleBasedStateMachine):
    """Events in any order: never stuck, dwells only grow within ten minutes, the ramp only rises."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.before = self.breaker

    def _advance(self, evidence: Evidence, dt_s: float) -> None:
        self.before = self.breaker
        jitter = 1.0 + 0.2 * ((self.breaker.openings * 7) % 10) / 10
        self.breaker = advance(self.breaker, evidence, POLICY, dt_s, jitter).breaker

    @rule(event=st.sampled_from(sorted(EVENTS)), dt_s=st.floats(0.0, 60.0))
    def any_event(self, event: str, dt_s: float) -> None:
        self._advance(EVENTS[event], dt_s)

    @rule()
    def health_closes_it_in_time(self) -> None:
        """From wherever it is, good answers lead to full capacity within dwell, a tick and the ramp."""
        breaker, elapsed_s = self.breaker, 0.0
        while breaker.state is not CLOSED or capacity_ratio(breaker, POLICY) < 1:
            evidence = probes(10, 0) if breaker.state is HALF_OPEN else QUIET
            breaker = advance(breaker, evidence, POLICY, 1.0, 1.0).breaker
            elapsed_s += 1.0
            assert elapsed_s <= DWELL_MAX_S + 40

    @invariant()
    def dwells_are_bounded_and_extended_only(self) -> None:
        assert 0 <= self.breaker.dwell_s <= DWELL_MAX_S
        opened = self.before.state is not OPEN and self.breaker.state is OPEN
        if opened and self.before.openings > 0 and self.before.dwell_s < DWELL_MAX_S:
            assert self.breaker.dwell_s > self.before.dwell_s

    @invariant()
    def it_never_opens_out_of_nothing(self) -> None:
        assert (self.before.state, self.breaker.state) not in {(OPEN, CLOSED), (CLOSED, HALF_OPEN)}


AnyEvents.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_events = AnyEvents.TestCase
