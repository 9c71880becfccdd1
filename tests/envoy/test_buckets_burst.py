"""A bucket as deep as a low floor needs it is no licence: the wanted burst bounds a key besides."""

from __future__ import annotations

import asyncio

import pytest
from field import Field
from offered import admitted, span_s
from policies import decision

pytestmark = pytest.mark.envoy


async def test_a_key_of_a_low_floor_has_the_burst_that_is_wanted(field: Field) -> None:
    policy = field.policy()
    client = await field.start(policy, decision(policy, 10.0, floor_per_s=0.02))  # class 60: 600 requests
    assert 10 <= await client.drain("acme", 60) <= 13


async def test_another_class_gives_nothing_away(field: Field) -> None:
    """As when tenants that come move everybody's floor: another bucket, but the burst binds."""
    policy = field.policy()
    client = await field.start(policy, decision(policy, 8.0))
    await client.drain("acme", 30)
    loading = asyncio.create_task(client.offer("acme", rate_per_s=40, duration_s=3.0))
    for floor_per_s in (0.3, 0.1, 0.02, 0.3, 0.02):
        await asyncio.sleep(0.5)
        await field.publish(policy, decision(policy, 8.0, floor_per_s=floor_per_s))
    answers = await loading
    assert admitted(answers) <= 8.0 * span_s(answers) + 2


async def test_what_was_saved_at_a_low_rate_is_no_burst_at_a_high_one(field: Field) -> None:
    policy = field.policy()
    client = await field.start(policy, decision(policy, 20.0, floor_per_s=0.02))
    await client.drain("acme", 60)
    await field.publish(policy, decision(policy, 0.05, floor_per_s=0.02))
    await asyncio.sleep(1.5)  # 1.5 s of units, 0.075 requests
    await field.publish(policy, decision(policy, 20.0, floor_per_s=0.02))
    assert await client.drain("acme", 80) <= 20 + 5  # a burst of 1 s, and what came in meanwhile


async def test_a_rate_too_low_for_the_burst_is_served_from_the_next_deeper_bucket(field: Field) -> None:
    policy = field.policy()
    client = await field.start(policy, decision(policy, 0.2, floor_per_s=0.02))
    assert 3 <= await client.drain("acme", 40) <= 4  # class 15 at 0.2/s


async def test_four_gateways_leave_room_for_a_request_each(field: Field) -> None:
    """2/s over four: an n-th of the burst of 1 s is less than one request, so the next one counts."""
    policy = field.policy()
    client = await field.start(policy, decision(policy, 2.0, floor_per_s=0.05, gateways=4), gateways=4)
    assert (await client.send("acme")).status == 200
