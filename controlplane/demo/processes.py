"""The demo's child processes: a real Envoy and a real control plane, both ended with their contexts."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from controlplane.demo.world import Ports
from controlplane.envoy_binary import find_envoy

END_WITHIN_S = 6.0


class DidNotStart(Exception):
    """A child process ended, or was not ready in time; the message has the end of its log."""


def free_ports() -> Ports:
    """Four ports that were free a moment ago.

    Below the range the system takes for outgoing connections: those could be gone before a server has them.
    """
    numbers = []
    for number in random.sample(range(20_000, 32_000), 500):
        with suppress(OSError), socket.create_server(("127.0.0.1", number)):
            numbers.append(number)
        if len(numbers) == 4:
            return Ports(gateway=numbers[0], gateway_admin=numbers[1], admin=numbers[2], xds=numbers[3])
    raise DidNotStart("no free ports between 20000 and 32000")


@asynccontextmanager
async def running(
    command: list[str], log: Path, *, ready: Callable[[], Any], within_s: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`command` with all its output in `log`, from the moment `ready()` is true."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        await _until_ready(process, log, ready, within_s)
        yield process
    finally:
        await _end(process)


async def _until_ready(
    process: asyncio.subprocess.Process, log: Path, ready: Callable[[], Any], within_s: float
) -> None:
    deadline_s = asyncio.get_running_loop().time() + within_s
    while not await ready():
        late = asyncio.get_running_loop().time() > deadline_s
        if process.returncode is not None or late:
            what = "was not ready in time" if late else f"ended with status {process.returncode}"
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
            raise DidNotStart(f"{log.stem} {what}:\n{tail}")
        await asyncio.sleep(0.05)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_WITHIN_S)
    if process.returncode is None:
        process.kill()
        await process.wait()


@asynccontextmanager
async def running_envoy(
    http: aiohttp.ClientSession, bootstrap: dict[str, Any], ports: Ports, folder: Path
) -> AsyncIterator[str]:
    """A real Envoy that follows the control plane; yields its version."""
    path = folder / "envoy.json"  # JSON is YAML too
    path.write_text(json.dumps(bootstrap, indent=1), encoding="utf-8")
    admin = f"http://127.0.0.1:{ports.gateway_admin}"
    command = [str(find_envoy()), "-c", str(path), "--use-dynamic-base-id", "--concurrency", "2"]
    command += ["--log-level", "warning", "--drain-time-s", "1", "--parent-shutdown-time-s", "2"]
    async with running(
        command, folder / "envoy.log", ready=lambda: answers(http, f"{admin}/ready"), within_s=30
    ):
        async with http.get(f"{admin}/server_info") as response:
            version = str((await response.json(content_type=None))["version"]).split("/")
        yield version[1] if len(version) > 1 else version[0]


@asynccontextmanager
async def running_control_plane(
    http: aiohttp.ClientSession, directory: Path, ports: Ports, folder: Path
) -> AsyncIterator[None]:
    """`tidegate serve` in a process of its own."""
    command = [sys.executable, "-m", "controlplane.cli", "serve", "--config", str(directory)]
    url = f"http://127.0.0.1:{ports.admin}/readyz"
    async with running(command, folder / "tidegate.log", ready=lambda: answers(http, url), within_s=30):
        yield


async def answers(http: aiohttp.ClientSession, url: str) -> bool:
    """Whether `url` answers 200 now."""
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=2)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
