"""What a request cost: reserved before it runs, settled when it ends, however it ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import fake_quota
import openai
import pytest
from fake_quota import FakeQuota
from field import Field
from offered import Answer, Client
from policies import api_key, decision, tenant
from real_envoy import free_port

from controlplane.model.policy import Endpoint, Mode, PolicyService, Quota

pytestmark = pytest.mark.envoy

QUOTA = (Quota(model_version="m:r1", tokens=500_000, period="daily"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """One gateway that meters acme."""

    field: Field
    quota: FakeQuota
    client: Client


JSON, SSE = "application/json", "text/event-stream"


def _event(data: Any, *, name: str | None = None, ending: str = "\n") -> str:
    lines = ([] if name is None else [f"event: {name}"]) + [f"data: {json.dumps(data)}", ""]
    return "".join(line + ending for line in lines)


def _chunk(text: str, usage: Any = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}], "usage": usage}


async def _say(metered: Metered, *say: str, kind: str = SSE, **body: Any) -> Answer:
    headers = {"content-type": kind, **body.pop("answer_headers", {})}
    return await metered.client.send("acme", say=list(say), answer_headers=headers, **body)


OPENAI = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
ANTHROPIC = [
    ("message_start", {"message": {"usage": {"input_tokens": 900, "output_tokens": 1}}}),
    ("content_block_delta", {"delta": {"text": "hi"}}),
    ("message_delta", {"usage": {"output_tokens": 100}}),
]
SHAPES: dict[str, tuple[str, list[str]]] = {
    "chat": (JSON, [json.dumps({"choices": [{"message": {"content": "x"}}], "usage": OPENAI})]),
    "chat stream": (SSE, [_event(_chunk("hi")), _event(_chunk("", OPENAI)), "data: [DONE]\n\n"]),
    "chat stream CRLF": (SSE, [_event(_chunk("hi", OPENAI), ending="\r\n"), "data: [DONE]\r\n\r\n"]),
    "completions": (JSON, [json.dumps({"choices": [{"text": "x"}], "usage": OPENAI})]),
    "embeddings": (JSON, [json.dumps({"data": [], "usage": {"prompt_tokens": 1000, "total_tokens": 1000}})]),
    "responses": (JSON, [json.dumps({"usage": {"input_tokens": 900, "output_tokens": 100}})]),
    "responses stream": (
        SSE,
        [
            _event({"response": {"usage": None}}, name="response.created"),
            _event({"delta": "hi"}, name="response.output_text.delta"),
            _event(
                {"response": {"usage": {"input_tokens": 900, "output_tokens": 100, "total_tokens": 1000}}},
                name="response.incomplete",
            ),
        ],
    ),
    "messages": (JSON, [json.dumps({"usage": {"input_tokens": 900, "output_tokens": 100}})]),
    "messages stream": (SSE, [_event(data, name=name) for name, data in ANTHROPIC]),
    "cumulative": (
        SSE,
        [_event(_chunk("t", {"prompt_tokens": 900, "total_tokens": 900 + n})) for n in range(1, 101)],
    ),
    "cut anywhere": (SSE, list(_event(_chunk("", OPENAI)))),
}


@pytest.fixture
async def metered(field: Field) -> AsyncIterator[Metered]:
    """acme has a quota, zeta has none; everybody has 1000 requests/s."""
    async with fake_quota.serving() as quota:
        yield await _metered(field, quota)


async def _metered(field: Field, quota: FakeQuota, *, rate_per_s: float = 1000.0, **more: Any) -> Metered:
    policy = field.policy(
        [tenant("acme", quotas=QUOTA), "zeta"],
        policy_service=PolicyService(port=quota.port, timeout_s=more.pop("timeout_s", 2.0)),
        **more,
    )
    client = await field.start(policy, decision(policy, rate_per_s))
    return Metered(field=field, quota=quota, client=client)


async def test_a_request_is_reserved_and_settled_with_its_usage(metered: Metered) -> None:
    kind, say = SHAPES["chat"]
    answer = await _say(metered, *say, kind=kind, max_tokens=500, headers={"x-request-id": "one"})
    assert (answer.status, answer.body) == (200, say[0])
    assert await metered.quota.settled() == [1000]
    reserve, settle = metered.quota.asked
    rest = (("tenant", "acme"), ("pool", "m:r1"), ("route", "chat"), ("id", "one"))
    assert reserve.entries == (("op", "reserve"), *rest)
    assert settle.entries == (("op", "settle"), *rest)
    assert reserve.domain == settle.domain == "tidegate"
    assert reserve.tokens is not None
    assert 500 < reserve.tokens < 600


async def test_every_kind_of_answer_costs_what_it_says(metered: Metered) -> None:
    for number, (name, (kind, say)) in enumerate(SHAPES.items(), start=1):
        answer = await _say(metered, *say, kind=kind)
        assert answer.body == "".join(say), name
        assert (await metered.quota.settled(number))[-1] == 1000, name
    assert len(metered.quota.of("reserve")) == len(SHAPES)


async def test_a_client_that_leaves_pays_for_its_prompt_and_what_came(metered: Metered) -> None:
    say = [_event(_chunk("t")) for _ in range(400)]
    body = {"model": "m", "say": say, "interval_s": 0.01, "pad": "p" * 4000, "max_tokens": 100_000}
    body["answer_headers"] = {"content-type": SSE}
    url = f"http://127.0.0.1:{metered.field.listener.port}/v1/chat/completions"
    headers = {"authorization": f"Bearer {api_key('acme')}"}
    async with aiohttp.ClientSession() as http:
        answer = await http.post(url, json=body, headers=headers)
        read = 0
        async for line in answer.content:
            read += line.startswith(b"data")
            if read == 60:
                break
        left_s = time.monotonic()
        answer.close()
    [tokens] = await metered.quota.settled()
    prompt = -(-len(json.dumps(body)) // 4)
    assert tokens is not None
    assert prompt + 60 <= tokens <= (prompt + 60) * 1.05
    assert metered.quota.of("settle")[0].at_s - left_s < 2.0
    while not metered.field.model.broken_off_s:
        assert time.monotonic() - left_s < 1.0  # the model server stops working
        await asyncio.sleep(0.01)


async def test_a_client_that_leaves_before_the_answer_pays_for_its_prompt(metered: Metered) -> None:
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.4):
            await metered.client.send("acme", delay_s=5.0, max_tokens=100_000)
    [tokens] = await metered.quota.settled()
    assert tokens is not None
    assert 1 <= tokens < 100


async def test_a_server_that_breaks_off_is_paid_for_what_came(metered: Metered) -> None:
    say = [_event(_chunk("t")) for _ in range(20)]
    with pytest.raises(aiohttp.ClientPayloadError):
        await _say(metered, *say, break_off=True, max_tokens=100_000)
    [tokens] = await metered.quota.settled()
    assert tokens is not None
    assert 20 < tokens < 2000


@pytest.mark.parametrize(
    ("kind", "say", "more"),
    [
        (JSON, '{"choices":[]}', {}),
        (SSE, _event(_chunk("hi")), {}),
        (JSON, '{"usage":{"total_tokens":1e30}}', {}),
        (JSON, "not JSON", {}),
        (JSON, '{"usage":{"total_tokens":5}}', {"content-encoding": "deflate"}),
        ("audio/mpeg", "usage", {}),
        (JSON, "", {}),
    ],
)
async def test_an_answer_without_usage_costs_its_reservation(
    metered: Metered, kind: str, say: str, more: dict[str, str]
) -> None:
    encoded = more.pop("content-encoding", None)
    if encoded:
        more["content-encoding"] = "identity,x-unknown"
    answer = await _say(metered, say, kind=kind, max_tokens=4000, answer_headers=more)
    assert answer.body == say
    [tokens] = await metered.quota.settled()
    [reserved] = metered.quota.of("reserve")
    assert tokens == reserved.tokens
    await asyncio.sleep(1.1)
    page = await metered.field.envoys[0].admin("/stats/prometheus")
    (line,) = [each for each in page.splitlines() if "tg_usage{" in each and 'outcome="missing"' in each]
    assert 'model_version="m:r1"' in line
    assert line.endswith(" 1")


async def test_errors_cost_nothing_and_arrive_unchanged(metered: Metered) -> None:
    error = json.dumps({"error": {"message": "x" * 5000}, "usage": {"total_tokens": 99}})
    for number, status in enumerate((400, 404, 429, 500, 503), start=1):
        answer = await _say(metered, error, kind=JSON, status=status, stream=True)
        assert (answer.status, answer.body) == (status, error)
        assert (await metered.quota.settled(number))[-1] == 0


async def test_a_model_that_cannot_be_reached_costs_nothing(field: Field) -> None:
    async with fake_quota.serving() as quota:
        nowhere = Endpoint(address="127.0.0.1", port=free_port())
        metered = await _metered(field, quota, pools=(replace(field.pool(), endpoints=(nowhere,)),))
        assert (await metered.client.send("acme")).status == 503
        assert await quota.settled() == [0]


async def test_what_the_rate_limit_refuses_is_never_asked(field: Field) -> None:
    async with fake_quota.serving() as quota:
        metered = await _metered(field, quota, rate_per_s=0.05)
        answers = [await metered.client.send("acme") for _ in range(6)]
        admitted = [answer.status for answer in answers].count(200)
        assert admitted < 5
        assert "rate_limit_exceeded" in answers[-1].body
        await quota.settled(admitted)
        await asyncio.sleep(0.3)
        assert len(quota.asked) == 2 * admitted


async def test_without_a_quota_nobody_is_asked(metered: Metered) -> None:
    for _ in range(10):
        assert (await metered.client.send("zeta")).status == 200
    assert (await metered.client.send("acme", model="unknown")).status == 404
    assert (await metered.client.send(None)).status == 401
    await asyncio.sleep(0.3)
    assert metered.quota.asked == []


async def test_what_the_quota_refuses_is_the_services_own_answer(metered: Metered) -> None:
    metered.quota.refuse = True
    answer = await metered.client.send("acme")
    assert answer.status == 429
    assert answer.body.encode() == fake_quota.BODY
    for name, value in fake_quota.HEADERS.items():
        if not name.startswith("x-tidegate"):
            assert answer.headers[name] == value
    assert not [name for name in answer.headers if name.startswith(("x-tidegate", "x-envoy-rate"))]
    url = f"http://127.0.0.1:{metered.field.listener.port}/v1"
    async with openai.AsyncOpenAI(api_key=api_key("acme"), base_url=url, max_retries=0) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "insufficient_quota"
    await asyncio.sleep(1.2)
    assert [each.op for each in metered.quota.asked] == ["reserve", "reserve"]
    assert metered.field.model.requests == []
    page = await metered.field.envoys[0].admin("/stats/prometheus")
    assert [line for line in page.splitlines() if 'outcome="limited"' in line and 'rule="quota"' in line]


async def test_observe_asks_and_refuses_nothing(field: Field) -> None:
    async with fake_quota.serving() as quota:
        metered = await _metered(field, quota, mode=Mode.OBSERVE)
        quota.refuse = True
        assert (await metered.client.send("acme")).status == 200
        assert await quota.settled() == [3]


async def test_a_service_that_does_not_answer_lets_requests_pass_in_time(field: Field) -> None:
    async with fake_quota.serving() as quota:
        metered = await _metered(field, quota, timeout_s=0.02)
        await metered.client.send("acme")
        quota.delay_s = 3.0
        started_s = time.monotonic()
        assert (await metered.client.send("acme")).status == 200
        assert time.monotonic() - started_s < 1.0
    assert (await metered.client.send("acme")).status == 200  # nobody listens any more


async def test_a_prompt_without_a_length_is_estimated_too(metered: Metered) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield json.dumps({"model": "m", "max_tokens": 10, "pad": "p" * 8000}).encode()

    url = f"http://127.0.0.1:{metered.field.listener.port}/v1/chat/completions"
    headers = {"authorization": f"Bearer {api_key('acme')}", "content-type": JSON}
    async with aiohttp.ClientSession() as http, http.post(url, data=pieces(), headers=headers) as answer:
        assert answer.status == 200, metered.field.envoys[0].log()
    await metered.quota.settled()
    [reserved] = metered.quota.of("reserve")
    assert reserved.tokens is not None
    assert 2000 < reserved.tokens < 2100


async def test_a_metered_stream_is_not_held_back(metered: Metered) -> None:
    say = [_event(_chunk("t")) for _ in range(4)]
    url = f"http://127.0.0.1:{metered.field.listener.port}/v1/chat/completions"
    body = {"model": "m", "say": say, "interval_s": 0.3, "answer_headers": {"content-type": SSE}}
    headers = {"authorization": f"Bearer {api_key('acme')}"}
    started_s = time.monotonic()
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as answer:
        arrived_s = [time.monotonic() - started_s async for piece in answer.content.iter_any() if piece]
    assert len(arrived_s) == 4
    assert arrived_s[-1] - arrived_s[0] > 0.6
