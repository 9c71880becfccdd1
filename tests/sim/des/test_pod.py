"""The fast pod is the simulated server's scheduler, to the last bit, and it loses no memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.sim.des.job import Job, Outcome
from controlplane.sim.des.physics import PodPhysics, capacity_per_s
from controlplane.sim.des.pod import Pod
from controlplane.sim.engine import Engine
from controlplane.sim.physics import Physics

SMALL = PodPhysics(
    step_per_kv_token_s=0.0, max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=20, block_tokens=4
)


@dataclass(frozen=True)
class Ask:
    gap_s: float
    prompt_tokens: int
    answer_tokens: int
    gives_up: bool = False  # with the next arrival, if it has no token yet


ASKS = st.lists(
    st.builds(
        Ask,
        gap_s=st.sampled_from([0.0, 0.001, 0.03, 0.2, 1.0]),
        prompt_tokens=st.integers(1, 60),
        answer_tokens=st.integers(1, 20),
        gives_up=st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


def by_engine(asks: list[Ask], physics: PodPhysics) -> tuple[dict[int, list[float]], int]:
    """Times of every token of every request, by the server's engine; and how many were preempted."""
    engine = Engine(
        Physics(
            max_num_seqs=physics.max_num_seqs,
            prefill_tokens_per_s=physics.prefill_tokens_per_s,
            step_base_s=physics.step_base_s,
            step_per_seq_s=physics.step_per_seq_s,
            max_num_batched_tokens=physics.max_num_batched_tokens,
            kv_blocks=physics.kv_blocks,
            block_tokens=physics.block_tokens,
            max_model_len=10**6,
            answer_tokens=10**5,
        ),
        now_s=0.0,
    )
    times: dict[int, list[float]] = {}
    now_s, last = 0.0, None

    def advance(until_s: float) -> None:
        while (next_s := engine.next_s()) is not None and next_s <= until_s:
            for output in engine.advance(next_s):
                times[output.request].append(next_s)

    for ask in asks:
        now_s += ask.gap_s
        advance(now_s)
        if last is not None and not times[last]:
            engine.abort(last)
        number = engine.submit(now_s, prompt_tokens=ask.prompt_tokens, max_tokens=ask.answer_tokens)
        times[number] = []
        last = number if ask.gives_up else None
    advance(1e9)
    return times, engine.stats.preemptions


def by_pod(asks: list[Ask], physics: PodPhysics) -> tuple[list[Job], Pod]:
    pod, jobs, now_s = Pod(physics, 0), [], 0.0
    last: Job | None = None
    for ask in asks:
        now_s += ask.gap_s
        while pod.next_s <= now_s:
            pod.finish_step()
        if last is not None and last.first_s < 0 and last.outcome is Outcome.OPEN:
            pod.abort(last)
        jobs.append(Job(0, now_s, ask.prompt_tokens, ask.answer_tokens))
        pod.submit(jobs[-1], now_s)
        last = jobs[-1] if ask.gives_up else None
    while pod.next_s < 1e9:
        pod.finish_step()
    return jobs, pod


@given(ASKS)
@settings(max_examples=150, deadline=None)
def test_first_and_last_tokens_come_when_the_servers_engine_gives_them(asks: list[Ask]) -> None:
    times, preemptions = by_engine(asks, SMALL)
    jobs, pod = by_pod(asks, SMALL)
    for job, (_, tokens) in zip(jobs, sorted(times.items()), strict=True):
        assert (job.first_s, job.end_s) == ((tokens[0], tokens[-1]) if tokens else (-1.0, -1.0))
    assert pod.preemptions == preemptions


def test_the_comparison_with_the_engine_includes_preemption() -> None:
    asks = [Ask(0.0, 16, 20) for _ in range(4)]
    _, preemptions = by_engine(asks, SMALL)
    _, pod = by_pod(asks, SMALL)
    assert pod.preemptions == preemptions > 0


@given(ASKS)
@settings(max_examples=50, deadline=None)
def test_an_empty_pod_has_all_its_memory(asks: list[Ask]) -> None:
    jobs, pod = by_pod(asks, replace(SMALL, step_per_kv_token_s=1e-6))
    assert (pod.load, pod.kv_usage_ratio) == (0, 0.0)
    assert all(job.generated in (0, job.answer_tokens) for job in jobs)


def test_a_lost_pod_gives_back_what_it_held() -> None:
    pod = Pod(SMALL, 0)
    jobs = [Job(0, 0.0, 16, 4) for _ in range(6)]
    for job in jobs:
        pod.submit(job, 0.0)
    assert set(pod.lose(0.01)) == set(jobs)
    assert (pod.up, pod.load) == (False, 0)
    assert pod.busy_s(5.0) == pytest.approx(0.01)


@pytest.mark.parametrize(("prompt", "answer"), [(960, 230), (200, 400), (3000, 60)])
def test_the_capacity_formula_is_what_a_pod_does_when_kept_busy_without_preemption(
    prompt: int, answer: int
) -> None:
    physics = PodPhysics()
    pod = Pod(physics, 0)
    batch = int(min(physics.max_num_seqs, 0.8 * physics.kv_blocks * 16 / (prompt + answer)))
    now_s, done = 0.0, 0
    for number in range(batch):  # staggered: a batch in step would prefill all at once
        pod.submit(Job(0, now_s, prompt, max(1, answer * (number + 1) // batch)), now_s)
    while now_s < 120.0:
        now_s = pod.next_s
        for _ in pod.finish_step():
            done += now_s > 20.0
            pod.submit(Job(0, now_s, prompt, answer), now_s)
            if pod.next_s == float("inf"):
                raise AssertionError("a pod with work has a step under way")
    assert done / 100.0 == pytest.approx(capacity_per_s(physics, prompt, answer), rel=0.05)
