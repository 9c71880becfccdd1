"""A real Envoy on one snapshot, in front of a model server that shows what it received."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
from aiohttp import web

from controlplane.assets import read_asset
from controlplane.model.decision import Decision
from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Endpoint, Policy
from controlplane.xds.bootstrap import Gateway, static
from controlplane.xds.lua_code import lua_code
from controlplane.xds.translate import snapshot

READY_WITHIN_S = 20.0


@dataclass(slots=True)
class Seen:
    """One request as the model server got it."""

    path: str
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(slots=True)
class ModelServer:
    """Answers JSON, or as many server-sent events as `events` says, one after `gap_s`."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    events: list[bytes] = field(
        default_factory=lambda: [b"data: one\n\n", b"data: two\n\n", b"data: [DONE]\n\n"]
    )
    gap_s: float = 0.05

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        raw = [(name.decode().lower(), value.decode()) for name, value in request.raw_headers]
        self.seen.append(Seen(request.path, raw, body))
        if not (body and json.loads(body).get("stream")):
            return web.json_response({"id": "x", "object": "chat.completion", "choices": []})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in self.events:
            await asyncio.sleep(self.gap_s)
            await response.write(event)
        return response


@dataclass(slots=True)
class StillGateway:
    """Where to find it, and what it wrote."""

    port: int
    admin_port: int
    folder: Path
    model: ModelServer
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def admin(self, path: str) -> str:
        async with self.http.get(f"http://127.0.0.1:{self.admin_port}{path}") as response:
            return await response.text()

    async def ask(
        self,
        body: object = None,
        *,
        path: str = "/v1/chat",
        method: str = "POST",
        headers: Sequence[tuple[str, str]] = (),
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and body."""
        content = None if body is None else json.dumps(body).encode()
        sent = [*headers] + ([] if content is None else [("content-type", "application/json")])
        async with self.http.request(method, self.url + path, data=content, headers=sent) as response:
            got = {name.lower(): value for name, value in response.headers.items()}
            return response.status, got, await response.read()

    def log(self) -> str:
        return (self.folder / "envoy.log").read_text()

    async def counter(self, *parts: str) -> float:
        """The sum of the Prometheus lines that hold every part; statistics are flushed each second."""
        lines = [line for line in (await self.admin("/stats/prometheus")).splitlines() if line[0] != "#"]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(part in line for part in parts))


@contextlib.asynccontextmanager
async def still_gateway(
    envoy: Path,
    folder: Path,
    policy: Policy,
    decision: Decision,
    *,
    members: int = 1,
    upstream_port: int | None = None,
    log_level: str = "info",
) -> AsyncIterator[StillGateway]:
    """Envoy serving `policy`; every pool is the one model server (or what listens on `upstream_port`)."""
    async with _model_server() as model:
        port, admin_port = _free_port(), _free_port()
        endpoint = Endpoint(address="127.0.0.1", port=upstream_port or model.port)
        policy = replace(
            policy,
            listener=replace(policy.listener, address="127.0.0.1", port=port),
            pools=tuple(replace(pool, endpoints=(endpoint,)) for pool in policy.pools),
        )
        fleet = [GatewayMember(id=f"gateway-{number}", port=number + 1) for number in range(members)]
        made = snapshot(policy, decision, fleet, code=lua_code(read_asset))
        config = static(made, Gateway(node_id="gateway-0", admin_port=admin_port))
        (folder / "envoy.json").write_text(json.dumps(config))
        with (folder / "envoy.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                envoy,
                *("-c", folder / "envoy.json", "-l", log_level),
                *("--concurrency", "1", "--disable-hot-restart"),
                stdout=log,
                stderr=log,
            )
        try:
            async with aiohttp.ClientSession(auto_decompress=False) as http:
                gateway = StillGateway(port, admin_port, folder, model, http)
                await _until_ready(gateway, process)
                yield gateway
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def _model_server() -> AsyncIterator[ModelServer]:
    model = ModelServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", model.answer)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model.port = runner.addresses[0][1]
    try:
        yield model
    finally:
        await runner.cleanup()


async def _until_ready(gateway: StillGateway, process: asyncio.subprocess.Process) -> None:
    deadline = asyncio.get_running_loop().time() + READY_WITHIN_S
    while asyncio.get_running_loop().time() < deadline:
        if process.returncode is not None:
            raise AssertionError(f"Envoy ended: {gateway.log()[-2000:]}")
        with contextlib.suppress(aiohttp.ClientError):
            if (await gateway.admin("/ready")).strip() == "LIVE":
                return
        await asyncio.sleep(0.05)
    raise AssertionError(f"Envoy is not ready: {gateway.log()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
