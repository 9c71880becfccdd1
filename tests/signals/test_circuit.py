"""A backend that is down is asked less and less often."""

from __future__ import annotations

from controlplane.signals.circuit import LONGEST_PAUSE_S, Circuit


def failed(times: int, now_s: float = 0.0) -> Circuit:
    circuit = Circuit()
    for _ in range(times):
        circuit = circuit.failed(now_s, "refused")
    return circuit


def test_two_failures_pause_nothing() -> None:
    assert failed(2).allows(0.0)


def test_the_third_failure_pauses_a_second_and_each_more_doubles_it() -> None:
    for times, pause_s in ((3, 1.0), (4, 2.0), (5, 4.0), (50, LONGEST_PAUSE_S)):
        assert not failed(times).allows(pause_s - 0.01)
        assert failed(times).allows(pause_s)


def test_an_answer_closes_it() -> None:
    assert failed(9).succeeded() == Circuit()


def test_a_clock_that_steps_back_does_not_hold_it_for_ever() -> None:
    assert failed(9, now_s=1_000_000.0).allows(10.0)
