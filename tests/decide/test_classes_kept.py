"""A burst class, once given, is not taken back by what happens to others: two buckets would both fill."""

from dataclasses import replace

import pytest
from judging import OFF, Run, key, policy, pool

OTHERS = [key(f"t{number:02d}") for number in range(40)]


def one() -> Run:
    """Alone, `a` has a floor of 5/s and so the class of 1 s."""
    run = Run(policy([key("a")], [pool(guards=OFF)]))
    run.tick(gpu_util_percent=20.0)
    assert run.burst_of("a") == 1.0
    return run


def test_tenants_that_come_and_go_leave_everybody_in_one_bucket() -> None:
    run, seen = one(), []
    for _ in range(5):
        run.reload(keys=(key("a"), *OTHERS))
        run.tick(gpu_util_percent=20.0)
        seen.append(run.burst_of("a"))
        run.reload(keys=(key("a"),))
        run.tick(gpu_util_percent=20.0)
        seen.append(run.burst_of("a"))
    assert len(set(seen)) == 1  # once into the longer class that its floor among 41 needs, and never back
    assert seen[0] > 1.0


def test_a_pin_that_comes_and_goes_stays_in_its_bucket() -> None:
    run = one()
    run.reload(keys=(key("a", pin_per_s=0.1),))
    run.tick(gpu_util_percent=20.0)
    pinned = run.burst_of("a")
    run.reload(keys=(key("a"),))
    run.tick(gpu_util_percent=20.0)
    assert run.burst_of("a") == pinned > 1.0


@pytest.mark.parametrize(("wanted_s", "class_s"), [(4.0, 4.0), (0.1, 1.0)])
def test_an_operator_who_asks_for_another_burst_gets_it(wanted_s: float, class_s: float) -> None:
    run = one()
    run.reload(keys=(key("a"), *OTHERS))
    run.tick(gpu_util_percent=20.0)
    (before,) = run.policy.pools
    changed = replace(before, rate=replace(before.rate, burst_s=wanted_s))
    run.reload(keys=(key("a"),), pools=(changed,))
    run.tick(gpu_util_percent=20.0)
    assert run.burst_of("a") == class_s


def test_who_is_new_has_the_class_of_its_floor() -> None:
    run = one()
    run.reload(keys=(key("a"), key("b")))
    run.tick(gpu_util_percent=20.0)
    assert run.burst_of("b") == 1.0
