"""Simulated vLLM pods on real sockets: a spec in, servers with ports out.

`python -m controlplane.sim.pods --spec FILE.json` runs them in a process of their own, so that they share no
event loop with what they are meant to test, prints one JSON line with their ports, and ends on SIGTERM.
`running_pods` is the same as an async context manager; its process also ends when the parent is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from controlplane.sim import dcgm_text, exposition, vllm_text
from controlplane.sim.dcgm_text import Gpu, Layout
from controlplane.sim.engine import Engine, Output, TooLong
from controlplane.sim.exposition import Family
from controlplane.sim.generation import Generation
from controlplane.sim.openai_api import Ask, Refused
from controlplane.sim.physics import Faults, Physics
from controlplane.sim.surface import Backend, Identity, Surface

TOKENS = (
    "The",
    " tide",
    " comes",
    " in",
    " and",
    " the",
    " gate",
    " lets",
    " it",
    " through",
    " slowly",
    ".",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """One simulated server. `aliases`: further model names it answers to."""

    name: str
    model: str
    version: str
    port: int = 0  # 0: any free one
    namespace: str = "default"
    gpus: int = 1
    aliases: tuple[str, ...] = ()
    real: bool = False  # a real transformer instead of the physics (extra `real-model`)
    physics: Physics = field(default_factory=Physics)

    @property
    def identity(self) -> Identity:
        models = (self.model, f"{self.model}:{self.version}", *self.aliases)
        return Identity(name=self.name, models=models, namespace=self.namespace, gpus=self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """The servers of one process, and the DCGM exporter of the node they run on."""

    pods: tuple[PodSpec, ...]
    host: str = "127.0.0.1"
    time_scale: float = 1.0  # 10: everything ten times as fast
    dcgm_port: int | None = 0  # None: no exporter beside the pods' own /dcgm/metrics
    dcgm_layout: Layout = Layout.POD
    idle_gpus: int = 0  # GPUs of the node that nobody uses

    @staticmethod
    def from_json(document: dict[str, Any]) -> FleetSpec:
        """The inverse of `dataclasses.asdict`; an unknown field is a TypeError."""
        pods = tuple(
            PodSpec(
                **{
                    **pod,
                    "physics": Physics(**pod.get("physics", {})),
                    "aliases": tuple(pod.get("aliases", ())),
                }
            )
            for pod in document["pods"]
        )
        layout = Layout(document.get("dcgm_layout", Layout.POD))
        return FleetSpec(**{**document, "pods": pods, "dcgm_layout": layout})


class SimBackend:
    """An Engine on the event loop's clock."""

    def __init__(self, physics: Physics, *, model: str) -> None:
        self.max_model_len = physics.max_model_len
        self._physics = physics
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._engine = Engine(physics, now_s=self._loop.time())
        self._generations: dict[int, Generation] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def faults(self) -> Faults:
        return self._engine.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._engine.faults = faults
        self._advance()

    def begin(self, ask: Ask) -> Generation:
        self._advance()
        try:
            request = self._engine.submit(
                self._loop.time(), prompt_tokens=ask.prompt_tokens, max_tokens=ask.max_tokens
            )
        except TooLong as error:
            raise Refused(400, str(error)) from None
        generation = Generation(request=request, prompt_tokens=ask.prompt_tokens)
        self._generations[request] = generation
        self._arm()
        return generation

    def abort(self, generation: Generation) -> None:
        if self._generations.pop(generation.request, None) is not None:
            self._engine.abort(generation.request)

    def ready(self) -> bool:
        return self._engine.ready(self._loop.time())

    def restart(self) -> None:
        lost, self._generations = self._generations, {}
        faults = self._engine.faults
        self._engine = Engine(self._physics, now_s=self._loop.time())
        self._engine.faults = faults
        for generation in lost.values():
            generation.push("", "error")

    def metrics(self) -> list[Family]:
        self._advance()
        engine, physics = self._engine, self._physics
        now = vllm_text.Occupancy(
            running=engine.running,
            waiting=engine.waiting,
            kv_usage_ratio=engine.kv_usage_ratio,
            kv_blocks=physics.kv_blocks,
            block_tokens=physics.block_tokens,
        )
        return vllm_text.families(engine.stats, now, model_name=self._model)

    def busy_ratio(self) -> float:
        self._advance()
        return self._engine.busy_ratio(self._loop.time())

    def state(self) -> dict[str, object]:
        return {
            "ready": self.ready(),
            "running": self._engine.running,
            "waiting": self._engine.waiting,
            "kv_usage_ratio": self._engine.kv_usage_ratio,
            "busy_ratio": self.busy_ratio(),
        }

    def _advance(self) -> None:
        for output in self._engine.advance(self._loop.time()):
            self._deliver(output)
        self._arm()

    def _deliver(self, output: Output) -> None:
        generation = self._generations.get(output.request)
        if generation is None:
            return
        generation.push(TOKENS[len(generation.tokens) % len(TOKENS)], output.finish)
        if output.finish is not None:
            del self._generations[output.request]

    def _arm(self) -> None:
        next_s = self._engine.next_s()
        if self._timer is None and next_s is not None:
            self._timer = self._loop.call_at(next_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._advance()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Where one simulated server listens."""

    name: str
    model: str
    version: str
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Where the servers of one process listen; `dcgm_url` is the exporter's /metrics."""

    pods: tuple[Pod, ...]
    dcgm_url: str | None

    def pod(self, name: str) -> Pod:
        return next(pod for pod in self.pods if pod.name == name)

    @staticmethod
    def from_json(document: dict[str, Any]) -> Fleet:
        return Fleet(pods=tuple(Pod(**pod) for pod in document["pods"]), dcgm_url=document["dcgm_url"])


@asynccontextmanager
async def serving(spec: FleetSpec) -> AsyncIterator[Fleet]:
    """Serve the fleet on this event loop while the context is open."""
    async with AsyncExitStack() as stack:
        surfaces = [_surface(pod, spec) for pod in spec.pods]
        pods = []
        for surface, pod in zip(surfaces, spec.pods, strict=True):
            port = await stack.enter_async_context(_site(surface.app(), spec.host, pod.port))
            pods.append(Pod(name=pod.name, model=pod.model, version=pod.version, host=spec.host, port=port))
        dcgm_url = None
        if spec.dcgm_port is not None:
            exporter = _exporter(surfaces, spec)
            port = await stack.enter_async_context(_site(exporter, spec.host, spec.dcgm_port))
            dcgm_url = f"http://{spec.host}:{port}/metrics"
        yield Fleet(pods=tuple(pods), dcgm_url=dcgm_url)


def _surface(pod: PodSpec, spec: FleetSpec) -> Surface:
    backend: Backend
    if pod.real:
        from controlplane.sim.real_model import RealBackend

        backend = RealBackend(pod.physics, model=pod.model)
    else:
        backend = SimBackend(pod.physics.faster(spec.time_scale), model=pod.model)
    return Surface(backend, pod.identity, layout=spec.dcgm_layout)


def _exporter(surfaces: list[Surface], spec: FleetSpec) -> web.Application:
    async def metrics(request: web.Request) -> web.Response:
        gpus: list[Gpu] = []
        for surface in surfaces:
            gpus += surface.gpu_list(first=len(gpus))
        gpus += [Gpu(index=len(gpus) + number, pod=None) for number in range(spec.idle_gpus)]
        text = exposition.text(dcgm_text.families(gpus, layout=spec.dcgm_layout))
        return web.Response(body=text.encode(), headers={"Content-Type": exposition.CONTENT_TYPE})

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    return app


@asynccontextmanager
async def _site(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    listening = socket.create_server((host, port), backlog=1024)
    try:
        await web.SockSite(runner, listening).start()
        yield listening.getsockname()[1]
    finally:
        await runner.cleanup()
        listening.close()


@asynccontextmanager
async def running_pods(spec: FleetSpec, *, ready_within_s: float = 30.0) -> AsyncIterator[Fleet]:
    """The fleet in a process of its own, ended with the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controlplane.sim.pods", "--spec", "-"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"OPENBLAS_NUM_THREADS": "1", **os.environ},  # more threads only fight over a small machine
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(asdict(spec)).encode() + b"\n")
        line = await asyncio.wait_for(process.stdout.readline(), ready_within_s)
        if not line:
            raise RuntimeError(f"the simulated pods did not start (exit status {await process.wait()})")
        yield Fleet.from_json(json.loads(line))
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 5.0)
    except TimeoutError:
        process.kill()
        await process.wait()


def _end_at_eof(end: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        end.set()


async def _serve_until_told(spec: FleetSpec, *, parent_pipe: bool) -> None:
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    if parent_pipe:  # a parent that is gone, however it went, closes our standard input
        loop.add_reader(sys.stdin.fileno(), _end_at_eof, end)
    async with serving(spec) as fleet:
        print(json.dumps(asdict(fleet)), flush=True)
        await end.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulated vLLM pods on real sockets.")
    parser.add_argument("--spec", required=True, help="JSON file; '-': first line of standard input")
    path = parser.parse_args().spec
    document = json.loads(sys.stdin.readline() if path == "-" else Path(path).read_text(encoding="utf-8"))
    asyncio.run(_serve_until_told(FleetSpec.from_json(document), parent_pipe=path == "-"))


if __name__ == "__main__":
    main()
