from dataclasses import replace

import numpy as np
import pytest
from fake_view import decision, policy, pool_decision

from controlplane.model.decision import BreakerState, PoolState
from controlplane.serve.changes import Change, Trail, changes

POLICY = policy()


def subjects(found: object) -> list[str]:
    return [line.subject for line in found.lines]  # type: ignore[attr-defined]


def test_the_first_decision_is_a_change_of_everything() -> None:
    found = changes(None, (POLICY, decision(POLICY)))
    assert subjects(found) == ["chat:v1", "chat:v2", *(key.id for key in POLICY.keys)]
    assert all(line.old is None for line in found.lines)


def test_nothing_changed_is_no_line() -> None:
    assert changes((POLICY, decision(POLICY)), (POLICY, decision(POLICY))).lines == ()


@pytest.mark.parametrize(
    ("new_rate", "is_told"), [(40.0, False), (40.3, False), (40.5, True), (10.0, True)], ids=str
)
def test_a_change_is_told_from_one_percent_on(new_rate: float, is_told: bool) -> None:
    found = changes((POLICY, decision(POLICY)), (POLICY, decision(POLICY, rate_per_s=new_rate)))
    assert bool(found.lines) is is_told


def test_a_pool_change_carries_what_it_was_judged_from() -> None:
    found = changes((POLICY, decision(POLICY)), (POLICY, decision(POLICY, rate_per_s=10.0)))
    pool = found.lines[0]
    assert (pool.kind, pool.old, pool.new) == ("pool", 40.0, 10.0)
    assert pool.reason == "live: gpu_util at 60 %"
    assert pool.inputs["gpu_util_percent"] == 60.0
    assert pool.inputs["base_rate_per_s"] == 100.0


def test_a_change_of_state_alone_is_told() -> None:
    after = decision(POLICY)
    held = pool_decision("chat:v1", 40.0, state=PoolState.HELD)
    object.__setattr__(after, "pools", {**after.pools, "chat:v1": held})
    assert subjects(changes((POLICY, decision(POLICY)), (POLICY, after))) == ["chat:v1"]


def test_a_breaker_that_opens_is_told_first() -> None:
    before, after = decision(POLICY), decision(POLICY)
    opened = replace(
        before.breakers["chat:v1"], state=BreakerState.OPEN, reason="open: 25 calls in a row failed."
    )
    after = replace(after, breakers={**after.breakers, "chat:v1": opened})
    (line,) = changes((POLICY, before), (POLICY, after)).lines
    assert (line.kind, line.subject, line.old, line.new) == ("breaker", "chat:v1", "closed", "open")
    assert "in a row" in line.reason
    assert line.inputs["threshold_s"] == 0.5


def test_a_key_that_is_new_after_a_reload_is_told_and_the_others_are_not() -> None:
    grown = policy(tenants=("acme", "globex", "initech", "umbrella"))
    before, after = decision(POLICY), decision(grown)
    rates = {key.id: rate for key, rate in zip(POLICY.keys, before.rate_per_s, strict=True)}
    same = np.array([rates.get(key.id, 1.0) for key in grown.keys])
    object.__setattr__(after, "rate_per_s", same)
    found = changes((POLICY, before), (grown, after))
    assert subjects(found) == ["chat|umbrella|chat:v1", "chat|umbrella|chat:v2"]


def test_only_the_largest_key_changes_have_a_line_and_the_others_are_counted() -> None:
    found = changes((POLICY, decision(POLICY)), (POLICY, decision(POLICY, rate_per_s=10.0)), keys_at_most=2)
    keys = [line for line in found.lines if line.kind == "key"]
    assert [line.subject for line in keys] == ["chat|acme|chat:v1", "chat|acme|chat:v2"]
    assert found.omitted == 3


def test_unknown_numbers_are_none_in_the_inputs_of_a_key() -> None:
    found = changes(None, (POLICY, decision(POLICY)))
    assert found.lines[-1].inputs["demand_per_s"] is None


def test_the_trail_gives_the_newest_first_and_forgets_the_oldest() -> None:
    trail = Trail(capacity=3)
    lines = [Change(at_s=t, kind="key", subject=str(t), old=1.0, new=2.0, reason="") for t in range(5)]
    trail.add(lines[:2])
    trail.add(lines[2:])
    assert [line.subject for line in trail.newest(2)] == ["4", "3"]
    assert [line.subject for line in trail.newest(99)] == ["4", "3", "2"]
