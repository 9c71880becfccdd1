"""The whole process with 10,000 keys: from its start to the first complete snapshot, and what it costs idle.

    python -m bench.fleet.process

500 tenants on 20 versions, written as YAML. `frozen`: the loop with signals that stand still, in a process
without sources; `scraping`: `tidegate serve` beside 20 simulated pods and their GPU exporter, at one interval
a second. Prints a JSON object.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from bench.fleet.usage import cpu_s, rss_bytes
from bench.tick import TENANTS, VERSIONS, observation, policy
from controlplane.app.loop import Loop, Parts
from controlplane.assets import read_asset
from controlplane.demo.processes import free_ports
from controlplane.model.policy import Policy
from controlplane.model.signal import Observation
from controlplane.serve.metrics import Metrics
from controlplane.sim.fleet import FleetSpec, PodSpec
from controlplane.sim.pods import Fleet, running_pods
from controlplane.xds.lua_code import lua_code
from controlplane.xds.translate import Translator

IDLE_S = 8.0


class Still:
    """A reader whose values never change."""

    def __init__(self, world: Policy) -> None:
        self._seen = observation(world, 0, {})

    async def read(self, now_s: float, *, gateways: int = 1) -> Observation:
        return replace(self._seen, now_s=now_s, gateways=gateways)

    async def read_behind_push(self) -> None: ...
    async def retarget(self, policy: Policy) -> None: ...
    async def close(self) -> None: ...


class Quiet:
    """Events that nobody reads."""

    def __getattr__(self, _: str) -> Any:
        return lambda *args, **named: None


async def frozen() -> float:
    """Share of one core that the loop takes while no signal moves."""
    world = policy()
    loop = Loop(
        Parts(
            clock=time.time,
            open_reader=Still,
            translator=Translator(lua_code(read_asset)),
            metrics=Metrics(CollectorRegistry(), version="bench"),
            events=Quiet(),
        )
    )
    await loop.apply(world)
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(5.0)  # until every key has settled
    published, started_s, spent_s = loop.published, time.monotonic(), time.process_time()
    await asyncio.sleep(IDLE_S)
    share = (time.process_time() - spent_s) / (time.monotonic() - started_s)
    running.cancel()
    assert loop.published == published, "something was published though nothing moved"
    return share


def write_configuration(folder: Path, fleet: Fleet, ports: Any) -> None:
    """What an operator of 10,000 keys has: 20 versions of one model, 500 tenants with a key each."""
    versions = "\n".join(
        f"      v{n:02d}: {{endpoints: [{{address: 127.0.0.1, port: {pod.port}, pod: pod-{n:02d}}}],"
        " rate: {guards: off}}"
        for n, pod in enumerate(fleet.pods)
    )
    (folder / "tenants").mkdir()
    (folder / "tidegate.yaml").write_text(
        f"listener: {{address: 127.0.0.1, port: {ports.gateway}}}\n"
        f"admin: {{port: {ports.admin}}}\nxds: {{port: {ports.xds}}}\n"
        f"signals: {{gpu_exporters: ['{fleet.dcgm_url}']}}\n"
        f"models:\n  chat:\n    default_version: v00\n    versions:\n{versions}\n"
        "routes: [{id: chat, path: /v1/chat/completions}]\n"
    )
    for number in range(TENANTS):
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        tenant = f"id: tenant-{number:04d}\nidentity: {{api_keys: [{{sha256: '{digest}'}}]}}\n"
        (folder / "tenants" / f"tenant-{number:04d}.yaml").write_text(tenant)


async def whole() -> dict[str, Any]:
    """Seconds to the first snapshot, then CPU and memory of the idle process."""
    pods = tuple(PodSpec(name=f"pod-{n:02d}", model="chat", version=f"v{n:02d}") for n in range(VERSIONS))
    ports = free_ports()
    async with aiohttp.ClientSession() as http, running_pods(FleetSpec(pods=pods)) as fleet:
        with tempfile.TemporaryDirectory() as folder:
            write_configuration(Path(folder), fleet, ports)
            line = [sys.executable, "-m", "controlplane.cli", "serve", "--config", folder]
            started_s = time.monotonic()
            log = open(Path(folder) / "log", "wb")  # noqa: SIM115
            process = await asyncio.create_subprocess_exec(*line, stdout=log, stderr=log)
            try:
                await _ready(http, f"http://127.0.0.1:{ports.admin}/readyz", process)
                cold_s = time.monotonic() - started_s
                cold_cpu_s = cpu_s(process.pid)
                await asyncio.sleep(5.0)
                before_s, started_s = cpu_s(process.pid), time.monotonic()
                await asyncio.sleep(IDLE_S)
                share = (cpu_s(process.pid) - before_s) / (time.monotonic() - started_s)
                return {
                    "cold_start_s": cold_s,
                    "cold_start_cpu_s": cold_cpu_s,
                    "scraping_cpu_ratio": share,
                    "rss_bytes": rss_bytes(process.pid),
                }
            finally:
                process.terminate()
                await process.wait()
                log.close()


async def _ready(http: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        while process.returncode is None:
            try:
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.02)
    raise RuntimeError(f"the control plane ended with status {process.returncode}")


if __name__ == "__main__":
    found = asyncio.run(whole())
    found["frozen_cpu_ratio"] = asyncio.run(frozen())
    print(json.dumps(found))
