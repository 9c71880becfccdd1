"""What must hold of every run: nothing is lost, queues obey Little, equal seeds give equal runs."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from platforms import four_pods

from controlplane.model.policy import Mode
from controlplane.sim.des.gate import OpenGate, PolicyGate
from controlplane.sim.des.job import Outcome
from controlplane.sim.des.scenario import NAMES, scenario, steady
from controlplane.sim.des.study import Settings, Study, prepare
from controlplane.sim.des.world import PATIENCE_S, Record, World

SECONDS = 100.0


def study(name: str, *, seed: int = 1, **settings: float) -> Study:
    made = Settings(seconds=SECONDS, seed=seed, **settings)  # type: ignore[arg-type]
    return prepare(four_pods(), scenario(name, SECONDS), made)


def run_open(load: float, seed: int = 1, seconds: float = SECONDS) -> Record:
    made = prepare(four_pods(), steady(load), Settings(seconds=seconds, seed=seed))
    return World(made.platform, OpenGate()).run(made.arrivals)


@pytest.mark.parametrize("name", NAMES)
def test_every_run_adds_up(name: str) -> None:
    made = study(name)
    rivals = made.rivals().items() if name == "s4" else ()
    for run in [made.play_policy("policy", made.policy), *(made.play(n, gate) for n, gate in rivals)]:
        assert [criterion for criterion in run.criteria if not criterion.holds] == []
        for row in run.rows:
            ended = row.limited + row.forbidden + row.completed + row.gave_up + row.failed
            assert row.offered == ended + row.in_flight


@given(seed=st.integers(0, 2**31), load=st.floats(0.1, 1.5))
@settings(max_examples=5, deadline=None)
def test_littles_law_holds_at_any_load(seed: int, load: float) -> None:
    made = prepare(four_pods(), steady(load), Settings(seconds=SECONDS, seed=seed))
    run = made.play("no limit", OpenGate())
    assert [criterion for criterion in run.criteria if not criterion.holds] == []


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    first, again = (study("s4").play_policy("run", four_pods()) for _ in range(2))
    assert first == again
    assert study("s4", seed=2).play_policy("run", four_pods()).rows != first.rows


def test_another_tenant_leaves_the_requests_of_the_others_as_they_are() -> None:
    few = study("s1")
    more = prepare(
        four_pods(tenants=("acme", "globex", "initech", "umbra", "zenith")),
        scenario("s1", SECONDS),
        Settings(seconds=SECONDS),
    )

    def sizes(made: Study, tenant: str) -> list[tuple[int, int]]:
        (number,) = (n for n, key in enumerate(made.platform.keys) if key.tenant == tenant)
        return [(a.prompt_tokens, a.answer_tokens) for a in made.arrivals if a.key == number]

    # With five the part of each is smaller; who the others are makes no difference.
    renamed = prepare(
        four_pods(tenants=("acme", "globex", "initech", "other")),
        scenario("s1", SECONDS),
        Settings(seconds=SECONDS),
    )
    assert sizes(few, "acme") == sizes(renamed, "acme")
    assert len(sizes(more, "acme")) < len(sizes(few, "acme"))


def test_more_load_never_shortens_the_queue() -> None:
    """Mean number waiting, at growing parts of the capacity, over two seeds."""

    def waiting(load: float) -> float:
        moments = [m for seed in (1, 2) for m in run_open(load, seed).moments["chat:v1"]]
        return sum(moment.waiting for moment in moments) / len(moments)

    found = [waiting(load) for load in (0.3, 0.6, 0.8, 1.0, 1.2)]
    assert found == sorted(found)


def test_gpu_utilisation_reads_full_long_before_the_pods_are() -> None:
    """The counter is near 100 % from 15 % of capacity on; the KV cache tells what the load is."""
    idle, half, nearly = (run_open(load).moments["chat:v1"][30:] for load in (0.15, 0.5, 0.9))

    def mean(moments: object, name: str) -> float:
        return sum(getattr(moment, name) for moment in moments) / len(moments)  # type: ignore[attr-defined,arg-type]

    assert mean(idle, "gpu_util_ratio") > 0.93
    assert mean(half, "gpu_util_ratio") > 0.99
    assert mean(idle, "kv_usage_ratio") < 0.06
    assert 0.08 < mean(half, "kv_usage_ratio") < 0.3
    assert 0.4 < mean(nearly, "kv_usage_ratio") < 0.8


def test_overload_without_limits_collapses_and_clients_leave() -> None:
    record = run_open(1.3, seconds=180)
    late = [job for job in record.jobs if 90 < job.arrived_s < 150]
    assert sum(job.within(2.0, 0.1) for job in late) / len(late) < 0.05
    assert record.preemptions > 100
    left = [job for job in late if job.outcome is Outcome.GAVE_UP]
    assert left
    assert {round(job.end_s - job.arrived_s, 9) for job in left} == {PATIENCE_S}


def test_a_lost_pod_fails_what_it_held_and_its_replacement_serves_again() -> None:
    record_of = study("s4")
    world = World(record_of.platform, PolicyGate(record_of.policy, record_of.platform.keys))
    record = world.run(record_of.arrivals)
    event_s = record_of.platform.scenario.event_s
    assert event_s is not None
    failed = [job for job in record.jobs if job.outcome is Outcome.FAILED]
    assert failed
    assert all(event_s <= job.end_s <= event_s + 3.0 for job in failed)
    assert Counter(moment.pods_up for moment in record.moments["chat:v1"])[3] > 50


def test_the_formula_on_the_raw_counter_sheds_far_too_much_and_no_limit_collapses() -> None:
    """Believable physics: the plain rivals fail as they do in practice."""
    made = prepare(four_pods(), scenario("s4", 240), Settings(seconds=240, seed=3))
    after = {name: made.play(name, gate).served[0].after_event_ratio for name, gate in made.rivals().items()}
    assert after["no limit"] is not None
    assert after["M1 formula, raw counter"] is not None
    assert after["no limit"] < 0.1
    assert after["M1 formula, raw counter"] < 0.3


def test_observe_mode_refuses_nobody_and_counts_what_it_would_have() -> None:
    made = study("s1")
    run = made.play_policy("observe", replace(four_pods(), mode=Mode.OBSERVE))
    assert sum(row.limited for row in run.rows) == 0
    assert sum(row.would_limit for row in run.rows) > 100


def test_a_tenant_that_another_configuration_does_not_know_is_forbidden() -> None:
    run = study("s1").play_policy("smaller", four_pods(tenants=("acme",)))
    assert {row.tenant for row in run.rows if row.forbidden} == {"globex", "initech", "umbra"}


def test_ten_minutes_of_four_pods_are_simulated_in_seconds() -> None:
    made = prepare(four_pods(), steady(1.1), Settings(seconds=600))
    assert len(made.arrivals) > 16_000
    start = time.process_time()
    made.play_policy("policy", made.policy)
    assert time.process_time() - start < 20
