"""The simulated engine behaves like a queueing system with slots, blocks and steps, whatever arrives."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.sim.engine import Engine, TooLong
from controlplane.sim.physics import Faults, Physics

SMALL = Physics(max_num_seqs=4, kv_blocks=64, block_tokens=4, max_model_len=128, max_num_batched_tokens=64)


@dataclass
class Run:
    """An engine driven through virtual time, and what came out of it."""

    engine: Engine
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.tokens: dict[int, int] = {}
        self.finished: dict[int, str] = {}
        self.token_times_s: dict[int, list[float]] = {}

    def until(self, end_s: float) -> Run:
        while (next_s := self.engine.next_s()) is not None and next_s <= end_s:
            self._advance(next_s)
        self._advance(end_s)
        return self

    def submit(self, prompt_tokens: int = 8, max_tokens: int | None = 4) -> int:
        request = self.engine.submit(self.now_s, prompt_tokens=prompt_tokens, max_tokens=max_tokens)
        self.tokens[request] = 0
        return request

    def _advance(self, now_s: float) -> None:
        self.now_s = max(self.now_s, now_s)
        for output in self.engine.advance(self.now_s):
            self.tokens[output.request] += 1
            self.token_times_s.setdefault(output.request, []).append(self.now_s)
            if output.finish is not None:
                self.finished[output.request] = output.finish


def _run(physics: Physics = SMALL) -> Run:
    return Run(Engine(physics, now_s=0.0))


Action = tuple[str, int, int, float]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "submit", "abort"]),
        st.integers(1, 60),
        st.integers(1, 60),
        st.floats(0, 0.05),
    ),
    max_size=60,
)


@given(actions=ACTIONS)
def test_slots_and_blocks_are_never_exceeded_and_every_request_ends(actions: list[Action]) -> None:
    run = _run()
    aborted: set[int] = set()
    for action, number, size, gap_s in actions:
        run.until(run.now_s + gap_s)
        if action == "submit":
            run.submit(prompt_tokens=number, max_tokens=size)
        elif run.tokens:
            victim = sorted(run.tokens)[number % len(run.tokens)]
            if run.engine.abort(victim):
                aborted.add(victim)
        assert run.engine.running <= SMALL.max_num_seqs
        assert 0.0 <= run.engine.kv_usage_ratio <= 1.0
    run.until(run.now_s + 1000.0)
    assert set(run.finished) | aborted == set(run.tokens)
    assert not set(run.finished) & aborted
    assert (run.engine.running, run.engine.waiting, run.engine.kv_usage_ratio) == (0, 0, 0.0)
    assert run.engine.next_s() is None
    assert sum(run.engine.stats.finished.values()) == len(run.tokens)


@given(sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=20))
def test_every_request_gets_exactly_the_tokens_it_asked_for(sizes: list[tuple[int, int]]) -> None:
    run = _run()
    asked = {run.submit(prompt, answer): answer for prompt, answer in sizes}
    run.until(1000.0)
    assert run.tokens == asked
    assert set(run.finished.values()) == {"length"}
    assert run.engine.stats.generation_tokens == sum(asked.values())
    assert run.engine.stats.prompt_tokens == sum(prompt for prompt, _ in sizes)


def test_an_answer_shorter_than_max_tokens_ends_by_itself() -> None:
    run = _run()
    request = run.submit(max_tokens=100)
    run.until(100.0)
    assert (run.tokens[request], run.finished[request]) == (SMALL.answer_tokens, "stop")


def test_littles_law_holds_in_a_steady_run() -> None:
    """N = lambda * W, N sampled from the gauges, W from the histogram: two independent ways to count."""
    dice = random.Random(7)
    run = _run(Physics(max_num_seqs=16, step_base_s=0.01, step_per_seq_s=0.0005))
    rate_per_s, warm_s, end_s = 20.0, 30.0, 630.0
    next_arrival_s, next_sample_s = dice.expovariate(rate_per_s), warm_s
    samples: list[int] = []
    arrivals = 0
    while run.now_s < end_s:
        run.until(min(next_arrival_s, next_sample_s))
        if run.now_s >= next_arrival_s:
            arrivals += run.now_s >= warm_s
            run.submit(prompt_tokens=dice.randint(10, 400), max_tokens=dice.randint(1, 40))
            next_arrival_s += dice.expovariate(rate_per_s)
        if run.now_s >= next_sample_s:
            samples.append(run.engine.running + run.engine.waiting)
            next_sample_s += 0.037
    mean_s = run.engine.stats.e2e_s.mean
    assert mean_s is not None
    in_system = sum(samples) / len(samples)
    assert in_system > 1.0
    assert in_system == pytest.approx(arrivals / (end_s - warm_s) * mean_s, rel=0.05)


def test_throughput_saturates_and_the_queue_grows_beyond_capacity() -> None:
    """Twice or four times the capacity: the same work is done, and the rest waits."""

    def finished_and_waiting(rate_per_s: float) -> tuple[int, int]:
        run = _run(Physics(max_num_seqs=8))
        for number in range(int(rate_per_s * 60)):
            run.until(number / rate_per_s)
            run.submit(prompt_tokens=100, max_tokens=20)
        return len(run.finished), run.engine.waiting

    calm, few = finished_and_waiting(10.0)
    twice, some = finished_and_waiting(40.0)
    four_times, many = finished_and_waiting(80.0)
    assert calm == pytest.approx(600, abs=10)
    assert few <= 1
    assert four_times == pytest.approx(twice, rel=0.02)
    assert many - some == pytest.approx(2400, rel=0.02)


def test_requests_start_in_the_order_they_came() -> None:
    run = _run()
    requests = [run.submit(prompt_tokens=8, max_tokens=4) for _ in range(12)]
    run.until(100.0)
    first_tokens = [run.token_times_s[request][0] for request in requests]
    assert first_tokens == sorted(first_tokens)


def test_a_long_prompt_is_cut_into_the_token_budget_of_several_steps() -> None:
    run = _run(
        Physics(max_num_batched_tokens=100, prefill_tokens_per_s=1e9, step_base_s=1.0, step_per_seq_s=0)
    )
    request = run.submit(prompt_tokens=450, max_tokens=1)
    run.until(60.0)
    assert run.token_times_s[request] == pytest.approx([5.0])


def test_an_abort_frees_the_slot_and_the_cache_at_once() -> None:
    run = _run()
    requests = [run.submit(prompt_tokens=20, max_tokens=50) for _ in range(5)]
    run.until(0.1)
    assert (run.engine.running, run.engine.waiting) == (4, 1)
    used = run.engine.kv_usage_ratio
    assert run.engine.abort(requests[0])
    assert run.engine.running == 3
    assert run.engine.kv_usage_ratio < used
    next_s = run.engine.next_s()
    assert next_s is not None
    run.until(next_s)
    assert (run.engine.running, run.engine.waiting) == (4, 0)
    assert run.engine.stats.finished["abort"] == 1


def test_aborting_twice_or_after_the_end_changes_nothing() -> None:
    run = _run()
    request = run.submit()
    run.until(10.0)
    assert not run.engine.abort(request)
    assert run.engine.stats.finished["abort"] == 0


def test_a_full_cache_preempts_the_youngest_and_all_still_finish() -> None:
    run = _run(Physics(max_num_seqs=8, kv_blocks=16, block_tokens=4, max_model_len=64, answer_tokens=64))
    requests = [run.submit(prompt_tokens=10, max_tokens=30) for _ in range(4)]
    run.until(100.0)
    assert run.engine.stats.preemptions > 0
    assert run.tokens == dict.fromkeys(requests, 30)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [(128, 1), (100, 29), (200, None)],
    ids=["no room for an answer", "answer too long", "prompt beyond the context"],
)
def test_what_can_never_fit_is_refused(prompt: int, answer: int | None) -> None:
    with pytest.raises(TooLong, match="maximum context length is 128"):
        _run().submit(prompt_tokens=prompt, max_tokens=answer)


def test_a_request_larger_than_the_whole_cache_is_refused() -> None:
    run = _run(Physics(kv_blocks=4, block_tokens=4, max_model_len=128))
    with pytest.raises(TooLong, match="exceed the KV cache"):
        run.submit(prompt_tokens=16, max_tokens=10)


def test_a_cold_engine_starts_when_it_is_warm() -> None:
    run = _run(Physics(warmup_s=5.0))
    run.submit()
    assert not run.engine.ready(4.9)
    assert run.engine.next_s() == 5.0
    run.until(4.9)
    assert not any(run.tokens.values())
    run.until(10.0)
    assert run.finished


def test_a_slow_warm_up_serves_at_its_slower_speed() -> None:
    cold, warm = (
        _run(Physics(warmup_s=warmup_s, warmup_slowdown=10.0, step_base_s=0.1)) for warmup_s in (60.0, 0.0)
    )
    for run in (cold, warm):
        run.submit(max_tokens=3)
        run.until(30.0)
    assert cold.token_times_s[1][-1] == pytest.approx(10 * warm.token_times_s[1][-1])


def test_a_hang_stops_everything_and_its_end_resumes() -> None:
    run = _run()
    run.submit(max_tokens=50)
    run.until(0.1)
    run.engine.faults = Faults(hang=True)
    run.until(1.0)
    held = run.tokens[1]
    assert run.until(60.0).tokens[1] == held
    run.engine.faults = Faults()
    run.until(run.now_s)
    assert run.until(120.0).finished == {1: "length"}


def test_the_latency_factor_stretches_every_step() -> None:
    slow, usual = _run(), _run()
    slow.engine.faults = Faults(latency_factor=5.0)
    for run in (slow, usual):
        run.submit()
        run.until(100.0)
    assert slow.token_times_s[1][-1] == pytest.approx(5 * usual.token_times_s[1][-1])


def test_a_leaking_cache_shows_and_holds_requests_back_until_it_is_mended() -> None:
    run = _run()
    run.engine.faults = Faults(kv_reserved_ratio=1.0)
    run.submit()
    run.until(10.0)
    assert (run.engine.kv_usage_ratio, run.engine.waiting) == (1.0, 1)
    run.engine.faults = Faults()
    run.until(run.now_s)
    assert run.until(20.0).finished


def test_the_busy_ratio_is_near_full_long_before_the_engine_is() -> None:
    """Why GPU utilisation is a poor measure of load: one sequence out of 32 already keeps the GPU busy."""
    run = _run(Physics(answer_tokens=1000))
    assert run.engine.busy_ratio(0.0) == 0.0
    run.submit(max_tokens=1000)
    run.until(5.0)
    assert run.engine.running == 1
    assert run.engine.busy_ratio(5.0) == pytest.approx(1.0)
    run.until(30.0)
    assert run.engine.busy_ratio(30.0) == 0.0


@given(scale=st.floats(0.1, 100.0))
def test_a_time_scale_only_divides_durations(scale: float) -> None:
    usual, scaled = _run(), _run(SMALL.faster(scale))
    for run in (usual, scaled):
        for size in (1, 5, 9, 30, 2, 40):
            run.submit(prompt_tokens=size, max_tokens=size)
        run.until(10_000.0)
    assert scaled.tokens == usual.tokens
    for request, times_s in usual.token_times_s.items():
        assert [at_s * scale for at_s in scaled.token_times_s[request]] == pytest.approx(times_s)
