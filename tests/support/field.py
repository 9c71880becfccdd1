"""Real Envoys fed by the real discovery service: tests say policy and decision, and offer requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import policies
from offered import Client
from real_envoy import RealEnvoy, free_port, running
from stub_model import StubModel

from controlplane.assets import read_asset
from controlplane.model.decision import Decision
from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Endpoint, Listener, Policy, Pool
from controlplane.model.resource import Snapshot
from controlplane.serve.ads import AdsOptions, AdsServer
from controlplane.serve.ads import TlsFiles as ServerTls
from controlplane.serve.cache import Cache, Hooks
from controlplane.xds.bootstrap import Gateway, TlsFiles, bootstrap
from controlplane.xds.lua_code import lua_code
from controlplane.xds.translate import Translator


class Field:
    """A fleet, its control plane's last two stages, a model server and a client."""

    def __init__(self, binary: Path, folder: Path, stack: AsyncExitStack, model: StubModel) -> None:
        self.model = model
        self.envoys: list[RealEnvoy] = []
        self.rejections: list[object] = []
        self.listener = Listener(address="127.0.0.1", port=free_port())
        self._binary, self._folder, self._stack = binary, folder, stack
        self._xds_port = free_port()
        self.sotw = False
        self._renew()

    def _renew(self) -> None:
        self._cache = Cache(clock=time.monotonic, hooks=Hooks(on_nack=self.rejections.append))
        self._translator = Translator(lua_code(read_asset))

    def pool(self, name: str = "m", version: str = "r1", **fields: Any) -> Pool:
        """A pool that the stub model serves."""
        return Pool(
            model=name,
            version=version,
            endpoints=(Endpoint(address="127.0.0.1", port=self.model.port),),
            **fields,
        )

    def policy(self, tenants: Sequence[Any] = ("acme",), **fields: Any) -> Policy:
        """`policies.policy` on this fleet's listener and model server."""
        return policies.policy(tenants, **{"pools": (self.pool(),), "listener": self.listener, **fields})

    async def serve(self, tls: ServerTls | None = None) -> None:
        """Start the control plane."""
        self._tls = tls
        options = AdsOptions(address=f"127.0.0.1:{self._xds_port}", tls=tls, drain_s=0.1)
        self._server = AdsServer(self._cache, options)
        await self._server.start()
        self._stack.push_async_callback(self._server.stop)

    async def restart(self, policy: Policy, decision: Decision) -> None:
        """A control plane that remembers nothing takes the place of the one that runs."""
        await self._server.stop()
        self._renew()
        await self.publish(policy, decision)
        await self.serve(self._tls)
        async with asyncio.timeout(15):
            while len(self._cache.nodes) < len(self.envoys):
                await asyncio.sleep(0.05)
        assert await self._cache.wait_acked(10.0), self._cache.status()
        assert not self.rejections, self.rejections

    async def publish(self, policy: Policy, decision: Decision, *, gateways: int = 1) -> None:
        """Translate, push, and wait until every Envoy has acknowledged all of it."""
        members = [GatewayMember(id=f"gw{n}", port=n + 1) for n in range(gateways)]
        await self.publish_snapshot(self._translator.snapshot(policy, decision, members))

    async def publish_snapshot(self, snapshot: Snapshot) -> None:
        """Push, and wait until every Envoy has acknowledged all of it."""
        self._cache.publish(snapshot)
        assert await self._cache.wait_acked(10.0), self._cache.status()
        assert not self.rejections, self.rejections

    async def start(self, policy: Policy, decision: Decision, *, gateways: int = 1) -> Client:
        """Publish, start one Envoy, and return a client of it."""
        await self.publish(policy, decision, gateways=gateways)
        await self.add_envoy()
        return await self.client()

    async def add_envoy(self, *, wait: bool = True, tls: TlsFiles | None = None) -> RealEnvoy:
        """One more Envoy on this control plane; ready, and with everything acknowledged if told to wait."""
        number = len(self.envoys)
        config = bootstrap(
            Gateway(
                node_id=f"gw{number}",
                xds_port=self._xds_port,
                admin_port=free_port(),
                tls=tls,
                sotw=self.sotw,
            )
        )
        envoy = await self._stack.enter_async_context(
            running(self._binary, config, self._folder / f"envoy{number}", until="LIVE" if wait else "")
        )
        self.envoys.append(envoy)
        if not wait:
            return envoy
        assert await self._cache.wait_acked(10.0), self._cache.status()
        assert not self.rejections, self.rejections
        return envoy

    async def until_listening(self) -> None:
        """Until the listener accepts connections."""
        for _ in range(200):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return
        raise AssertionError("no listener within 10 s")

    async def client(self, urls: Sequence[str] = (), *, force_close: bool = False) -> Client:
        """A client of `urls` (default: the listener); with `force_close`, of a new connection each time."""
        http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=20),
            connector=aiohttp.TCPConnector(limit=100, force_close=force_close),
        )
        self._stack.push_async_callback(http.close)
        return Client(http, urls or [f"http://127.0.0.1:{self.listener.port}"])
