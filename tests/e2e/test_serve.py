"""The README's second path, by its own commands: check, serve, bootstrap, an Envoy, requests."""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from certificates import Authority

from controlplane.demo.processes import answers, free_ports, running, running_control_plane
from controlplane.demo.watching import fetch
from controlplane.demo.world import Ports
from controlplane.sim import control
from controlplane.sim.fleet import FleetSpec, PodSpec
from controlplane.sim.pods import Fleet, running_pods

API_KEY = "sk-e2e-acme"
PATH = "/v1/chat/completions"
pytestmark = [pytest.mark.envoy, pytest.mark.slow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A configured but not yet running gateway."""

    http: aiohttp.ClientSession
    fleet: Fleet
    ports: Ports
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.ports.gateway}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.ports.admin}"

    async def ask(self, key: str | None = API_KEY) -> int:
        """The status of one small request."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"model": "chat", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        try:
            async with self.http.post(self.gateway + PATH, json=body, headers=headers) as response:
                await response.read()
                return response.status
        except aiohttp.ClientError:
            return 0


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `tidegate WORDS`."""
    line = [sys.executable, "-m", "controlplane.cli", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    spec = FleetSpec(pods=(PodSpec(name="chat-0", model="chat", version="v1"),))
    async with aiohttp.ClientSession() as http, running_pods(spec) as fleet:
        await control.set_gpu(http, fleet.pods[0], util_percent=10.0)
        made = Site(http=http, fleet=fleet, ports=free_ports(), folder=tmp_path)
        _write(made)
        yield made


def _write(site: Site, *, tls: str = "") -> None:
    pod, ports = site.fleet.pods[0], site.ports
    (site.config / "tenants").mkdir(parents=True, exist_ok=True)
    (site.config / "tidegate.yaml").write_text(
        f"""\
listener: {{address: 127.0.0.1, port: {ports.gateway}}}
gateways: {{stats: ['http://127.0.0.1:{ports.gateway_admin}/stats/prometheus']}}
admin: {{port: {ports.admin}}}
xds: {{port: {ports.xds}{tls}}}
signals: {{interval_s: 0.5, gpu_exporters: ['{site.fleet.dcgm_url}']}}
models:
  chat:
    default_version: v1
    versions:
      v1:
        endpoints: [{{address: 127.0.0.1, port: {pod.port}, pod: chat-0, namespace: default}}]
        rate: {{guards: off}}
routes: [{{id: chat, path: {PATH}}}]
"""
    )
    digest = hashlib.sha256(API_KEY.encode()).hexdigest()
    tenant = f"id: acme\nidentity: {{api_keys: [{{sha256: '{digest}'}}]}}\n"
    (site.config / "tenants" / "acme.yaml").write_text(tenant)


@asynccontextmanager
async def _envoy(site: Site, envoy_path: Path, *options: str) -> AsyncIterator[None]:
    made = command(
        "bootstrap",
        *("--config", str(site.config), "--node-id", "edge-1"),
        *("--admin-port", str(site.ports.gateway_admin), *options),
    )
    assert made.returncode == 0, made.stderr
    path = site.folder / "envoy.yaml"
    path.write_text(made.stdout)
    line = [str(envoy_path), "-c", str(path), "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning"]

    async def serving() -> bool:
        return await site.ask() == 200

    async with running(line, site.folder / "envoy.log", ready=serving, within_s=30):
        yield


@pytest.mark.parametrize("variant", ["delta", "sotw", "mtls"])
async def test_any_envoy_with_our_bootstrap_serves_and_follows(
    site: Site, envoy_path: Path, variant: str
) -> None:
    options: list[str] = ["--sotw"] if variant == "sotw" else []
    if variant == "mtls":
        options = _with_tls(site)
    checked = command("check", str(site.config))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    async with (
        running_control_plane(site.http, site.config, site.ports, site.folder),
        _envoy(site, envoy_path, *options),
    ):
        assert await site.ask(None) == 401
        await control.set_gpu(site.http, site.fleet.pods[0], util_percent=95.0)
        await _until_rate(site, 10.0)
        statuses = [await site.ask() for _ in range(40)]
        assert statuses.count(429) >= 15
        assert set(statuses) == {200, 429}
        xds = await fetch(site.http, f"{site.admin}/v1/xds")
        assert xds is not None
        (gateway,) = xds["gateways"]
        assert (gateway["node"], gateway["protocol"], xds["nacks"]) == (
            "edge-1",
            "sotw" if variant == "sotw" else "delta",
            0,
        )


async def test_the_gateway_outlives_its_control_plane_and_is_adopted_unchanged(
    site: Site, envoy_path: Path
) -> None:
    async with running_control_plane(site.http, site.config, site.ports, site.folder):
        context = _envoy(site, envoy_path)
        await context.__aenter__()
    try:
        assert await site.ask() == 200  # nobody is there to tell it what to do
        async with running_control_plane(site.http, site.config, site.ports, site.folder):
            for _ in range(300):  # Envoy waits longer after each attempt that failed
                xds = await fetch(site.http, f"{site.admin}/v1/xds") or {}
                gateway = (xds.get("gateways") or [{}])[0]
                if gateway.get("settled") and "LDS" in gateway["types"]:  # asked for last
                    break
                assert await site.ask() in (200, 429)
                await asyncio.sleep(0.1)
            assert gateway["settled"]
            names = {kind: state["acked"] for kind, state in gateway["types"].items()}
            assert names["LDS"] == 1
            stats = await _stats(site)
            # The listener was taken over as it was: not one update, so not one bucket was refilled.
            assert stats["listener_manager.lds.update_success"] <= 2
            assert stats["listener_manager.listener_modified"] == 0
            assert stats["listener_manager.listener_in_place_updated"] == 0
    finally:
        await context.__aexit__(None, None, None)


async def test_serve_refuses_a_broken_configuration_with_every_problem(site: Site) -> None:
    (site.config / "tidegate.yaml").write_text("models: {}\nruotes: []\n")
    refused = command("serve", "--config", str(site.config))
    assert refused.returncode == 1
    assert "tidegate.yaml:2" in refused.stderr
    assert "routes" in refused.stderr
    assert "Traceback" not in refused.stderr


def _with_tls(site: Site) -> list[str]:
    authority = Authority(site.folder)
    server, client = authority.issue("localhost"), authority.issue("edge-1")
    _write(site, tls=f", tls: {{cert: {server.cert}, key: {server.key}, ca: {authority.ca}}}")
    return [
        *("--tls-cert", str(client.cert), "--tls-key", str(client.key)),
        *("--tls-ca", str(authority.ca)),
    ]


async def _until_rate(site: Site, rate_per_s: float) -> None:
    for _ in range(100):
        document = await fetch(site.http, f"{site.admin}/v1/decisions") or {"pools": [{"rate_per_s": -1}]}
        if document["pools"][0]["rate_per_s"] == pytest.approx(rate_per_s):
            await asyncio.sleep(0.3)
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"never came to {rate_per_s}/s: {document['pools']}")


async def _stats(site: Site) -> dict[str, int]:
    url = f"http://127.0.0.1:{site.ports.gateway_admin}/stats?filter=^listener_manager"
    async with site.http.get(url) as response:
        lines = [line.partition(": ") for line in (await response.text()).splitlines()]
    return {name: int(value) for name, _, value in lines if value.isdigit()}


async def test_the_admin_api_is_ready_only_once_limits_are_published(site: Site) -> None:
    async with running_control_plane(site.http, site.config, site.ports, site.folder):
        assert await answers(site.http, f"{site.admin}/readyz")
        metrics = f"{site.admin}/metrics"
        async with site.http.get(metrics) as response:
            assert "tidegate_ready 1.0" in await response.text()


async def test_demand_is_known_while_the_limits_change_at_every_tick(site: Site, envoy_path: Path) -> None:
    """Envoy drops a script's counters with the script, and new ones count as much again in a second."""
    sent, offered = 0, list[float]()

    async def load() -> None:
        nonlocal sent
        while True:
            await site.ask()
            sent += 1
            await asyncio.sleep(0.04)

    async with (
        running_control_plane(site.http, site.config, site.ports, site.folder),
        _envoy(site, envoy_path),
    ):
        before = await fetch(site.http, f"{site.admin}/v1/xds") or {}
        started_s, loading = time.monotonic(), asyncio.create_task(load())
        for number in range(16):
            await control.set_gpu(site.http, site.fleet.pods[0], util_percent=(10.0, 95.0)[number % 2])
            await asyncio.sleep(0.5)
            decisions = await fetch(site.http, f"{site.admin}/v1/decisions") or {}
            offered += [key["offered_per_s"] for key in decisions["keys"] if key["offered_per_s"] is not None]
        sent_per_s = sent / (time.monotonic() - started_s)
        after = await fetch(site.http, f"{site.admin}/v1/xds") or {}
        loading.cancel()
    assert after["pushes"] - before["pushes"] >= 8, "the limits changed all the time"
    assert 0.7 * sent_per_s <= statistics.median(offered[4:]) <= 1.4 * sent_per_s, (sent_per_s, offered)
