"""The gRPC edge with a raw client on loopback: service name, errors, health, slow readers, drain, mTLS."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controlplane.model.resource import CLUSTER, Resource, Snapshot
from controlplane.pb import tidegate_discovery_pb2 as pb
from controlplane.serve.ads import SERVICE, AdsOptions, AdsServer, TlsFiles
from controlplane.serve.cache import Cache

METHODS = ("DeltaAggregatedResources", "StreamAggregatedResources")


def snapshot(**clusters: bytes) -> Snapshot:
    return Snapshot(resources={CLUSTER: {name: Resource.of(name, body) for name, body in clusters.items()}})


class Served:
    """A cache with its server; `call` opens a stream with a raw client."""

    def __init__(self, options: AdsOptions | None = None) -> None:
        self.cache = Cache(clock=time.monotonic)
        self.server = AdsServer(self.cache, options or AdsOptions(drain_s=0.05))
        self.port = 0
        self.channels: list[Any] = []

    def call(self, method: str = METHODS[0], credentials: grpc.ChannelCredentials | None = None) -> Any:
        options = [("grpc.use_local_subchannel_pool", 1)]
        target = f"localhost:{self.port}"
        channel = (
            grpc.aio.secure_channel(target, credentials, options)
            if credentials
            else grpc.aio.insecure_channel(target, options)
        )
        self.channels.append(channel)
        return channel.stream_stream(f"/{SERVICE}/{method}")()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served()
    made.port = await made.server.start()
    yield made
    for channel in made.channels:
        await channel.close()
    await made.server.stop()


def first(type_url: str = CLUSTER, node_id: str = "raw") -> bytes:
    """The first message of a wildcard stream; the fields used have the same numbers in neither variant."""
    return pb.DeltaDiscoveryRequest(node=pb.Node(id=node_id), type_url=type_url).SerializeToString()


def first_sotw() -> bytes:
    return pb.DiscoveryRequest(node=pb.Node(id="raw"), type_url=CLUSTER).SerializeToString()


async def test_both_methods_are_served_under_the_official_name(served: Served) -> None:
    served.cache.publish(snapshot(a=b"1"))
    delta, sotw = served.call(METHODS[0]), served.call(METHODS[1])
    await delta.write(first())
    await sotw.write(first_sotw())
    assert pb.DeltaDiscoveryResponse.FromString(await delta.read()).type_url == CLUSTER
    assert pb.DiscoveryResponse.FromString(await sotw.read()).type_url == CLUSTER
    assert {node.variant for node in served.cache.nodes} == {"delta", "sotw"}


async def test_a_change_arrives_without_a_request(served: Served) -> None:
    served.cache.publish(snapshot(a=b"1"))
    call = served.call()
    await call.write(first())
    nonce = pb.DeltaDiscoveryResponse.FromString(await call.read()).nonce
    await call.write(pb.DeltaDiscoveryRequest(type_url=CLUSTER, response_nonce=nonce).SerializeToString())
    assert await served.cache.wait_acked(timeout_s=5)
    served.cache.publish(snapshot(a=b"2"))
    response = pb.DeltaDiscoveryResponse.FromString(await call.read())
    assert pb.Any.FromString(pb.Resource.FromString(response.resources[0]).resource).value == b"2"


@pytest.mark.parametrize("message", [first(type_url=""), b"\xff"], ids=["empty type", "junk"])
async def test_what_the_protocol_forbids_is_an_invalid_argument(served: Served, message: bytes) -> None:
    call = served.call()
    await call.write(message)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_leaves_is_forgotten(served: Served) -> None:
    served.cache.publish(snapshot())
    closing, cancelled = served.call(), served.call()
    for call in (closing, cancelled):
        await call.write(first())
        await call.read()
    assert len(served.cache.nodes) == 2
    await closing.done_writing()
    cancelled.cancel()
    async with asyncio.timeout(5):
        while served.cache.nodes:
            await asyncio.sleep(0.01)
    assert await closing.code() is grpc.StatusCode.OK


async def test_a_client_that_does_not_read_does_not_block_others(served: Served) -> None:
    big = b"x" * 3_000_000  # more than flow control lets through unread
    served.cache.publish(snapshot(a=big))
    slow, quick = served.call(), served.call()
    await slow.write(first(node_id="slow"))
    await quick.write(first(node_id="quick"))
    started = time.monotonic()
    for _ in range(5):
        nonce = pb.DeltaDiscoveryResponse.FromString(await quick.read()).nonce
        served.cache.publish(snapshot(a=big + nonce.encode()))
        await quick.write(
            pb.DeltaDiscoveryRequest(type_url=CLUSTER, response_nonce=nonce).SerializeToString()
        )
    assert time.monotonic() - started < 5


async def test_health_is_serving_only_after_the_first_publication(served: Served) -> None:
    async with grpc.aio.insecure_channel(f"localhost:{served.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        served.cache.publish(snapshot())
        async with asyncio.timeout(5):
            while (await stub.Check(request)).status != health_pb2.HealthCheckResponse.SERVING:
                await asyncio.sleep(0.02)


async def test_stopping_ends_the_streams_in_good_order() -> None:
    served = Served()
    served.port = await served.server.start()
    served.cache.publish(snapshot())
    call = served.call()
    await call.write(first())
    await call.read()
    await served.server.stop()
    assert await call.code() is grpc.StatusCode.OK
    assert served.cache.nodes == ()
    await served.channels[0].close()


async def test_a_port_that_is_taken_is_refused(served: Served) -> None:
    other = AdsServer(Cache(clock=time.monotonic), AdsOptions(address=f"127.0.0.1:{served.port}"))
    with pytest.raises(RuntimeError):
        await other.start()
    await other.stop()


class Authority:
    """A certificate authority for one test."""

    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.cert = self._sign(name, self.key, authority=True)

    def pair(self, name: str) -> tuple[bytes, bytes]:
        """Key and certificate of `name`, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return pem, self._sign(name, key)

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, authority: bool = False) -> bytes:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = subject if authority else x509.load_pem_x509_certificate(self.cert).subject
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture
async def mutual(tmp_path: Path) -> AsyncIterator[tuple[Served, Authority, TlsFiles]]:
    authority = Authority("ca")
    files = TlsFiles(cert=tmp_path / "tls.crt", key=tmp_path / "tls.key", ca=tmp_path / "ca.crt")
    _write(files, authority)
    made = Served(AdsOptions(address="localhost:0", tls=files, drain_s=0.05))
    made.port = await made.server.start()
    made.cache.publish(snapshot())
    yield made, authority, files
    for channel in made.channels:
        await channel.close()
    await made.server.stop()


def _write(files: TlsFiles, authority: Authority) -> None:
    key, cert = authority.pair("localhost")
    files.key.write_bytes(key)
    files.cert.write_bytes(cert)
    assert files.ca is not None
    files.ca.write_bytes(authority.cert)


async def _reaches(served: Served, trusted: Authority, own: Authority | None) -> bool:
    key, cert = own.pair("raw") if own else (None, None)
    call = served.call(credentials=grpc.ssl_channel_credentials(trusted.cert, key, cert))
    try:
        async with asyncio.timeout(5):
            await call.write(first())
            return await call.read() is not grpc.aio.EOF
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False


async def test_only_clients_with_a_signed_certificate_get_in(mutual: Any) -> None:
    served, authority, _ = mutual
    assert await _reaches(served, authority, authority)
    assert not await _reaches(served, authority, None)
    assert not await _reaches(served, authority, Authority("stranger"))


async def test_a_rotated_certificate_serves_the_next_connection(mutual: Any) -> None:
    served, before, files = mutual
    after = Authority("next ca")
    _write(files, after)
    assert await _reaches(served, after, after)
    assert not await _reaches(served, before, before)


async def test_a_half_written_rotation_keeps_the_certificate_in_use(mutual: Any) -> None:
    served, authority, files = mutual
    files.cert.unlink()
    assert await _reaches(served, authority, authority)
