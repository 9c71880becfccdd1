"""One server and many subscribers, each side in processes of its own, so that the server's cost shows alone.

    python -m bench.fleet.server tidegate|echo|poison COUNT

`tidegate`: the real cache and discovery service, 1,000 clusters, one of them changed at a time, then a
restart without a change. `echo`: grpc.aio alone; each message out is answered by one in. `poison`: 1,000
changed clusters of which one is rejected. Prints a JSON object; seconds, bytes.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from bench.fleet.clients import ECHO
from bench.fleet.usage import rss_bytes
from controlplane.model.resource import CLUSTER, Resource, Snapshot
from controlplane.serve.ads import AdsOptions, AdsServer
from controlplane.serve.cache import Ack, Cache, Hooks, Push

CLUSTERS, CHANGES, PROCESSES = 1000, 10, 2
BODY_BYTES = 250  # about what a small cluster of ours has


def world(changed: int | None = None, text: str = "") -> Snapshot:
    """1,000 clusters, one of them different."""
    bodies = {f"cluster-{n:04d}": b"x" * BODY_BYTES for n in range(CLUSTERS)}
    if changed is not None:
        bodies[f"cluster-{changed:04d}"] = text.encode().ljust(BODY_BYTES, b"y")
    return Snapshot(resources={CLUSTER: {name: Resource.of(name, body) for name, body in bodies.items()}})


@asynccontextmanager
async def subscribers(port: int, count: int, mode: str) -> AsyncIterator[None]:
    """`count` fake Envoys, in a few processes, until the end of the context."""
    shares = [count // PROCESSES + (part < count % PROCESSES) for part in range(PROCESSES)]
    started = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.fleet.clients", str(port), str(share), mode),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for share in shares
        if share
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            await process.wait()


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


class Plane:
    """The real discovery service and what its hooks saw."""

    def __init__(self) -> None:
        self.acked_at_s: list[float] = []
        self.pushes: list[Push] = []

    async def start(self, port: int = 0) -> int:
        hooks = Hooks(on_push=self.pushes.append, on_ack=self._on_ack)
        self.cache = Cache(clock=time.monotonic, hooks=hooks)
        self.server = AdsServer(self.cache, AdsOptions(address=f"127.0.0.1:{port}", drain_s=0.5))
        return await self.server.start()

    def _on_ack(self, _: Ack) -> None:
        self.acked_at_s.append(time.monotonic())

    async def connected(self, count: int) -> None:
        """Until `count` clients have all they want."""
        await until(lambda: len(self.cache.nodes) == count and self.cache.settled)


async def tidegate(count: int) -> dict[str, Any]:
    plane = Plane()
    port = await plane.start()
    plane.cache.publish(world())
    before_bytes = rss_bytes()
    async with subscribers(port, count, "delta"):
        started_s, cpu_s = time.monotonic(), time.process_time()
        await plane.connected(count)
        found: dict[str, Any] = {
            "initial_s": time.monotonic() - started_s,
            "initial_cpu_s": time.process_time() - cpu_s,
            "rss_bytes_per_subscriber": (rss_bytes() - before_bytes) / count,
        }
        rounds = [await _change(plane, number) for number in range(CHANGES)]
        found |= _summary(rounds, count)
        found["restart"] = await _restart(plane, port, count)
    await plane.server.stop()
    return found


async def _change(plane: Plane, number: int) -> tuple[list[float], float]:
    """Seconds until each ACK of one change, and the server's CPU seconds."""
    await asyncio.sleep(0.3)
    snapshot = world(number, f"change {number}")
    plane.acked_at_s.clear()
    cpu_s, started_s = time.process_time(), time.monotonic()
    plane.cache.publish(snapshot)
    assert await plane.cache.wait_acked(timeout_s=30)
    cost_s = time.process_time() - cpu_s
    return [at_s - started_s for at_s in plane.acked_at_s], cost_s


def _summary(rounds: list[tuple[list[float], float]], count: int) -> dict[str, Any]:
    """The median round: of its median ACK, its last ACK, and its CPU for each subscriber."""
    assert all(len(answered) == count for answered, _ in rounds), [len(a) for a, _ in rounds]
    return {
        "median_ack_s": statistics.median(statistics.median(answered) for answered, _ in rounds),
        "last_ack_s": statistics.median(max(answered) for answered, _ in rounds),
        "cpu_s_per_subscriber": statistics.median(cost_s for _, cost_s in rounds) / count,
    }


async def _restart(plane: Plane, port: int, count: int) -> dict[str, Any]:
    """A new process's cache and server on the same port, with the same configuration."""
    await plane.server.stop()
    published = world(CHANGES - 1, f"change {CHANGES - 1}")
    plane.pushes.clear()
    cpu_s, started_s = time.process_time(), time.monotonic()
    await plane.start(port)
    plane.cache.publish(published)
    await plane.connected(count)
    return {
        "seconds": time.monotonic() - started_s,
        "cpu_s": time.process_time() - cpu_s,
        "sent_bytes": sum(push.size_bytes for push in plane.pushes),
        "responses": len(plane.pushes),
    }


async def poison(count: int) -> dict[str, Any]:
    """Seconds from the publication until the clients hold 999 of 1,000 changed clusters."""
    plane = Plane()
    port = await plane.start()
    plane.cache.publish(world())
    async with subscribers(port, count, "poison"):
        await plane.connected(count)
        bodies = {f"cluster-{n:04d}": b"z" * BODY_BYTES for n in range(CLUSTERS)}
        bodies["cluster-0617"] = b"poison"
        resources = {name: Resource.of(name, body) for name, body in bodies.items()}
        started_s = time.monotonic()
        plane.cache.publish(Snapshot(resources={CLUSTER: resources}))
        assert await plane.cache.wait_acked(timeout_s=30)
        seconds = time.monotonic() - started_s
        status = plane.cache.status()
        held = [
            sum(one.acked_version == resources[one.name].version for one in stream.session.types[0].resources)
            for stream in status.streams
        ]
    await plane.server.stop()
    return {"seconds": seconds, "accepted": min(held), "quarantined": len(status.quarantine)}


async def echo(count: int) -> dict[str, Any]:
    """What grpc.aio alone costs for a message out and a message in on each of the streams."""
    contexts: list[Any] = []
    answered_at_s: list[float] = []

    async def serve(_: Any, context: Any) -> None:
        await context.read()
        contexts.append(context)
        while await context.read() is not grpc.aio.EOF:
            answered_at_s.append(time.monotonic())

    server = grpc.aio.server()
    service, method = ECHO.strip("/").split("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(serve)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    before_bytes = rss_bytes()
    async with subscribers(port, count, "echo"):
        await until(lambda: len(contexts) == count)
        found: dict[str, Any] = {"rss_bytes_per_subscriber": (rss_bytes() - before_bytes) / count}
        rounds = []
        for _ in range(CHANGES):
            await asyncio.sleep(0.3)
            answered_at_s.clear()
            cpu_s, started_s = time.process_time(), time.monotonic()
            await asyncio.gather(*(context.write(b"x" * 400) for context in contexts))
            await until(lambda: len(answered_at_s) == count)
            rounds.append(([at_s - started_s for at_s in answered_at_s], time.process_time() - cpu_s))
        found |= _summary(rounds, count)
    await server.stop(0)
    return found


if __name__ == "__main__":
    scenario = {"tidegate": tidegate, "echo": echo, "poison": poison}[sys.argv[1]]
    print(json.dumps(asyncio.run(scenario(int(sys.argv[2])))))
