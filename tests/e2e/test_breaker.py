"""A model version that fails is given a rest, by the real control plane in the real Envoy."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from controlplane.demo.processes import free_ports, running_control_plane, running_envoy
from controlplane.demo.watching import fetch
from controlplane.demo.world import Ports
from controlplane.sim import control
from controlplane.sim.fleet import FleetSpec, PodSpec
from controlplane.sim.pods import Fleet, running_pods
from controlplane.xds.bootstrap import Gateway, bootstrap

API_KEY = "sk-e2e-breaker"
PATH = "/v1/chat/completions"
OPEN_S = 3
SLO_S = 0.5
RATES = {"v1": 1000, "v2": 20, "v3": 1000, "v4": 1000}
# One gateway for all tests: each breaks a version of its own.
pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    at_s: float
    status: int
    code: str | None
    retry_after: str | None


@dataclass(slots=True, kw_only=True)
class Site:
    """A running gateway in front of four versions of one model."""

    http: aiohttp.ClientSession
    fleet: Fleet
    ports: Ports
    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))

    async def ask(self, version: str) -> Answer:
        """One small request, remembered by version."""
        body = {"model": f"chat:{version}", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        url = f"http://127.0.0.1:{self.ports.gateway}{PATH}"
        headers = {"authorization": f"Bearer {API_KEY}"}
        async with self.http.post(url, json=body, headers=headers) as response:
            text = await response.text()
            error = json.loads(text).get("error") if response.status >= 400 else None
            code = error.get("code") if isinstance(error, dict) else None
            answer = Answer(
                at_s=time.monotonic(),
                status=response.status,
                code=code,
                retry_after=response.headers.get("retry-after"),
            )
        self.answers[version].append(answer)
        return answer

    @asynccontextmanager
    async def load(self, **per_s: float) -> AsyncIterator[None]:
        """So many requests a second to each version, until the context ends."""
        streams = [asyncio.create_task(self._offer(version, rate)) for version, rate in per_s.items()]
        try:
            yield
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)

    async def _offer(self, version: str, per_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self.ask(version))
                await asyncio.sleep(1 / per_s)

    async def breaker(self, version: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.ports.admin}/v1/decisions"
        document = await fetch(self.http, url) or {"breakers": []}
        return next(each for each in document["breakers"] if each["model_version"] == f"chat:{version}")

    async def until(self, version: str, state: str, within_s: float) -> float:
        """Seconds until the breaker of `version` is in `state`."""
        started_s = time.monotonic()
        while (made := await self.breaker(version))["state"] != state:
            assert time.monotonic() - started_s < within_s, f"never {state}: {made}"
            await asyncio.sleep(0.1)
        return time.monotonic() - started_s

    async def fail(self, version: str, **faults: Any) -> None:
        pod = next(pod for pod in self.fleet.pods if pod.version == version)
        await control.set_faults(self.http, pod, **faults)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    tmp_path = tmp_path_factory.mktemp("breaker")
    pods = tuple(PodSpec(name=f"chat-{version}", model="chat", version=version) for version in RATES)
    connector = aiohttp.TCPConnector(limit=100)
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        running_pods(FleetSpec(pods=pods)) as fleet,
    ):
        for pod in fleet.pods:
            await control.set_gpu(http, pod, util_percent=10.0)
        made = Site(http=http, fleet=fleet, ports=free_ports())
        _write(made, tmp_path / "config")
        async with (
            running_control_plane(http, tmp_path / "config", made.ports, tmp_path),
            running_envoy(http, _bootstrap(made), made.ports, tmp_path),
        ):
            for version in RATES:
                while (await made.ask(version)).status != 200:
                    await asyncio.sleep(0.2)
            made.answers.clear()
            yield made


def _bootstrap(site: Site) -> dict[str, Any]:
    ports = site.ports
    return bootstrap(Gateway(node_id="edge", xds_port=ports.xds, admin_port=ports.gateway_admin))


def _write(site: Site, folder: Path) -> None:
    ports = site.ports
    endpoints = {pod.version: f"{{address: 127.0.0.1, port: {pod.port}}}" for pod in site.fleet.pods}
    rates = {version: f"{{base_rate: {rate}, contract_rate: {rate}}}" for version, rate in RATES.items()}
    versions = "\n".join(
        f"      {version}: {{endpoints: [{endpoint}], rate: {rates[version]}}}"
        for version, endpoint in endpoints.items()
    )
    (folder / "tenants").mkdir(parents=True)
    (folder / "tidegate.yaml").write_text(
        f"""\
listener: {{address: 127.0.0.1, port: {ports.gateway}}}
gateways: {{stats: ['http://127.0.0.1:{ports.gateway_admin}/stats/prometheus']}}
admin: {{port: {ports.admin}}}
xds: {{port: {ports.xds}}}
signals: {{interval_s: 0.5}}
defaults: {{breaker: {{open_s: {OPEN_S}}}}}
slos: {{'chat:v4': {{ttft_s: {SLO_S}}}}}
models:
  chat:
    default_version: v1
    versions:
{versions}
routes: [{{id: chat, path: {PATH}}}]
"""
    )
    digest = hashlib.sha256(API_KEY.encode()).hexdigest()
    (folder / "tenants" / "acme.yaml").write_text(
        f"id: acme\nidentity: {{api_keys: [{{sha256: '{digest}'}}]}}\n"
    )


def statuses(answers: Sequence[Answer]) -> set[int]:
    return {answer.status for answer in answers}


async def test_a_failing_version_rests_and_comes_back(site: Site) -> None:
    async with site.load(v1=50, v2=40):
        await asyncio.sleep(2)
        assert statuses(site.answers["v1"]) == {200}
        broken_s = time.monotonic()
        await site.fail("v1", failure_ratio=0.6)
        await site.until("v1", "open", within_s=5)
        await asyncio.sleep(1)
        refused = [answer for answer in site.answers["v1"] if answer.status == 503]
        assert refused[0].at_s - broken_s < 5
        assert all(a.code == "circuit_open" and int(a.retry_after or 0) >= 1 for a in refused)
        at_rest = [answer for answer in site.answers["v1"] if answer.at_s > refused[0].at_s + 0.3]
        assert statuses(at_rest) == {503}, "nothing passes an open breaker"
        assert max(int(answer.retry_after or 0) for answer in refused) <= OPEN_S * 1.2 + 1
        await site.fail("v1", failure_ratio=0.0)
        await site.until("v1", "half-open", within_s=OPEN_S * 1.2 + 2)
        tried_from_s = time.monotonic()
        await site.until("v1", "closed", within_s=12)
        tries = [a for a in site.answers["v1"] if a.at_s >= tried_from_s]
        assert 5 <= sum(answer.status == 200 for answer in tries) < len(tries) / 2, "a few only"
        await asyncio.sleep(1)
        closed_s = time.monotonic()
        await asyncio.sleep(1)
        assert statuses([a for a in site.answers["v1"] if a.at_s > closed_s]) == {200}
        other = await site.breaker("v2")
    assert statuses(site.answers["v2"]) == {200, 429}, "the other version never noticed"
    assert [answer.status for answer in site.answers["v2"]].count(429) > 50, "but for its own limit"
    assert (other["state"], other["inputs"]["failures"]) == ("closed", 0.0), "our refusals are no failures"


async def test_one_failure_opens_nothing_and_25_in_a_row_do(site: Site) -> None:
    await site.fail("v3", failure_ratio=1.0, failure_status=429)
    for _ in range(30):
        assert (await site.ask("v3")).status == 429
    await site.fail("v3", failure_ratio=1.0, failure_status=500)
    assert (await site.ask("v3")).status == 500
    await asyncio.sleep(1.5)
    assert (await site.breaker("v3"))["state"] == "closed"
    for _ in range(24):
        await site.ask("v3")
    await site.until("v3", "open", within_s=3)
    await asyncio.sleep(0.3)
    refused = await site.ask("v3")
    assert (refused.status, refused.code) == (503, "circuit_open")


async def test_a_version_that_misses_its_slo_rests(site: Site) -> None:
    async with site.load(v4=50):
        await asyncio.sleep(1)
        await site.fail("v4", latency_factor=60.0)
        await site.until("v4", "open", within_s=15)
        made = await site.breaker("v4")
    assert "slow" in made["reason"]
    assert made["threshold_s"] == SLO_S
    assert statuses(site.answers["v4"]) <= {200, 503}
