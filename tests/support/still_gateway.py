"""A real Envoy on one static snapshot, without a control plane: for what scripts and filters do alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import stub_model
from real_envoy import RealEnvoy, free_port, running

from controlplane.assets import read_asset
from controlplane.model.decision import Decision
from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Endpoint, Policy
from controlplane.xds.bootstrap import Gateway, static
from controlplane.xds.lua_code import lua_code
from controlplane.xds.translate import snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StillGateway:
    """A running Envoy, the stub model behind it, and a client that controls every header."""

    port: int
    envoy: RealEnvoy
    model: stub_model.StubModel
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def received(self) -> list[list[tuple[str, str]]]:
        """The headers of each request the model server got, names in lower case."""
        return [[(name.lower(), value) for name, value in headers] for _, headers, _ in self.model.requests]

    async def ask(
        self,
        body: object = None,
        *,
        path: str = "/v1/chat",
        method: str = "POST",
        headers: Sequence[tuple[str, str]] = (),
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body."""
        content = None if body is None else json.dumps(body).encode()
        sent = [*headers] + ([] if content is None else [("content-type", "application/json")])
        async with self.http.request(method, self.url + path, data=content, headers=sent) as response:
            got = {name.lower(): value for name, value in response.headers.items()}
            return response.status, got, await response.read()

    async def counted(self, *parts: str) -> float:
        """The sum of the Prometheus lines that hold every part; Envoy flushes statistics each second."""
        text = await self.envoy.admin("/stats/prometheus")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(part in line for part in parts))

    def written(self) -> str:
        """Everything Envoy wrote: its log and its access log."""
        return self.envoy.log() + self.envoy.access_file.read_text()


@contextlib.asynccontextmanager
async def still_gateway(
    binary: Path, folder: Path, policy: Policy, decision: Decision, *, upstream_port: int | None = None
) -> AsyncIterator[StillGateway]:
    """Envoy serving `policy`; every pool is the stub model (or what listens on `upstream_port`)."""
    async with stub_model.serving() as model:
        port = free_port()
        endpoint = Endpoint(address="127.0.0.1", port=upstream_port or model.port)
        policy = replace(
            policy,
            listener=replace(policy.listener, address="127.0.0.1", port=port),
            pools=tuple(replace(pool, endpoints=(endpoint,)) for pool in policy.pools),
        )
        made = snapshot(policy, decision, [GatewayMember(id="gw0")], code=lua_code(read_asset))
        config = static(made, Gateway(node_id="gw0", admin_port=free_port()))
        async with (
            running(binary, config, folder) as envoy,
            aiohttp.ClientSession(auto_decompress=False) as http,
        ):
            yield StillGateway(port=port, envoy=envoy, model=model, http=http)
