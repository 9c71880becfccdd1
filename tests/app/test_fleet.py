"""The number of gateways that share a limit rises at once and falls late."""

from __future__ import annotations

from controlplane.app.fleet import HOLD_S, held_count, members, observe, start
from controlplane.model.policy import Gateways
from controlplane.xds.translate import gateways_version


def test_a_new_gateway_counts_at_once() -> None:
    fleet = observe(start(Gateways(), 0.0), Gateways(), 1, 1.0)
    assert observe(fleet, Gateways(), 4, 2.0).count == 4


def test_a_lost_gateway_counts_until_the_hold_is_over() -> None:
    fleet = observe(start(Gateways(), 0.0), Gateways(), 4, 1.0)
    fleet = observe(fleet, Gateways(), 3, 10.0)
    assert fleet.count == 4
    assert observe(fleet, Gateways(), 3, 10.0 + HOLD_S - 1).count == 4
    assert observe(fleet, Gateways(), 3, 10.0 + HOLD_S).count == 3


def test_a_gateway_that_comes_back_within_the_hold_changes_nothing() -> None:
    fleet = observe(start(Gateways(), 0.0), Gateways(), 4, 1.0)
    fleet = observe(fleet, Gateways(), 3, 10.0)
    fleet = observe(fleet, Gateways(), 4, 12.0)
    assert (fleet.count, fleet.pending_until_s) == (4, None)


def test_a_restarted_control_plane_believes_what_the_first_gateway_enforces() -> None:
    fleet = observe(start(Gateways(), 0.0), Gateways(), 1, 1.0, held_count=4)
    assert fleet.count == 4
    assert observe(fleet, Gateways(), 1, 20.0).count == 4
    assert observe(fleet, Gateways(), 1, 31.0 + HOLD_S).count == 1


def test_the_operators_minimum_is_never_undercut() -> None:
    fleet = start(Gateways(min_count=3, max_count=6), 0.0)
    for now_s in range(0, 200, 5):
        fleet = observe(fleet, Gateways(min_count=3, max_count=6), 1, float(now_s))
    assert fleet.count == 3


def test_members_are_a_function_of_the_count_alone() -> None:
    assert members(4) == members(4)
    assert len({member.port for member in members(40)}) == 40


def test_a_gateways_share_is_recognised_by_the_version_it_holds() -> None:
    policy = Gateways(max_count=8)
    assert [held_count(gateways_version(members(count)), policy) for count in (1, 4, 8)] == [1, 4, 8]
    assert held_count("no version of ours", policy) == 0


def test_a_clock_that_stepped_back_does_not_hold_the_count_for_longer() -> None:
    policy = Gateways(max_count=4)
    fleet = observe(start(policy, 10_000.0), policy, 4, 10_000.0)
    fleet = observe(fleet, policy, 1, 10_001.0)
    fleet = observe(fleet, policy, 1, 5_000.0)
    assert fleet.count == 4
    assert observe(fleet, policy, 1, 5_000.0 + HOLD_S).count == 1
