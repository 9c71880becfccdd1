"""Wiring of one control-plane process: clocks, files, sockets, and the loop between them."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry, disable_created_metrics

from controlplane import __version__, config
from controlplane.app.events import LoggedEvents
from controlplane.app.loop import Loop, Parts
from controlplane.app.plane import Plane
from controlplane.app.quotas import Quotas, QuotasError
from controlplane.assets import read_asset
from controlplane.model.policy import Mode, Policy, ServerPolicy
from controlplane.serve.admin import admin_app
from controlplane.serve.ads import AdsOptions, AdsServer, TlsFiles
from controlplane.serve.collector import ViewCollector
from controlplane.serve.log import Bridge, Logger, log_problems, make_logger
from controlplane.serve.metrics import Metrics
from controlplane.serve.view import ConfigStatus
from controlplane.signals.catalogue_file import CatalogueError
from controlplane.signals.feed import Feed
from controlplane.xds.lua_code import lua_code
from controlplane.xds.translate import Translator


class ConfigRefused(Exception):
    """There is no valid configuration to start with; `loaded` has every problem."""

    def __init__(self, loaded: config.Loaded) -> None:
        super().__init__("\n".join(str(problem) for problem in loaded.problems))
        self.loaded = loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """Where a running control plane listens."""

    admin_url: str
    xds_address: str
    policy_port: int | None = None  # None: no tenant has a quota, or the service runs elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What the command line puts above the configuration; None: as configured."""

    admin_port: int | None = None
    xds_port: int | None = None
    policy_port: int | None = None


async def serve(directory: Path, ports: Ports, *, on_ready: Callable[[Sockets], None]) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigRefused, or OSError when an address is taken."""
    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stop.set)
    async with control_plane(directory, ports) as plane:
        on_ready(plane.sockets)
        stopping = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([stopping, *plane.tasks], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in done:
            task.result()  # neither the loop nor the watcher ends by itself: an error ends the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A control plane that is up. `tasks` run until they are cancelled, or fail."""

    loop: Loop
    sockets: Sockets
    tasks: Sequence[asyncio.Task[None]]


@asynccontextmanager
async def control_plane(directory: Path, ports: Ports) -> AsyncIterator[Running]:
    """A control plane on `directory`, its servers and its watcher, ended with the context."""
    loaded = config.load(directory)
    if loaded.policy is None:
        raise ConfigRefused(loaded)
    digests: set[str] = set()
    logger = make_logger(sys.stderr, clock=time.time, digests=lambda: digests)
    bridge = Bridge(logger)
    logging.getLogger().addHandler(bridge)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which nobody reads
    registry = CollectorRegistry()
    metrics = Metrics(registry, version=__version__)
    loop = Loop(
        Parts(
            clock=time.time,
            open_reader=lambda policy: Feed(policy, clock=time.time),
            translator=Translator(lua_code(read_asset)),
            metrics=metrics,
            events=LoggedEvents(logger),
        )
    )
    plane = Plane(loop)
    loop.collector = ViewCollector(plane)
    registry.register(loop.collector)
    quotas = Quotas(clock=time.time, registry=registry, logger=logger, note=loop.note)
    quotas.follow(lambda: loop.policy.mode if loop.policy else Mode.ENFORCE)
    served = _Served(loop, quotas, ports.policy_port)
    reloader = _Reloader(directory, served, plane, metrics, logger, digests)
    await reloader.take(loaded)
    server = _with_ports(loaded.policy.server, ports)
    ads = AdsServer(loop.cache, _ads_options(server))
    async with _admin(plane, registry, server, quotas) as admin_url:
        port = await ads.start()
        tasks = [asyncio.create_task(loop.run()), asyncio.create_task(reloader.watch(loaded))]
        try:
            sockets = Sockets(
                admin_url=admin_url,
                xds_address=f"{server.xds_address}:{port}",
                policy_port=quotas.port,
            )
            yield Running(loop=loop, sockets=sockets, tasks=tasks)
        finally:
            logging.getLogger().removeHandler(bridge)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await ads.stop()
            await quotas.close()
            await loop.close()


class _Served:
    """Both that judge by a policy: the loop, and the quotas, whose port goes into what the loop publishes."""

    def __init__(self, loop: Loop, quotas: Quotas, policy_port: int | None) -> None:
        self._loop = loop
        self._quotas = quotas
        self._policy_port = policy_port
        self.in_force: Policy | None = None  # as it was read

    def now_s(self) -> float:
        """Unix seconds."""
        return self._loop.now_s()

    async def apply(self, policy: Policy) -> None:
        """Put it in force in both, or in none. Raises CatalogueError or QuotasError."""
        try:
            await self._loop.apply(await self._quotas.apply(policy, port=self._policy_port))
        except CatalogueError:
            if self.in_force is not None:
                await self._quotas.apply(self.in_force, port=self._policy_port)
            raise
        self.in_force = policy


class _Reloader:
    """Puts each valid read of the configuration in force, and says what is wrong with the others."""

    def __init__(
        self,
        directory: Path,
        served: _Served,
        plane: Plane,
        metrics: Metrics,
        logger: Logger,
        digests: set[str],
    ) -> None:
        self._directory = directory
        self._served = served
        self._plane = plane
        self._metrics = metrics
        self._logger = logger
        self._digests = digests

    async def watch(self, loaded: config.Loaded) -> None:
        async for newer in config.watch(self._directory, loaded):
            await self.take(newer)

    async def take(self, loaded: config.Loaded) -> None:
        """One read of the files."""
        outcome = await self._apply(loaded)
        self._metrics.config_read(outcome)
        log_problems(self._logger, loaded.problems, in_force=outcome != "rejected")
        if outcome != "unchanged":
            self._logger.info("config", outcome=outcome, problems=len(loaded.problems))
        old = self._plane.config
        applied = outcome == "applied"
        self._plane.config = ConfigStatus(
            loaded_at_s=self._served.now_s() if applied else old.loaded_at_s,
            files=("tidegate.yaml", *sorted(loaded.documents)),
            problems=loaded.problems,
            in_force=outcome != "rejected",
            reloads=old.reloads + 1,
        )

    async def _apply(self, loaded: config.Loaded) -> str:
        policy = loaded.policy
        if policy is None or policy == self._served.in_force:
            return "rejected" if loaded.has_errors else "unchanged"
        try:
            await self._served.apply(policy)
        except CatalogueError as error:
            self._logger.error("config_problem", path="signals.catalogue", message=str(error))
            return "rejected"
        except QuotasError as error:
            if self._served.in_force is None:
                raise
            self._logger.error("config_problem", path="policy", message=str(error))
            return "rejected"
        self._digests.clear()
        self._digests.update(digest for tenant in policy.tenants for digest in tenant.key_digests)
        return "applied"


@asynccontextmanager
async def _admin(
    plane: Plane, registry: CollectorRegistry, server: ServerPolicy, quotas: Quotas
) -> AsyncIterator[str]:
    app = admin_app(
        plane, registry=registry, token=lambda: _token(server.admin_token_file), quotas=quotas.desk
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, server.admin_address, server.admin_port)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def _token(path: str | None) -> str | None:
    """The admin token, read anew each time, so that it can be rotated."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _with_ports(server: ServerPolicy, ports: Ports) -> ServerPolicy:
    return replace(
        server,
        admin_port=server.admin_port if ports.admin_port is None else ports.admin_port,
        xds_port=server.xds_port if ports.xds_port is None else ports.xds_port,
    )


def _ads_options(server: ServerPolicy) -> AdsOptions:
    tls = None
    if server.xds_cert_file and server.xds_key_file:
        ca = Path(server.xds_ca_file) if server.xds_ca_file else None
        tls = TlsFiles(
            cert=Path(server.xds_cert_file),
            key=Path(server.xds_key_file),
            ca=ca,
            bind_node_id=server.xds_bind_node_id,
        )
    return AdsOptions(address=f"{server.xds_address}:{server.xds_port}", tls=tls)
