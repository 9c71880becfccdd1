"""The policy service as processes: inside `serve`, alone on a port several share, reloaded and killed."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_asks import Gateway, Heard
from redis_server import RedisServer, free_port

from controlplane.app.quotas import QuotasError
from controlplane.app.run import Ports, control_plane

POOL = "chat:v1"
MAIN = """\
gateways: {{min: 1, max: 2}}
policy: {policy}
models:
  chat: {{versions: {{v1: {{endpoints: [{{address: 127.0.0.1, port: 9, metrics: false}}]}}}}}}
routes:
  - {{path: /v1/chat/completions, id: chat}}
"""
ANY = Ports(admin_port=0, xds_port=0, policy_port=0)


def write(folder: Path, *, tokens: int | None, policy: str = "{}") -> Path:
    (folder / "tenants").mkdir(exist_ok=True)
    (folder / "tidegate.yaml").write_text(MAIN.format(policy=policy))
    quotas = "" if tokens is None else f"quotas: {{daily: [{{model_version: v1, tokens: {tokens}}}]}}\n"
    (folder / "tenants/acme.yaml").write_text(f"id: acme\nidentity: {{jwt: [acme]}}\n{quotas}")
    return folder


async def until(gateway: Gateway, tokens: int, *, passed: bool, within_s: float = 5.0) -> Heard:
    """Ask until the answer changes."""
    deadline_s = time.monotonic() + within_s
    for number in range(1_000_000):
        heard = await gateway.reserve("acme", POOL, f"until-{number}", tokens)
        if heard.passed is passed:
            return heard
        assert time.monotonic() < deadline_s, f"still {heard}"
        await asyncio.sleep(0.1)
    raise AssertionError


async def test_serve_counts_quotas_and_a_raised_one_takes_effect_within_five_seconds(tmp_path: Path) -> None:
    write(tmp_path, tokens=1000)
    async with control_plane(tmp_path, ANY) as plane:
        assert plane.sockets.policy_port is not None
        assert plane.loop.policy is not None
        assert plane.loop.policy.policy_service.port == plane.sockets.policy_port  # as gateways are told
        async with Gateway(plane.sockets.policy_port) as gateway:
            assert (await gateway.reserve("acme", POOL, "r1", 1000)).passed
            assert not (await gateway.reserve("acme", POOL, "r2", 1)).passed
            write(tmp_path, tokens=2000)
            await until(gateway, 1000, passed=True)
            write(tmp_path, tokens=10)
            await until(gateway, 0, passed=False)
            write(tmp_path, tokens=None)
            await until(gateway, 10**9, passed=True)


async def test_serve_without_quotas_opens_no_port(tmp_path: Path) -> None:
    async with control_plane(write(tmp_path, tokens=None), ANY) as plane:
        assert plane.sockets.policy_port is None


async def test_a_port_that_is_taken_ends_the_start_with_a_reason(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        write(tmp_path, tokens=1000)
        ports = Ports(admin_port=0, xds_port=0, policy_port=other.getsockname()[1])
        with pytest.raises(QuotasError, match="policy service"):
            async with control_plane(tmp_path, ports):
                pass


@pytest.fixture
def server(redis_path: Path, tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(redis_path, tmp_path).start()
    yield server
    server.stop()


class Processes:
    """`tidegate policy`, as often as wanted, on one port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.running: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "controlplane.cli", "policy", "--config", str(self.folder)]
        process = subprocess.Popen(
            [*command, "--port", str(self.port), "--metrics-port", "0"], stderr=subprocess.PIPE, text=True
        )
        self.running.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("tidegate policy:"):
                assert f"quotas on port {self.port}" in line
                assert "metrics http://127.0.0.1:" in line
                return process
        raise AssertionError("it ended")

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.wait(10)
            assert process.stderr is not None
            process.stderr.close()


@pytest.fixture
def processes(tmp_path: Path, server: RedisServer) -> Iterator[Processes]:
    folder = tmp_path / "config"
    folder.mkdir()
    # a busy machine is no outage
    policy = f"{{store: redis, redis: {{url: '{server.url}'}}, timeout_ms: 500, embedded: false}}"
    processes = Processes(write(folder, tokens=1000, policy=policy))
    yield processes
    processes.end()


@pytest.mark.redis
async def test_processes_share_a_port_and_the_counts_and_one_may_be_killed(processes: Processes) -> None:
    first, _second = processes.start(), processes.start()
    passed = 0
    for number in range(12):
        async with Gateway(processes.port) as gateway:  # the kernel gives it one of the two
            passed += (await gateway.reserve("acme", POOL, f"r{number}", 100)).passed
    assert passed == 10
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    async with Gateway(processes.port) as gateway:
        assert not (await gateway.reserve("acme", POOL, "after", 100)).passed
        for number in range(10):
            await gateway.settle("acme", POOL, f"r{number}", 50)
        assert (await gateway.reserve("acme", POOL, "more", 500)).passed
        assert not (await gateway.reserve("acme", POOL, "most", 1)).passed


@pytest.mark.redis
async def test_a_process_alone_reloads_and_ends_when_it_is_told(processes: Processes) -> None:
    process = processes.start()
    async with Gateway(processes.port) as gateway:
        assert (await gateway.reserve("acme", POOL, "r1", 1000)).passed
        assert not (await gateway.reserve("acme", POOL, "r2", 1)).passed
        text = (processes.folder / "tenants/acme.yaml").read_text()
        (processes.folder / "tenants/acme.yaml").write_text(text.replace("1000", "1500"))
        await until(gateway, 500, passed=True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
