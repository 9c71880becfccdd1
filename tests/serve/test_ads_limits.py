"""Clients that ask for too much, send too much, or read nothing: they lose their stream, nobody else does."""

from __future__ import annotations

import asyncio
import resource as process
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from controlplane.model.resource import CLUSTER, ENDPOINT, Resource, Snapshot
from controlplane.pb import tidegate_discovery_pb2 as pb
from controlplane.serve.ads import SERVICE, AdsOptions, AdsServer
from controlplane.serve.cache import Cache
from controlplane.xds.exchange import ProtocolError, Variant
from controlplane.xds.limits import NAMES_MAX, UNREAD_MAX


@dataclass(kw_only=True)
class Served:
    cache: Cache
    port: int

    @asynccontextmanager
    async def call(self) -> AsyncIterator[Any]:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options) as channel:
            yield channel.stream_stream(f"/{SERVICE}/DeltaAggregatedResources")()


@asynccontextmanager
async def serving(options: AdsOptions | None = None) -> AsyncIterator[Served]:
    cache = Cache(clock=time.monotonic)
    cache.publish(Snapshot(resources={CLUSTER: {"a": Resource.of("a", b"1")}}))
    server = AdsServer(cache, options or AdsOptions(drain_s=0.05))
    try:
        yield Served(cache=cache, port=await server.start())
    finally:
        await server.stop()


def request(type_url: str = CLUSTER, **fields: Any) -> bytes:
    return pb.DeltaDiscoveryRequest(node=pb.Node(id="gw"), type_url=type_url, **fields).SerializeToString()


async def how_it_ends(call: Any) -> grpc.StatusCode:
    async with asyncio.timeout(20):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await call.code()


async def test_a_client_that_names_too_many_resources_loses_its_stream() -> None:
    names = [f"n{number}" for number in range(NAMES_MAX)]
    async with serving() as served, served.call() as quiet, served.call() as call:
        await quiet.write(request())
        await quiet.read()
        for part in range(2):
            subscribed = [f"{part}-{name}" for name in names]
            await call.write(request(ENDPOINT, resource_names_subscribe=subscribed))
        assert await how_it_ends(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert len(served.cache.nodes) == 1
        served.cache.publish(Snapshot())
        assert not quiet.done()


async def test_a_client_that_sends_100_megabytes_loses_its_stream_and_costs_no_memory() -> None:
    message = request(resource_names_subscribe=["x" * 1_000_000] * 100)
    async with serving() as served, served.call() as call:
        before_kb = process.getrusage(process.RUSAGE_SELF).ru_maxrss
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await call.write(message)
        assert await how_it_ends(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        # The client is in this process and copies its own message; the server must not add its parse.
        assert process.getrusage(process.RUSAGE_SELF).ru_maxrss - before_kb < 400_000
        assert served.cache.nodes == ()


async def test_a_stream_on_which_nothing_is_said_ends() -> None:
    async with serving(AdsOptions(drain_s=0.05, opening_s=0.2)) as served, served.call() as call:
        assert await how_it_ends(call) is grpc.StatusCode.DEADLINE_EXCEEDED
    async with serving(AdsOptions(drain_s=0.05, opening_s=0.2)) as served, served.call() as call:
        await call.write(request())
        await call.read()
        await asyncio.sleep(0.4)
        assert not call.done()


async def test_more_streams_than_there_may_be_are_turned_away() -> None:
    async with serving(AdsOptions(drain_s=0.05, streams_max=1)) as served, served.call() as call:
        await call.write(request())
        await call.read()
        async with served.call() as other:
            assert await how_it_ends(other) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not call.done()


def test_a_client_that_answers_what_it_never_read_does_not_fill_the_outbox() -> None:
    cache = Cache(clock=lambda: 0.0)
    cache.publish(Snapshot(resources={CLUSTER: {"a": Resource.of("a", b"x" * 1000)}}))
    stream = cache.join(Variant.DELTA, "client")
    # Each answers the response before, whose nonce is easily guessed.
    messages = [request(response_nonce=str(n), resource_names_subscribe=["a"]) for n in range(10_000)]
    with pytest.raises(ProtocolError, match="not read"):
        deque(map(stream.receive, messages), maxlen=0)
    assert stream.outbox.qsize() <= UNREAD_MAX + 1


def test_a_slow_reader_costs_one_response_of_a_type_however_much_is_published() -> None:
    cache = Cache(clock=lambda: 0.0)
    stream = cache.join(Variant.DELTA, "client")
    for number in range(1000):
        cache.publish(Snapshot(resources={CLUSTER: {"a": Resource.of("a", str(number).encode())}}))
        if number == 0:
            stream.receive(request())
    assert stream.outbox.qsize() == 1
