"""Wiring of a process that is the policy service and nothing else (`tidegate policy`)."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from controlplane import config
from controlplane.app.quotas import Quotas, QuotasError
from controlplane.app.run import ConfigRefused
from controlplane.model.policy import Mode, Policy
from controlplane.serve.changes import Change, Changes
from controlplane.serve.log import Bridge, Logger, log_changes, log_problems, make_logger


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a policy service listens. `port` is None while no tenant has a quota."""

    port: int | None
    metrics_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSocket:
    """Where `/metrics`, `/healthz` and `/readyz` are; port 0: a free one."""

    address: str
    port: int


async def serve_policy(
    directory: Path,
    *,
    port: int | None,
    metrics: MetricsSocket | None,
    on_ready: Callable[[Listening], None],
) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigRefused, QuotasError, or OSError for a taken metrics port."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    loaded = config.load(directory)
    if loaded.policy is None:
        raise ConfigRefused(loaded)
    logger = make_logger(sys.stderr, clock=time.time)
    bridge = Bridge(logger)
    logging.getLogger().addHandler(bridge)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)

    def note(change: Change) -> None:
        log_changes(logger, Changes(lines=[change]))

    quotas = Quotas(clock=time.time, registry=registry, logger=logger, note=note, is_alone=True)
    try:
        log_problems(logger, loaded.problems, in_force=True)
        await _take(quotas, loaded.policy, port)
        async with _metrics(quotas, registry, metrics) as metrics_url:
            on_ready(Listening(port=quotas.port, metrics_url=metrics_url))
            watching = asyncio.create_task(_watch(directory, loaded, quotas, port, logger))
            stopping = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([stopping, watching], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            watching.cancel()
            for task in done:
                task.result()  # the watcher does not end by itself: an error ends the process
    finally:
        logging.getLogger().removeHandler(bridge)
        await quotas.close()


async def _take(quotas: Quotas, policy: Policy, port: int | None) -> None:
    await quotas.apply(policy, port=port)
    mode: Mode = policy.mode
    quotas.follow(lambda: mode)


async def _watch(
    directory: Path, loaded: config.Loaded, quotas: Quotas, port: int | None, logger: Logger
) -> None:
    in_force = loaded.policy
    async for newer in config.watch(directory, loaded):
        outcome = "rejected" if newer.has_errors else "unchanged"
        if newer.policy is not None and newer.policy != in_force:
            try:
                await _take(quotas, newer.policy, port)
            except QuotasError as error:
                logger.error("config_problem", path="policy", message=str(error))
            else:
                in_force, outcome = newer.policy, "applied"
        log_problems(logger, newer.problems, in_force=outcome == "applied")
        logger.info("config", outcome=outcome, problems=len(newer.problems))


@asynccontextmanager
async def _metrics(
    quotas: Quotas, registry: CollectorRegistry, socket: MetricsSocket | None
) -> AsyncIterator[str | None]:
    if socket is None:
        yield None
        return

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4}
        )

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def readyz(_request: web.Request) -> web.Response:
        """Ready without its store, too: then it judges alone."""
        why = quotas.degraded_why
        return web.json_response({"ready": True, "degraded": why is not None, "reason": why})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, socket.address, socket.port).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
