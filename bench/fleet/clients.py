"""Many subscribers in one process, speaking just enough of the protocol: they accept whatever they are sent.

    python -m bench.fleet.clients PORT COUNT MODE

Each has a connection of its own, as an Envoy has. MODE is `delta` (a wildcard on clusters; after an end of
the stream they come back with the versions they hold), `poison` (they reject what begins with `poison`) or
`echo` (they send back a few bytes for each message). Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from controlplane.model.resource import CLUSTER
from controlplane.pb import tidegate_discovery_pb2 as pb
from controlplane.serve.ads import SERVICE

ECHO = "/bench.Echo/Stream"
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 500),
]


class Subscriber:
    """One client: what it holds, by name, and its stream, opened again whenever it ends."""

    def __init__(self, number: int, port: int, mode: str) -> None:
        self._node = pb.Node(id=f"gw-{number:04d}")
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", _OPTIONS)
        self._mode = mode
        self._held: dict[str, str] = {}

    async def run(self) -> None:
        method = ECHO if self._mode == "echo" else f"/{SERVICE}/DeltaAggregatedResources"
        while True:
            call = self._channel.stream_stream(method)(wait_for_ready=True)
            try:
                await call.write(self._first())
                while (message := await call.read()) is not grpc.aio.EOF:
                    await call.write(b"ok" if self._mode == "echo" else self._answer(message))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await asyncio.sleep(0.1)

    def _first(self) -> bytes:
        if self._mode == "echo":
            return b"hello"
        request = pb.DeltaDiscoveryRequest(
            node=self._node, type_url=CLUSTER, initial_resource_versions=self._held
        )
        return request.SerializeToString()

    def _answer(self, message: bytes) -> bytes:
        response: Any = pb.DeltaDiscoveryResponse.FromString(message)
        answer = pb.DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
        resources = [pb.Resource.FromString(element) for element in response.resources]
        if self._mode == "poison" and any(b"poison" in resource.resource for resource in resources):
            answer.error_detail.CopyFrom(pb.Status(code=3, message="poisoned"))
        else:
            self._held.update((resource.name, resource.version) for resource in resources)
            for name in response.removed_resources:
                self._held.pop(name, None)
        return answer.SerializeToString()


async def run(port: int, count: int, mode: str) -> None:
    """Until standard input ends; new connections are spread over a second for each 500."""
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(Subscriber(number, port, mode).run()))
        if number % 10 == 9:
            await asyncio.sleep(0.02)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
