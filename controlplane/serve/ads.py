"""The aggregated discovery service over gRPC: bytes between Envoys and the cache, and nothing else.

Both methods are served by generic handlers on raw bytes under Envoy's own service name. Each stream has a
reading and a writing task, so that a client that does not read stops only itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from controlplane.serve.cache import Cache, Stream
from controlplane.xds.exchange import Forbidden, ProtocolError, Variant
from controlplane.xds.limits import MESSAGE_BYTES_MAX

SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
TICK_S = 0.2
_IDENTITIES = ("peer_dns", "peer_uri", "x509_common_name")  # as gRPC calls parts of a client's certificate


class Context(Protocol):
    """What is used of grpc.aio's context of one stream."""

    def peer(self) -> str: ...
    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...
    async def read(self) -> Any: ...
    async def write(self, message: bytes) -> None: ...
    async def abort(self, code: grpc.StatusCode, details: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of the server; with `ca`, clients must show a certificate it signed. Replaced files are
    re-read. `bind_node_id`: such a client may only say it is a node that its certificate names."""

    cert: Path
    key: Path
    ca: Path | None = None
    bind_node_id: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AdsOptions:
    """Where and how to listen. `drain_s`: the time over which a stopping server closes its streams one by
    one. `opening_s`: how long a new stream may say nothing. `streams_max` of all clients together; a client
    that finds them taken is told RESOURCE_EXHAUSTED."""

    address: str = "127.0.0.1:0"
    tls: TlsFiles | None = None
    drain_s: float = 1.0
    max_message_bytes: int = 64 * 1024 * 1024  # of a response; requests have `limits.MESSAGE_BYTES_MAX`
    opening_s: float = 30.0
    streams_max: int = 20_000
    keepalive_s: float = 30.0
    keepalive_timeout_s: float = 10.0


class AdsServer:
    """Serves `cache` until `stop`."""

    def __init__(self, cache: Cache, options: AdsOptions | None = None) -> None:
        self._cache = cache
        self._options = options or AdsOptions()
        self._server = grpc.aio.server(
            options=_channel_options(self._options), maximum_concurrent_rpcs=self._options.streams_max
        )
        self._health = health.aio.HealthServicer()
        self._draining = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; returns the port. Raises RuntimeError when the address is taken, OSError for unreadable
        files."""
        handlers = {
            "DeltaAggregatedResources": grpc.stream_stream_rpc_method_handler(self._behaviour(Variant.DELTA)),
            "StreamAggregatedResources": grpc.stream_stream_rpc_method_handler(self._behaviour(Variant.SOTW)),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        port = self._listen()
        await self._report_health()
        await self._server.start()
        self._ticking = asyncio.create_task(self._tick())
        return port

    async def stop(self) -> None:
        """Report not serving, close the streams spread over `drain_s`, then stop."""
        await self._health.enter_graceful_shutdown()
        self._draining.set()
        await self._server.stop(self._options.drain_s + 1.0)
        if self._ticking is not None:
            self._ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticking

    def _listen(self) -> int:
        address, tls = self._options.address, self._options.tls
        if tls is None:
            return int(self._server.add_insecure_port(address))
        return int(self._server.add_secure_port(address, _credentials(tls)))

    async def _tick(self) -> None:
        was_ready = self._cache.ready
        while True:
            await asyncio.sleep(TICK_S)
            self._cache.tick()
            if self._cache.ready != was_ready:
                was_ready = self._cache.ready
                await self._report_health()

    async def _report_health(self) -> None:
        status = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            await self._health.set(service, status.SERVING if self._cache.ready else status.NOT_SERVING)

    def _behaviour(self, variant: Variant) -> Callable[[Any, Context], Awaitable[None]]:
        async def serve(_: Any, context: Context) -> None:
            stream = self._cache.join(variant, _address(context.peer()), self._certified(context))
            try:
                await self._carry(stream, context)
            except Forbidden as error:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED, "the stream was opened, and nothing said"
                )
            except ProtocolError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            finally:
                self._cache.leave(stream)

        return serve

    def _certified(self, context: Context) -> frozenset[str] | None:
        """The node ids the client's certificate speaks for; None when that does not matter."""
        tls = self._options.tls
        if tls is None or tls.ca is None or not tls.bind_node_id:
            return None
        shown = context.auth_context()
        return frozenset(
            name.decode("utf-8", "replace") for field in _IDENTITIES for name in shown.get(field, ())
        )

    async def _carry(self, stream: Stream, context: Context) -> None:
        """Read and write until the client leaves, an error ends the stream, or the server drains."""
        tasks = [
            asyncio.create_task(_read(stream, context, self._options.opening_s)),
            asyncio.create_task(_write(stream, context)),
            asyncio.create_task(self._drained()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drained(self) -> None:
        await self._draining.wait()
        await asyncio.sleep(random.uniform(0, self._options.drain_s))  # not all clients return at once


async def _read(stream: Stream, context: Context, opening_s: float) -> None:
    async with asyncio.timeout(opening_s):
        message = await context.read()
    while message is not grpc.aio.EOF:
        stream.receive(message)
        message = await context.read()


async def _write(stream: Stream, context: Context) -> None:
    while True:
        await context.write(await stream.outbox.get())


def _address(peer: str) -> str:
    """`ipv4:10.0.0.7:4711` without the scheme."""
    return unquote(peer).partition(":")[2]


def _channel_options(options: AdsOptions) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake, not a share
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", int(options.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(options.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _credentials(files: TlsFiles) -> grpc.ServerCredentials:
    def read() -> grpc.ServerCertificateConfiguration:
        pair = (files.key.read_bytes(), files.cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], files.ca.read_bytes() if files.ca else None)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        try:
            return read()
        except (OSError, ValueError):
            return None  # half-way through a rotation: the certificate in use stays

    return grpc.dynamic_ssl_server_credentials(
        read(), fetch, require_client_authentication=files.ca is not None
    )
