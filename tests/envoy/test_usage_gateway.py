"""What a request cost: reserved before it runs, settled when it ends, however it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import fake_quota
import pytest
from fake_quota import FakeQuota
from field import Field
from offered import Client
from policies import decision, tenant

from controlplane.model.policy import PolicyService, Quota

pytestmark = pytest.mark.envoy

QUOTA = (Quota(model_version="m:r1", tokens=500_000, period="daily"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    field: Field
    quota: FakeQuota
    client: Client
    url: str


@pytest.fixture
async def metered(field: Field) -> AsyncIterator[Metered]:
    """acme has a quota, zeta has none; everybody has 1000 requests/s."""
    async with fake_quota.serving() as quota:
        policy = field.policy(
            [tenant("acme", quotas=QUOTA), "zeta"],
            policy_service=PolicyService(port=quota.port, timeout_s=2.0),
        )
        client = await field.start(policy, decision(policy, 1000.0))
        yield Metered(field=field, quota=quota, client=client, url=f"http://127.0.0.1:{field.listener.port}")


def _json(usage: Any) -> list[str]:
    return [json.dumps({"object": "chat.completion", "choices": [{"text": "hi"}], "usage": usage})]


async def _say(
    metered: Metered, say: Sequence[str], *, content_type: str = "application/json", **body: Any
) -> Any:
    headers = {"content-type": content_type, **body.pop("answer_headers", {})}
    return await metered.client.send("acme", say=list(say), answer_headers=headers, **body)


async def test_a_request_is_reserved_and_settled_with_its_usage(metered: Metered) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    answer = await _say(metered, _json(usage), max_tokens=50, headers={"x-request-id": "one"})
    assert answer.status == 200
    assert await metered.quota.settled() == [12]
    reserve, settle = metered.quota.asked
    rest = (("tenant", "acme"), ("pool", "m:r1"), ("route", "chat"), ("id", "one"))
    assert reserve.entries == (("op", "reserve"), *rest)
    assert settle.entries == (("op", "settle"), *rest)
    assert reserve.domain == settle.domain == "tidegate"
    assert reserve.tokens is not None
    assert 50 < reserve.tokens < 150


async def test_without_a_quota_nobody_is_asked(metered: Metered) -> None:
    for _ in range(10):
        assert (await metered.client.send("zeta")).status == 200
    await asyncio.sleep(0.3)
    assert metered.quota.asked == []


async def test_what_the_quota_refuses_is_the_services_own_answer(metered: Metered) -> None:
    metered.quota.refuse = True
    answer = await metered.client.send("acme")
    assert answer.status == 429
    assert answer.body.encode() == fake_quota.BODY
    for name, value in fake_quota.HEADERS.items():
        assert answer.headers[name] == value
    assert not [name for name in answer.headers if name.startswith(("x-tidegate", "x-envoy-rate"))]
    await asyncio.sleep(0.3)
    assert [each.op for each in metered.quota.asked] == ["reserve"]
    assert metered.field.model.requests == []
