"""[lua-rollout]: scripts are replaced every tick; running streams and waiting clients notice nothing."""

from __future__ import annotations

import asyncio

import pytest
from field import Field
from policies import decision

pytestmark = pytest.mark.envoy


async def test_a_new_script_never_cuts_a_running_stream(field: Field) -> None:
    policy = field.policy()
    client = await field.start(policy, decision(policy, 100.0))
    asked = [
        asyncio.create_task(client.send("acme", stream=True, chunks=20, interval_s=0.1)) for _ in range(5)
    ]
    await asyncio.sleep(0.3)
    for tick in range(10):
        await field.publish(policy, decision(policy, 50.0 + tick))
        assert (await client.send("acme")).status == 200
        await asyncio.sleep(0.1)
    for answer in await asyncio.gather(*asked):
        assert answer.status == 200
        assert answer.body.count("data: ") == 21
        assert answer.body.endswith("data: [DONE]\n\n")


async def test_a_tenant_that_came_or_went_counts_at_once(field: Field) -> None:
    before, after = field.policy(["acme", "beta"]), field.policy(["acme", "gamma"])
    client = await field.start(before, decision(before, 100.0))
    assert [(await client.send(name)).status for name in ("acme", "beta", "gamma")] == [200, 200, 401]
    await field.publish(after, decision(after, 100.0))
    assert [(await client.send(name)).status for name in ("acme", "beta", "gamma")] == [200, 401, 200]
