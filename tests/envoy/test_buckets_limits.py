"""What a limit admits on the real Envoy: the rate and one burst, for each key, down to one in minutes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import replace

import pytest
from field import Field
from offered import admitted, per_second, span_s
from policies import decision

from controlplane.model.policy import IdentityMode, Mode, Route, WindowLimit

pytestmark = pytest.mark.envoy

_NO_LIMIT = 1e6  # costs one unit
_CHAT_PATH = "/v1/chat/completions"


def _window(name: str, tokens: float, window_s: float, burst_tokens: float) -> WindowLimit:
    return WindowLimit(
        name=name, tokens=tokens, window_s=window_s, burst_tokens=burst_tokens, key_fields=("tenant_id",)
    )


async def test_the_rate_and_one_burst_are_admitted_and_every_429_says_when_to_return(field: Field) -> None:
    policy = field.policy()
    client = await field.start(policy, decision(policy, 10.0))
    answers = await client.offer("acme", rate_per_s=60, duration_s=4)
    assert 48 <= admitted(answers) <= 10 + 10 * span_s(answers) + 1, per_second(answers)
    for answer in answers:
        assert answer.status in (200, 429)
        assert answer.status == 200 or int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("rate_per_s", [2.0, 0.5, 0.05, 0.005])
async def test_one_request_is_admitted_at_once_however_low_the_rate(field: Field, rate_per_s: float) -> None:
    policy = field.policy()
    made = decision(policy, rate_per_s)
    client = await field.start(policy, made)
    assert (await client.send("acme")).status == 200
    burst = int(made.burst_s[0] * rate_per_s + 1e-9)
    assert 1 + admitted([await client.send("acme") for _ in range(20)]) == max(1, burst)


async def test_a_limit_of_zero_admits_nothing(field: Field) -> None:
    policy = field.policy(["acme", "zeta"])
    client = await field.start(policy, decision(policy, {"acme": 0.0, "zeta": 10.0}, floor_per_s=0.001))
    assert await client.drain("acme", 30) == 0
    assert (await client.send("zeta")).status == 200


async def test_a_class_that_envoy_does_not_know_is_closed(field: Field) -> None:
    """Whatever no bucket matches shares one request an hour, so a mistake of ours is no free pass."""
    policy = field.policy(["acme", "zeta"])
    made = decision(policy, 10.0)
    client = await field.start(policy, replace(made, burst_s=made.burst_s / 2))
    assert await client.drain("acme", 20) + await client.drain("zeta", 20) == 1


async def test_a_thousand_tenants_in_turn_have_their_limit_each(field: Field) -> None:
    """[thousand] Two rounds over all of them: a bucket that was forgotten meanwhile would be full again."""
    tenants = [f"t{number:04d}" for number in range(1000)]
    policy = field.policy(tenants)
    client = await field.start(policy, decision(policy, 0.02))  # class 60 s: 1.2 requests
    counts = dict.fromkeys(tenants, 0)
    for _ in range(2):
        for start in range(0, 1000, 50):
            batch = tenants[start : start + 50] * 2
            answers = await asyncio.gather(*(client.send(tenant) for tenant in batch))
            for tenant, answer in zip(batch, answers, strict=True):
                counts[tenant] += answer.status == 200
    assert set(counts.values()) == {1}


async def test_the_short_burst_refuses_before_the_long_one_is_charged(field: Field) -> None:
    """4/s with a burst of 4, and a window of 2/s with a burst of 30 that 40/s offered may not empty."""
    policy = field.policy(windows=[_window("slow", 120, 60, 30)])
    client = await field.start(policy, decision(policy, 4.0))
    answers = await client.offer("acme", rate_per_s=40, duration_s=4)
    assert 18 <= admitted(answers) <= 4 + 4 * span_s(answers) + 1, per_second(answers)


async def test_the_stricter_of_two_limits_binds(field: Field) -> None:
    policy = field.policy(windows=[_window("strict", 120, 60, 12)])  # 2/s, burst 12
    client = await field.start(policy, decision(policy, 100.0))
    answers = await client.offer("acme", rate_per_s=40, duration_s=4)
    assert 18 <= admitted(answers) <= 12 + 2 * span_s(answers) + 1, per_second(answers)
    refused = [answer for answer in answers[-40:] if answer.status == 429]
    assert {answer.headers["ratelimit"].partition(";")[0] for answer in refused} == {'"strict"'}


async def test_no_window_admits_more_than_its_tokens_and_its_burst(field: Field) -> None:
    """1000 per 60 s, ten times faster: 100 per 6 s, in any 6 s of 8."""
    policy = field.policy(windows=[_window("fast", 100, 6, 100 / 6)])
    client = await field.start(policy, decision(policy, _NO_LIMIT))
    answers = await client.offer("acme", rate_per_s=40, duration_s=8)
    times = [answer.at_s for answer in answers if answer.status == 200]
    for start_s in times:
        assert sum(start_s <= at_s < start_s + 6 for at_s in times) <= 100 + 100 / 6 + 1
    assert len(times) >= 8 * 100 / 6  # sustained, and the burst comes on top


async def test_observe_mode_refuses_nothing_and_counts_what_it_would_have_refused(field: Field) -> None:
    policy = field.policy(mode=Mode.OBSERVE)
    client = await field.start(policy, decision(policy, 5.0))
    answers = await client.offer("acme", rate_per_s=50, duration_s=2)
    assert admitted(answers) == len(answers)
    enforcing = field.policy(mode=Mode.ENFORCE)
    await field.publish(enforcing, decision(enforcing, 5.0))
    assert await client.drain("acme", 20) <= 2  # the bucket was charged all along
    await asyncio.sleep(1.5)  # statistics are flushed once a second
    counts = await _counts(field)
    assert counts["offered"] == 120
    assert 82 <= counts["would_limit"] <= 88
    assert counts["limited"] >= 18


async def _counts(field: Field) -> Counter[str]:
    """Requests by outcome."""
    text = await field.envoys[0].admin("/stats/prometheus?filter=tg_requests")
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        if "tg_requests{" in line:
            counts[re.findall('outcome="([^"]+)"', line)[0]] += int(line.rsplit(" ", 1)[1])
    return counts


async def test_what_is_free_is_never_charged(field: Field) -> None:
    """[free] 100 preflights, OPTIONS, health checks and free requests in a row, at a limit of zero."""
    routes = (
        Route(id="chat", pattern=_CHAT_PATH, models=("m",)),
        Route(id="open", pattern="/v1/open", models=("m",), free=True, identity=IdentityMode.NONE),
        Route(id="list", pattern="/v1/models", models=(), free=True, identity=IdentityMode.NONE),
    )
    policy = field.policy(routes=routes, cors_allow_origins=("https://app.example",))
    client = await field.start(policy, decision(policy, 0.0))
    asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
    kinds: list[tuple[dict[str, object], int]] = [
        ({"method": "OPTIONS", "path": _CHAT_PATH}, 204),
        ({"method": "OPTIONS", "path": _CHAT_PATH, "headers": asks}, 200),
        ({"method": "OPTIONS", "path": _CHAT_PATH, "headers": asks | {"origin": "https://other"}}, 200),
        ({"method": "GET", "path": "/healthz"}, 200),
        ({"method": "GET", "path": "/v1/models"}, 200),
        ({"path": "/v1/open"}, 200),
    ]
    for what, status in kinds:
        answers = await asyncio.gather(*(client.send(None, **what) for _ in range(100)))  # type: ignore[arg-type]
        assert {answer.status for answer in answers} == {status}, what
    allowed = await client.send(None, method="OPTIONS", path=_CHAT_PATH, headers=asks)
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert (await client.send("acme")).status == 429
