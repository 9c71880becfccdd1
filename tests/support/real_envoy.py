"""A real Envoy in a process of its own, for as long as a test needs it."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp


def free_port() -> int:
    """A TCP port that was free a moment ago, below those that the system gives to outgoing connections."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


@dataclass(frozen=True, slots=True, kw_only=True)
class RealEnvoy:
    """A running Envoy and where its admin interface is."""

    pid: int
    admin_url: str
    log_file: Path
    access_file: Path

    async def admin(self, path: str) -> str:
        async with aiohttp.ClientSession() as http, http.get(f"{self.admin_url}{path}") as answer:
            return await answer.text()

    async def stat(self, name: str) -> int:
        """The value of one counter or gauge; 0 when Envoy has none of that name."""
        found = json.loads(await self.admin(f"/stats?format=json&filter=^{name.replace('.', '[.]')}$"))
        return sum(int(entry["value"]) for entry in found["stats"] if entry.get("name") == name)

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def access_log(self) -> list[dict[str, Any]]:
        """One entry for each finished request; Envoy writes them with up to a second's delay."""
        lines = self.access_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@asynccontextmanager
async def running(
    binary: Path, config: Mapping[str, Any], folder: Path, *, until: str = "LIVE"
) -> AsyncIterator[RealEnvoy]:
    """Start Envoy with `config`, wait until its admin interface says `until`, stop it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    config_file = folder / "envoy.json"
    config_file.write_text(json.dumps(dict(config)), encoding="utf-8")
    port = config["admin"]["address"]["socket_address"]["port_value"]
    arguments = ["-c", str(config_file), "--use-dynamic-base-id", "--concurrency", "2", "-l", "warning"]
    arguments += ["--drain-time-s", "1", "--parent-shutdown-time-s", "2", "--file-flush-interval-msec", "200"]
    out, err = (folder / "access.log").open("wb"), (folder / "envoy.log").open("wb")
    process = await asyncio.create_subprocess_exec(str(binary), *arguments, stdout=out, stderr=err)
    out.close()
    err.close()
    envoy = RealEnvoy(
        pid=process.pid,
        admin_url=f"http://127.0.0.1:{port}",
        log_file=folder / "envoy.log",
        access_file=folder / "access.log",
    )
    try:
        await _answering(envoy, process, until)
        yield envoy
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 3)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _answering(envoy: RealEnvoy, process: asyncio.subprocess.Process, until: str) -> None:
    for _ in range(200):
        if process.returncode is not None:
            raise AssertionError(f"Envoy ended with {process.returncode}:\n{envoy.log()[-4000:]}")
        try:
            if (await envoy.admin("/ready")).startswith(until):
                return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)
    raise AssertionError(f"Envoy was not ready within 10 s:\n{envoy.log()[-4000:]}")
