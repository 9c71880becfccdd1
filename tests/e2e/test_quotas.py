"""LLM-token quotas through the whole product: serve, Envoy, store, and the official client."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import stub_model
from redis_server import RedisServer

from controlplane.demo.processes import answers, free_ports, running
from controlplane.demo.watching import fetch
from controlplane.xds.bootstrap import Gateway, bootstrap

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

KEY = "sk-acme"
OLD, NEW = "gpt-4-turbo:2024-06-01", "gpt-4-turbo:2024-07-15"
MAIN = """\
listener: {{address: 127.0.0.1, port: {gateway}}}
admin: {{port: {admin}}}
xds: {{port: {xds}}}
policy: {{port: 0, timeout_ms: 1000{store}}}
models:
  gpt-4-turbo:
    default_version: "2024-07-15"
    versions:
      "2024-06-01": {{endpoints: [{{address: 127.0.0.1, port: {model}}}]}}
      "2024-07-15": {{endpoints: [{{address: 127.0.0.1, port: {model}}}]}}
routes:
  - {{id: chat, path: /v1/chat/completions}}
"""
TENANT = """\
id: acme
identity: {{api_keys: [{{sha256: '{digest}'}}]}}
pin: 500
quotas:
  daily:
    - {{model_version: "gpt-4-turbo:2024-06-01", tokens: 5000}}
    - {{model_version: "gpt-4-turbo:2024-07-15", tokens: 8000}}
"""
USAGE = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """A gateway where acme has bought 5,000 and 8,000 tokens a day."""

    admin: str
    http: aiohttp.ClientSession
    client: openai.AsyncOpenAI

    async def ask(self, model: str, *, stream: bool = False) -> None:
        """A request that costs exactly 1,000 tokens; raises what the client raises."""
        choice = {"index": 0, "finish_reason": "stop"}
        head = {"id": "x", "created": 1, "model": model, "object": "chat.completion"}
        if stream:
            head["object"] += ".chunk"
            texts = [
                {**head, "choices": [{**choice, "delta": {"content": "hi"}}]},
                {**head, "choices": [], "usage": USAGE},
            ]
            say = [f"data: {json.dumps(text)}\n\n" for text in texts] + ["data: [DONE]\n\n"]
        else:
            message = {"role": "assistant", "content": "hi"}
            say = [json.dumps({**head, "choices": [{**choice, "message": message}], "usage": USAGE})]
        kind = "text/event-stream" if stream else "application/json"
        extra = {"say": say, "answer_headers": {"content-type": kind}}
        messages: Any = [{"role": "user", "content": "hi"}]
        answer: Any = await self.client.chat.completions.create(
            model=model, messages=messages, max_tokens=100, stream=stream, extra_body=extra
        )
        usages = [chunk.usage async for chunk in answer if chunk.usage] if stream else [answer.usage]
        assert usages[-1].total_tokens == 1000

    async def used(self, pool: str, tokens: int) -> None:
        """Wait until the service says that so much of the quota is used, and nothing is reserved."""
        found: Any = None
        for _ in range(100):
            found = await fetch(self.http, f"{self.admin}/v1/quotas?model_version={pool}")
            line = (found or {"quotas": [{}]})["quotas"][0]
            if (line.get("used_tokens"), line.get("reserved_tokens")) == (tokens, 0):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(found)


@asynccontextmanager
async def _bought(folder: Path, envoy_path: Path, store: str = "") -> AsyncIterator[Bought]:
    config, ports = folder / "config", free_ports()
    (config / "tenants").mkdir(parents=True)
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    (config / "tenants" / "acme.yaml").write_text(TENANT.format(digest=digest))
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        model = await stack.enter_async_context(stub_model.serving())
        text = MAIN.format(
            gateway=ports.gateway, admin=ports.admin, xds=ports.xds, model=model.port, store=store
        )
        (config / "tidegate.yaml").write_text(text)
        admin, envoy = f"http://127.0.0.1:{ports.admin}", f"http://127.0.0.1:{ports.gateway_admin}"
        command = [sys.executable, "-m", "controlplane.cli", "serve", "--config", str(config)]
        await stack.enter_async_context(
            running(
                command, folder / "serve.log", ready=lambda: answers(http, f"{admin}/readyz"), within_s=30
            )
        )
        gateway = Gateway(node_id="edge", xds_port=ports.xds, admin_port=ports.gateway_admin)
        (folder / "envoy.json").write_text(json.dumps(bootstrap(gateway)))
        command = [str(envoy_path), "-c", str(folder / "envoy.json"), "--use-dynamic-base-id"]
        command += ["--concurrency", "1", "-l", "error"]
        await stack.enter_async_context(
            running(command, folder / "envoy.log", ready=lambda: answers(http, f"{envoy}/ready"), within_s=30)
        )
        url = f"http://127.0.0.1:{ports.gateway}/v1"
        client = await stack.enter_async_context(openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0))
        yield Bought(admin=admin, http=http, client=client)


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
async def bought(request: pytest.FixtureRequest, tmp_path: Path, envoy_path: Path) -> AsyncIterator[Bought]:
    if request.param == "memory":
        async with _bought(tmp_path, envoy_path) as made:
            yield made
        return
    server = RedisServer(request.getfixturevalue("redis_path"), tmp_path).start()
    try:
        async with _bought(tmp_path, envoy_path, f", store: redis, redis: {{url: '{server.url}'}}") as made:
            yield made
    finally:
        server.stop()


async def test_each_version_has_its_own_day_and_the_client_raises_its_own_error(bought: Bought) -> None:
    for number in range(1, 6):
        await bought.ask(OLD, stream=number % 2 == 0)
        await bought.used(OLD, number * 1000)
    with pytest.raises(openai.RateLimitError) as refused:
        await bought.ask(OLD)
    assert refused.value.code == "insufficient_quota"
    headers = refused.value.response.headers
    assert 1 <= int(headers["retry-after"]) <= 86_400
    assert headers["ratelimit-policy"] == '"daily";q=5000;w=86400'
    assert headers["content-type"] == "application/json"
    assert not [name for name in headers if name.startswith("x-tidegate")]
    for number in range(1, 9):
        await bought.ask(NEW, stream=number % 2 == 0)
        await bought.used(NEW, number * 1000)
    with pytest.raises(openai.RateLimitError):
        await bought.ask(NEW, stream=True)
    await bought.used(OLD, 5000)
