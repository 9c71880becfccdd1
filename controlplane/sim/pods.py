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
from dataclasses import asdict
from pathlib import Path

from aiohttp import web

from controlplane.sim import dcgm_text, exposition, transformer
from controlplane.sim.dcgm_text import Gpu
from controlplane.sim.fleet import Fleet, FleetSpec, Pod, PodSpec
from controlplane.sim.sim_backend import SimBackend
from controlplane.sim.surface import Backend, Surface

__all__ = ["Fleet", "FleetSpec", "Pod", "PodSpec", "running_pods", "serving"]


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
    """The fleet in a process of its own, ended with the context.

    Raises RuntimeError when it does not start, ModelMissing when a real pod lacks its weights.
    """
    if any(pod.real for pod in spec.pods):
        transformer.weights_path()
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
