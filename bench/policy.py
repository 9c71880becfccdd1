"""The policy service over gRPC, beside an empty service of the same kind on the same machine.

    uv run python -m bench.policy [--seconds 4] [--report FILE.json]

Every server is a process of its own, or two on one port; the client is this process, with a bounded number
of calls in flight. What counts is the server's CPU time for a call (Linux), as a ratio to the empty echo's:
calls per second depend on who else uses the machine, the client first of all.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from controlplane.pb.tidegate_ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest
from controlplane.report import Criterion, Report, write

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
IN_FLIGHT, CHANNELS = 32, 4
ROOT = Path(__file__).resolve().parent.parent
MAIN = """\
policy: {policy}
models:
  chat: {{versions: {{v1: {{endpoints: [{{address: 127.0.0.1, port: 9, metrics: false}}]}}}}}}
routes:
  - {{path: /v1/chat/completions, id: chat}}
"""
TENANT = """\
id: acme
identity: {jwt: [acme]}
quotas:
  daily: [{model_version: v1, tokens: 900000000000000}]
  monthly: [{model_version: v1, tokens: 900000000000000}]
"""
ECHO = """\
import asyncio, sys, grpc
async def answer(message, context):
    return message
async def main():
    server = grpc.aio.server(options=[("grpc.so_reuseport", 1)])
    methods = {"ShouldRateLimit": grpc.unary_unary_rpc_method_handler(answer)}
    name = "envoy.service.ratelimit.v3.RateLimitService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    print("ready", file=sys.stderr, flush=True)
    await server.wait_for_termination()
asyncio.run(main())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one server did."""

    per_s: float
    cpu_us: float | None  # of the servers, for a call; None: the system does not tell
    p50_ms: float
    p99_ms: float


def message(op: str, number: int) -> bytes:
    """A reservation, or its settlement."""
    words = {"op": op, "tenant": "acme", "pool": "chat:v1", "route": "chat", "id": f"bench-{number}"}
    entries = [RateLimitDescriptor.Entry(key=key, value=value) for key, value in words.items()]
    descriptor = RateLimitDescriptor(entries=entries)
    descriptor.hits_addend.value = 1000 if op == "reserve" else 400
    return RateLimitRequest(domain="tidegate", descriptors=[descriptor]).SerializeToString()


async def load(port: int, seconds: float, cpu_s: Callable[[], float | None]) -> Figures:
    """Reserve and settle, over and over, `IN_FLIGHT` at a time. `cpu_s`: the servers' CPU seconds so far."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(CHANNELS)]
    calls = [channel.unary_unary(METHOD) for channel in channels]
    spent_s: list[float] = []
    number = 0

    async def one(place: int, until_s: float, *, counted: bool) -> None:
        nonlocal number
        while time.perf_counter() < until_s:
            number += 1
            mine = number
            for op in ("reserve", "settle"):
                started_s = time.perf_counter()
                await calls[place % CHANNELS](message(op, mine), timeout=10.0)
                if counted:
                    spent_s.append(time.perf_counter() - started_s)

    before_s: float | None = None
    for counted, span_s in ((False, 0.5), (True, seconds)):
        before_s = cpu_s()
        until_s = time.perf_counter() + span_s
        await asyncio.gather(*(one(place, until_s, counted=counted) for place in range(IN_FLIGHT)))
    after_s = cpu_s()
    for channel in channels:
        await channel.close()
    spent_s.sort()
    is_known = before_s is not None and after_s is not None
    return Figures(
        per_s=round(len(spent_s) / seconds),
        cpu_us=round((after_s - before_s) / len(spent_s) * 1e6) if is_known else None,  # type: ignore[operator]
        p50_ms=round(statistics.median(spent_s) * 1000, 2),
        p99_ms=round(spent_s[int(0.99 * len(spent_s)) - 1] * 1000, 2),
    )


@contextmanager
def running(commands: Sequence[Sequence[str]], ready: str) -> Iterator[None]:
    """Processes that have each said `ready` on stderr; ended with the context."""
    processes = [
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    try:
        for process in processes:
            assert process.stderr is not None
            if not any(ready in line for line in process.stderr):
                raise RuntimeError(f"{commands[0][2:4]} did not start")
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=10)


def cpu_s(pids: Sequence[int]) -> float | None:
    """CPU seconds of these processes so far."""
    try:
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    except OSError:
        return None
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, seconds: float) -> dict[str, Figures]:
    """Every arrangement in turn; those with Redis only where there is one."""
    from real_components import find_redis
    from redis_server import RedisServer, free_port

    figures: dict[str, Figures] = {}

    def run(name: str, processes: int, command: Sequence[str], ready: str) -> None:
        port = free_port()
        filled = [[part.replace("PORT", str(port)) for part in command] for _ in range(processes)]
        with running(filled, ready) as pids:
            figures[name] = asyncio.run(load(port, seconds, lambda: cpu_s(pids)))

    def policy(store: str) -> list[str]:
        config = folder / store.partition(",")[0].strip("{ ").replace(" ", "").replace(":", "-")
        (config / "tenants").mkdir(parents=True)
        (config / "tidegate.yaml").write_text(MAIN.format(policy=store))
        (config / "tenants/acme.yaml").write_text(TENANT)
        return [
            sys.executable,
            "-m",
            "controlplane.cli",
            "policy",
            "--config",
            str(config),
            "--port",
            "PORT",
        ]

    run("echo", 1, [sys.executable, "-c", ECHO, "PORT"], "ready")
    run("memory", 1, policy("{store: memory}"), "tidegate policy:")
    path = find_redis()
    if path is not None:
        server = RedisServer(path, folder).start()
        try:
            command = policy(
                f"{{store: redis, redis: {{url: '{server.url}'}}, timeout_ms: 500, embedded: false}}"
            )
            run("redis", 1, command, "tidegate policy:")
            run("redis, two processes", 2, command, "tidegate policy:")
        finally:
            server.stop()
    return figures


def report(figures: dict[str, Figures]) -> Report:
    """`to_echo`: calls a second of CPU, as a part of what the echo has; of wall time without CPU times."""
    echo = figures["echo"]
    ratios = {
        name: round(echo.cpu_us / one.cpu_us if echo.cpu_us and one.cpu_us else one.per_s / echo.per_s, 2)
        for name, one in figures.items()
    }
    details = {name: asdict(one) | {"to_echo": ratios[name]} for name, one in figures.items()}
    criteria = (Criterion.at_least("memory_to_echo", 0.6, ratios["memory"], "of the echo's calls"),)
    return Report(criteria=criteria, details={"in_flight": IN_FLIGHT, "servers": details})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/support")]
    with tempfile.TemporaryDirectory() as folder:
        done = report(measure(Path(folder), given.seconds))
    for name, one in done.details["servers"].items():
        print(
            f"{name:22} {one['cpu_us']:>5} us CPU a call ({one['to_echo']:.2f} of the echo's calls)"
            f"  {one['per_s']:>6} calls/s  p50 {one['p50_ms']} ms  p99 {one['p99_ms']} ms"
        )
    if given.report:
        write(done, given.report)
    raise SystemExit(done.exit_code)


if __name__ == "__main__":
    main()
