"""Who a client may say it is: with client certificates, a node that its certificate names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import LOOPBACK, Authority, Pair
from cryptography import x509

from controlplane.model.resource import CLUSTER, Snapshot
from controlplane.pb import tidegate_discovery_pb2 as pb
from controlplane.serve.ads import SERVICE, AdsOptions, AdsServer, TlsFiles
from controlplane.serve.cache import Cache, ConnectedNode, Hooks


@dataclass(kw_only=True)
class Served:
    """A server with client certificates, and whom its application heard of."""

    port: int
    authority: Authority
    connected: list[ConnectedNode]

    @asynccontextmanager
    async def call(self, own: Pair) -> AsyncIterator[Any]:
        credentials = grpc.ssl_channel_credentials(
            self.authority.ca.read_bytes(), own.key.read_bytes(), own.cert.read_bytes()
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"localhost:{self.port}", credentials, options) as channel:
            yield channel.stream_stream(f"/{SERVICE}/DeltaAggregatedResources")()

    async def outcome(self, own: Pair, *node_ids: str) -> str:
        """What becomes of a client that says it is each of `node_ids` in turn: `served`, or the error."""
        async with self.call(own) as call:
            try:
                async with asyncio.timeout(5):
                    nonce = ""
                    for place, node_id in enumerate(node_ids):
                        await call.write(request(node_id, f"unknown-{place}", nonce))
                        nonce = pb.DeltaDiscoveryResponse.FromString(await call.read()).nonce
            except grpc.aio.AioRpcError as error:
                return error.code().name
        return "served"


def request(node_id: str, name: str, nonce: str) -> bytes:
    """Asks for a cluster that there is not, which is answered at once, and accepts what came before."""
    return pb.DeltaDiscoveryRequest(
        node=pb.Node(id=node_id), type_url=CLUSTER, resource_names_subscribe=[name], response_nonce=nonce
    ).SerializeToString()


@asynccontextmanager
async def serving(folder: Path, *, bind_node_id: bool = True) -> AsyncIterator[Served]:
    authority = Authority(folder)
    own = authority.issue("localhost")
    files = TlsFiles(cert=own.cert, key=own.key, ca=authority.ca, bind_node_id=bind_node_id)
    connected: list[ConnectedNode] = []
    cache = Cache(clock=time.monotonic, hooks=Hooks(on_connect=connected.append))
    cache.publish(Snapshot())
    server = AdsServer(cache, AdsOptions(address="localhost:0", tls=files, drain_s=0.05))
    try:
        port = await server.start()
        yield Served(port=port, authority=authority, connected=connected)
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("common_name", "names"),
    [
        ("gw-1", [LOOPBACK]),
        ("fleet", [x509.DNSName("gw-1")]),
        ("fleet", [x509.DNSName("gw-0"), x509.DNSName("gw-1")]),
        ("fleet", [x509.UniformResourceIdentifier("gw-1")]),
    ],
    ids=["common name", "DNS name", "one of several", "URI"],
)
async def test_a_client_is_served_as_a_node_of_its_certificate(
    tmp_path: Path, common_name: str, names: Sequence[x509.GeneralName]
) -> None:
    async with serving(tmp_path) as served:
        own = served.authority.issue("client", common_name=common_name, names=names)
        assert await served.outcome(own, "gw-1") == "served"
        assert [node.id for node in served.connected] == ["gw-1"]


@pytest.mark.parametrize(
    "node_id", ["gw-2", "", "gw-", "gw-1.", "GW-1", "127.0.0.1", "*"], ids=lambda node_id: node_id or "none"
)
async def test_a_client_is_not_served_as_anybody_else(tmp_path: Path, node_id: str) -> None:
    async with serving(tmp_path) as served:
        own = served.authority.issue("gw-1")
        assert await served.outcome(own, node_id) == "PERMISSION_DENIED"
        assert served.connected == []  # so it takes nobody's share either


async def test_a_client_may_not_change_who_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        own = served.authority.issue("gw-1")
        assert await served.outcome(own, "gw-1", "gw-2") == "PERMISSION_DENIED"
        assert await served.outcome(own, "gw-1", "", "gw-1") == "served"  # nor need it repeat it


async def test_a_spiffe_id_is_a_node_id(tmp_path: Path) -> None:
    spiffe = "spiffe://example.org/ns/edge/sa/envoy"
    async with serving(tmp_path) as served:
        names = [x509.UniformResourceIdentifier(spiffe)]
        own = served.authority.issue("client", names=names)
        assert await served.outcome(own, spiffe) == "served"


async def test_without_the_binding_any_signed_client_is_any_node(tmp_path: Path) -> None:
    async with serving(tmp_path, bind_node_id=False) as served:
        assert await served.outcome(served.authority.issue("gw-1"), "gw-2") == "served"


async def test_an_expired_certificate_gets_no_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        own = served.authority.issue("gw-1", expired=True)
        assert await served.outcome(own, "gw-1") == "UNAVAILABLE"
        assert served.connected == []
