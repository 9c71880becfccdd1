"""The whole product for a test: simulated pods, `tidegate serve`, real Envoys, and files to edit."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from controlplane.demo.processes import answers, free_ports, running
from controlplane.demo.verdict import RateLine
from controlplane.demo.watching import Watch, fetch, watch_decisions
from controlplane.demo.world import Ports
from controlplane.sim.fleet import FleetSpec, PodSpec
from controlplane.sim.physics import Physics
from controlplane.sim.pods import Fleet, running_pods
from controlplane.xds.bootstrap import Gateway, bootstrap

PATH = "/v1/chat/completions"
MAIN = """\
mode: {mode}
listener: {{address: 127.0.0.1, port: {gateway}}}
gateways: {{min: 1, max: 2, stats: [{stats}]}}
admin: {{port: {admin}}}
xds: {{port: {xds}}}
cors: {{allow_origins: [{origins}]}}
signals: {{interval_s: 0.5, gpu_exporters: ['{dcgm}']}}
models:
  chat:
    default_version: v1
    versions:
      v1:
        endpoints: [{{address: 127.0.0.1, port: {pod}, pod: chat-0, namespace: default}}]
        rate: {{guards: off, base_rate: {base_rate}{rate}}}
        breaker: {{{breaker}}}
routes:
  - {{id: chat, path: {path}, idle_timeout_s: {idle_timeout_s}}}
"""


@dataclass(slots=True, kw_only=True)
class Written:
    """What the files say; change it and call `Site.write`."""

    mode: str = "enforce"
    base_rate: float = 100
    rate: str = ""  # more of the version's `rate`
    breaker: str = ""  # the version's `breaker`
    origins: str = ""
    idle_timeout_s: float = 300
    tenants: dict[str, str] = field(default_factory=dict)  # id -> more lines of its file


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One finished request: when it was sent (Unix seconds) and its status; 0: no answer."""

    at_s: float
    status: int


@dataclass(slots=True, kw_only=True)
class Site:
    """A configured product. Nothing but the pods runs until a test starts it."""

    http: aiohttp.ClientSession
    fleet: Fleet
    ports: Ports
    second_admin_port: int
    folder: Path
    envoy_path: Path
    files: Written

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports.gateway}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.ports.admin}"

    def write(self) -> None:
        """The files as an editor that saves by renaming would leave them."""
        tenants = self.config / "tenants"
        tenants.mkdir(parents=True, exist_ok=True)
        admins = (self.ports.gateway_admin, self.second_admin_port)
        _replace(
            self.config / "tidegate.yaml",
            MAIN.format(
                mode=self.files.mode,
                base_rate=self.files.base_rate,
                rate=self.files.rate,
                breaker=self.files.breaker,
                origins=self.files.origins,
                idle_timeout_s=self.files.idle_timeout_s,
                gateway=self.ports.gateway,
                stats=", ".join(f"'http://127.0.0.1:{port}/stats/prometheus'" for port in admins),
                admin=self.ports.admin,
                xds=self.ports.xds,
                dcgm=self.fleet.dcgm_url,
                pod=self.fleet.pods[0].port,
                path=PATH,
            ),
        )
        for stale in {path.stem for path in tenants.glob("*.yaml")} - self.files.tenants.keys():
            (tenants / f"{stale}.yaml").unlink()
        for id, more in self.files.tenants.items():
            digest = hashlib.sha256(api_key(id).encode()).hexdigest()
            text = f"id: {id}\nidentity: {{api_keys: [{{sha256: '{digest}'}}]}}\n{more}\n"
            _replace(tenants / f"{id}.yaml", text)

    @asynccontextmanager
    async def control_plane(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """`tidegate serve`, ready."""
        command = [sys.executable, "-m", "controlplane.cli", "serve", "--config", str(self.config)]
        log = self.folder / f"tidegate-{time.monotonic_ns()}.log"
        url = f"{self.admin}/readyz"
        async with running(command, log, ready=lambda: answers(self.http, url), within_s=30) as process:
            yield process

    @asynccontextmanager
    async def envoy(self, number: int = 1, *, wait: bool = True) -> AsyncIterator[asyncio.subprocess.Process]:
        """The first or second gateway; they share the listener's port."""
        port = self.ports.gateway_admin if number == 1 else self.second_admin_port
        path = self.folder / f"envoy-{number}.json"
        gateway = Gateway(node_id=f"edge-{number}", xds_port=self.ports.xds, admin_port=port)
        path.write_text(json.dumps(bootstrap(gateway)))
        command = [str(self.envoy_path), "-c", str(path), "--use-dynamic-base-id", "--concurrency", "1"]
        command += ["-l", "error", "--drain-time-s", "1", "--parent-shutdown-time-s", "2"]
        url = f"http://127.0.0.1:{port}/{'ready' if wait else 'server_info'}"
        log = self.folder / f"envoy-{number}-{time.monotonic_ns()}.log"
        async with running(command, log, ready=lambda: answers(self.http, url), within_s=30) as process:
            yield process

    async def ask(
        self, tenant: str | None = "acme", *, http: aiohttp.ClientSession | None = None, **more: object
    ) -> Sent:
        """One small request."""
        headers = {"authorization": f"Bearer {api_key(tenant)}"} if tenant else {}
        body = {"model": "chat", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}], **more}
        at_s = time.time()
        try:
            async with (http or self.http).post(self.url + PATH, json=body, headers=headers) as response:
                await response.read()
                return Sent(at_s=at_s, status=response.status)
        except (aiohttp.ClientError, OSError):
            return Sent(at_s=at_s, status=0)

    async def offer(
        self, tenant: str, rate_per_s: float, seconds: float, *, new_connections: bool = False
    ) -> list[Sent]:
        """Evenly spaced requests, each answered or not. New connections reach every gateway of the port."""
        connector = aiohttp.TCPConnector(limit=200, force_close=new_connections)
        async with aiohttp.ClientSession(connector=connector) as http:
            start_s, tasks = time.monotonic(), []
            for number in range(round(rate_per_s * seconds)):
                await asyncio.sleep(max(0.0, start_s + number / rate_per_s - time.monotonic()))
                tasks.append(asyncio.create_task(self.ask(tenant, http=http)))
            return list(await asyncio.gather(*tasks))

    async def stream(self, tenant: str, tokens: int) -> tuple[int, bool]:
        """Status of a streamed answer, and whether it arrived to its end."""
        headers = {"authorization": f"Bearer {api_key(tenant)}"}
        body = {"model": "chat", "max_tokens": tokens, "stream": True, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": "tell me"}]
        got = b""
        try:
            async with self.http.post(self.url + PATH, json=body, headers=headers) as response:
                async for piece in response.content.iter_any():
                    got += piece
                return response.status, got.rstrip().endswith(b"data: [DONE]")
        except aiohttp.ClientError:
            return 0, False

    async def decisions(self) -> dict[str, object]:
        """The newest decision; empty when nobody answers."""
        return await fetch(self.http, f"{self.admin}/v1/decisions") or {}

    async def until_rate(self, tenant: str, rate_per_s: float, *, within_s: float = 10.0) -> None:
        """Until the control plane says so, and long enough for Envoy to have heard."""
        deadline_s = time.monotonic() + within_s
        found: Sequence[Mapping[str, float]] = []
        while time.monotonic() < deadline_s:
            found = (await self.decisions()).get("keys", [])  # type: ignore[assignment]
            mine = [key["rate_per_s"] for key in found if f"|{tenant}|" in str(key["id"])]
            if mine and abs(mine[0] - rate_per_s) <= 0.02 * rate_per_s:
                await asyncio.sleep(0.2)
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never came to {rate_per_s}/s: {found}")

    async def drain(self, tenant: str) -> None:
        """Leave the tenant without a token."""
        for _ in range(10):
            sent = await asyncio.gather(*(self.ask(tenant) for _ in range(40)))
            if sum(one.status == 429 for one in sent) > 20:
                return
        raise AssertionError(f"{tenant} is never limited: {Counter(one.status for one in sent)}")

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Watch]:
        """All decisions while the context lasts, also across restarts of the control plane."""
        watch = Watch()
        task = asyncio.create_task(watch_decisions(self.http, self.admin, watch, lambda _: None))
        try:
            yield watch
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def api_key(tenant: str) -> str:
    """The secret with which `tenant` shows who it is."""
    return f"sk-site-{tenant}"


def line_of(watch: Watch, tenant: str) -> RateLine:
    """The rate of a tenant over time, as reported."""
    return watch.line(f"chat|{tenant}|chat:v1")


def admitted(sent: Sequence[Sent]) -> int:
    return sum(one.status == 200 for one in sent)


def statuses(sent: Sequence[Sent]) -> Counter[int]:
    return Counter(one.status for one in sent)


def _replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


@asynccontextmanager
async def site(folder: Path, envoy_path: Path) -> AsyncIterator[Site]:
    """Pods that answer at 20 tokens/s, and files for the tenants acme and globex."""
    physics = Physics(max_num_seqs=256, step_base_s=0.05, step_per_seq_s=0.0, prefill_tokens_per_s=1e6)
    spec = FleetSpec(pods=(PodSpec(name="chat-0", model="chat", version="v1", physics=physics),))
    async with aiohttp.ClientSession() as http, running_pods(spec) as fleet:
        made = Site(
            http=http,
            fleet=fleet,
            ports=free_ports(),
            second_admin_port=free_ports().admin,
            folder=folder,
            envoy_path=envoy_path,
            files=Written(tenants={"acme": "", "globex": ""}),
        )
        made.write()
        yield made
