"""[free], [retry-after], [binding], streams: what clients of the real Envoy read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from sample_policy import decision_of, digest, policy_of
from still_gateway import StillGateway, still_gateway

from controlplane.model.policy import IdentityMode, Mode, ModelFrom, Route, Tenant, WindowLimit

pytestmark = pytest.mark.envoy

KEY = [("authorization", "Bearer sk-acme")]
EVERY = ("llama", "mini")
ASK = {"model": "llama"}
MINUTE = WindowLimit(name="minute", tokens=120, window_s=60, burst_tokens=12, key_fields=("tenant_id",))
ROUTES = (
    Route(id="chat", pattern="/v1/chat", models=EVERY),
    Route(id="sdk", pattern="/v1/chat/completions", models=EVERY),
    Route(id="free", pattern="/v1/models", models=(), free=True, identity=IdentityMode.NONE),
    Route(
        id="grpc", pattern="/infer.Llm/*", models=EVERY, model_from=ModelFrom.HEADER, model_header="x-model"
    ),
)


@contextlib.asynccontextmanager
async def _gateway(
    envoy: Path,
    folder: Path,
    rates: Mapping[str, float],
    *,
    burst_s: Mapping[str, float] | None = None,
    **more: Any,
) -> AsyncIterator[StillGateway]:
    """Rates by `route|pool` of the tenant acme; everything else is 10 requests/s."""
    tenants = [Tenant(id="acme", key_digests=(digest("sk-acme"),))]
    policy = policy_of(routes=ROUTES, tenants=tenants, **more)
    named = {_key(name): rate for name, rate in rates.items()}
    bursts = {_key(name): seconds for name, seconds in (burst_s or {}).items()}
    decision = decision_of(policy, named, burst_s=bursts)
    async with still_gateway(envoy, folder, policy, decision) as gateway:
        yield gateway


def _key(name: str) -> str:
    route, _, pool = name.partition("|")
    return f"{route}|acme|{pool}"


async def test_every_429_says_when_and_why(envoy_path: Path, tmp_path: Path) -> None:
    rates = {"chat|llama:r2": 0.05, "chat|mini:2024.06": 0.0, "chat|llama:r1": 1000.0}
    windows = {"windows": (MINUTE,), "key_windows": {"acme": ("minute",)}}
    burst_s = {"chat|llama:r2": 60.0}
    async with _gateway(envoy_path, tmp_path, rates, burst_s=burst_s, **windows) as gateway:
        slow = [await gateway.ask(ASK, headers=KEY) for _ in range(5)]
        assert [status for status, _, _ in slow] == [200, 200, 200, 429, 429]
        _assert_limited(slow[-1], '"adaptive";q=180;w=3600', wait_s=(19, 20), code="rate_limit_exceeded")

        closed = await gateway.ask({"model": "mini"}, headers=KEY)
        _assert_limited(closed, '"adaptive";q=0;w=3600', wait_s=(3600, 3600), code="insufficient_quota")

        # The window (12 at once, 2/s) is left with 9 less what refilled; the adaptive limit is far away.
        fast = [await gateway.ask({"model": "llama:r1"}, headers=KEY) for _ in range(20)]
        _assert_limited(fast[-1], '"minute";q=120;w=60', wait_s=(1, 1), code="rate_limit_exceeded")
        assert next(answer[2] for answer in fast if answer[0] == 429) == slow[-1][2]  # a constant body


def _assert_limited(
    answer: tuple[int, dict[str, str], bytes], policy: str, *, wait_s: tuple[int, int], code: str
) -> None:
    status, headers, body = answer
    assert status == 429
    assert wait_s[0] <= int(headers["retry-after"]) <= wait_s[1]
    assert headers["ratelimit-policy"] == policy
    name = policy.partition(";")[0]
    assert headers["ratelimit"] == f"{name};r=0;t={headers['retry-after']}"
    assert headers["content-type"] == "application/json"
    assert not [header for header in headers if header.startswith(("x-ratelimit", "x-tidegate"))]
    error = json.loads(body)["error"]
    assert (error["code"], error["param"]) == (code, None)


async def test_what_is_free_is_never_charged(envoy_path: Path, tmp_path: Path) -> None:
    preflight = [("origin", "https://app.example"), ("access-control-request-method", "POST")]
    origins = ("https://app.example",)
    async with _gateway(envoy_path, tmp_path, {}, cors_allow_origins=origins) as gateway:
        for _ in range(100):
            assert (await gateway.ask(method="OPTIONS"))[0] == 204
            assert (await gateway.ask(method="GET", path="/healthz"))[0] == 200
            assert (await gateway.ask(method="GET", path="/v1/models"))[0] == 200
        for _ in range(20):
            status, headers, _ = await gateway.ask(method="OPTIONS", headers=preflight)
            assert status == 200
            assert headers["access-control-allow-origin"] == "https://app.example"
            assert (await gateway.ask(method="GET", path="/nowhere"))[0] == 404
        _, _, models = await gateway.ask(method="GET", path="/v1/models")
        assert {"llama", "llama:r1", "mini"} <= {entry["id"] for entry in json.loads(models)["data"]}
        await asyncio.sleep(1.1)
        assert await gateway.counted("http_local_rate_limit_enabled") == 0
        assert await gateway.counted("tg_requests") == 0


async def test_unknown_models_are_refused_before_any_limit(envoy_path: Path, tmp_path: Path) -> None:
    async with _gateway(envoy_path, tmp_path, {}) as gateway:
        for number in range(30):
            status, _, body = await gateway.ask({"model": f"llama:r{number + 7}"}, headers=KEY)
            assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
        assert (await gateway.ask({"messages": []}, headers=KEY))[0] == 400
        assert (await gateway.ask({"model": 5}, headers=KEY))[0] in (400, 404)
        await asyncio.sleep(1.1)
        assert await gateway.counted("http_local_rate_limit_enabled") == 0
        assert "r7" not in await gateway.envoy.admin("/stats/prometheus")  # no series by a client's words


@pytest.mark.parametrize(
    ("content_type", "status"),
    [("application/json", 200), ("application/json; charset=utf-8", 200), ("text/plain", 400), (None, 400)],
)
async def test_the_model_is_read_from_json(
    envoy_path: Path, tmp_path: Path, content_type: str | None, status: int
) -> None:
    async with _gateway(envoy_path, tmp_path, {}) as gateway:
        headers = [*KEY, ("content-type", content_type or "")]
        body = json.dumps(ASK)
        async with gateway.http.post(f"{gateway.url}/v1/chat", data=body, headers=headers) as response:
            assert response.status == status


async def test_observe_refuses_nothing_and_counts(envoy_path: Path, tmp_path: Path) -> None:
    async with _gateway(envoy_path, tmp_path, {"chat|llama:r2": 3.0}, mode=Mode.OBSERVE) as gateway:
        answers = [await gateway.ask(ASK, headers=KEY) for _ in range(20)]
        assert {status for status, _, _ in answers} == {200}
        assert not any(name.startswith("x-ratelimit") for _, headers, _ in answers for name in headers)
        await asyncio.sleep(1.1)
        labels = ('route="chat"', 'tenant="acme"', 'model_version="llama:r2"')
        assert await gateway.counted("tg_requests", 'outcome="offered"', *labels) == 20
        ruled = ('outcome="would_limit"', 'rule="adaptive"', *labels)
        assert await gateway.counted("tg_requests", *ruled) >= 15
        assert await gateway.counted("tg_requests", 'outcome="limited"') == 0


async def test_a_stream_arrives_piece_by_piece(envoy_path: Path, tmp_path: Path) -> None:
    async with _gateway(envoy_path, tmp_path, {}) as gateway:
        body = json.dumps({**ASK, "stream": True, "chunks": 3, "interval_s": 0.4})
        headers = [*KEY, ("content-type", "application/json")]
        started = time.monotonic()
        async with gateway.http.post(f"{gateway.url}/v1/chat", data=body, headers=headers) as response:
            assert response.headers["content-type"] == "text/event-stream"
            pieces = response.content.iter_any()
            arrived = [(time.monotonic() - started, piece) async for piece in pieces]
        events = [f'data: {{"chunk":{number}}}\n\n'.encode() for number in range(3)]
        assert [piece for _, piece in arrived] == [*events, b"data: [DONE]\n\n"]
        assert arrived[-1][0] - arrived[0][0] > 0.6  # it was not held back until its end
        await asyncio.sleep(1.1)
        assert await gateway.counted("tg_ttfb_ms_count", 'model_version="llama:r2"') == 1
        # Time to the first byte, not to the last one.
        assert await gateway.counted("tg_ttfb_ms_bucket", 'le="800"') == 1


async def test_the_official_client_raises_its_own_errors(envoy_path: Path, tmp_path: Path) -> None:
    async with _gateway(envoy_path, tmp_path, {"sdk|llama:r2": 1.0}) as gateway:

        async def ask(model: str, key: str = "sk-acme") -> None:
            async with openai.AsyncOpenAI(api_key=key, base_url=f"{gateway.url}/v1", max_retries=0) as client:
                await client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "hi"}]
                )

        await ask("llama")
        with pytest.raises(openai.RateLimitError) as limited:
            await ask("llama")
        assert limited.value.code == "rate_limit_exceeded"
        assert limited.value.response.headers["retry-after"] == "1"
        with pytest.raises(openai.NotFoundError) as unknown:
            await ask("gpt-9")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.AuthenticationError) as wrong:
            await ask("llama", "sk-wrong")
        assert wrong.value.code == "invalid_api_key"

        async with openai.AsyncOpenAI(
            api_key="sk-acme", base_url=f"{gateway.url}/v1", max_retries=2
        ) as patient:
            messages: Any = [{"role": "user", "content": "hi"}]
            stream = await patient.chat.completions.create(model="llama", messages=messages, stream=True)
            await stream.close()


async def test_grpc_clients_read_resource_exhausted(envoy_path: Path, tmp_path: Path) -> None:
    rates = {"grpc|llama:r2": 0.05}
    async with (
        _gateway(envoy_path, tmp_path, rates, burst_s={"grpc|llama:r2": 15.0}) as gateway,
        grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel,
    ):
        call = channel.unary_unary("/infer.Llm/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"x", metadata=[("x-model", "llama"), *KEY])
    error = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "rate limit reached"
    told = {**dict(error.initial_metadata() or ()), **dict(error.trailing_metadata() or ())}
    assert 1 <= int(str(told["retry-after"])) <= 20
    details = told["grpc-status-details-bin"]
    assert isinstance(details, bytes)
    assert b"type.googleapis.com/google.rpc.RetryInfo" in details
    assert details.startswith(b"\x08\x08")  # code 8


async def test_a_model_servers_own_answers_pass_unchanged(envoy_path: Path, tmp_path: Path) -> None:
    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 429 Busy\r\nretry-after: 30\r\nx-tidegate-limited: 1\r\ncontent-length: 4\r\n\r\nbusy"
        )
        await writer.drain()
        writer.close()

    tenants = [Tenant(id="acme", key_digests=(digest("sk-acme"),))]
    policy = policy_of(routes=ROUTES, tenants=tenants)
    server = await asyncio.start_server(busy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        still_gateway(envoy_path, tmp_path, policy, decision_of(policy), upstream_port=port) as gateway,
    ):
        status, headers, body = await gateway.ask(ASK, headers=KEY)
        assert status == 429
        assert body == b"busy"
        assert headers["retry-after"] == "30"
        assert "x-tidegate-limited" not in headers
        await asyncio.sleep(1.1)
        assert await gateway.counted("tg_requests", 'outcome="limited"') == 0
