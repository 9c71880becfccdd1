"""What a gateway asks the policy service, and what it hears, over real gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

import grpc

from controlplane.pb.tidegate_ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest, RateLimitResponse

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer."""

    passed: bool
    headers: dict[str, str]
    body: bytes


def call(op: str, tenant: str, pool: str, request: str, tokens: int, *, route: str = "chat") -> bytes:
    words = {"op": op, "tenant": tenant, "pool": pool, "route": route, "id": request}
    descriptor = RateLimitDescriptor(
        entries=[RateLimitDescriptor.Entry(key=key, value=value) for key, value in words.items()]
    )
    descriptor.hits_addend.value = tokens
    return RateLimitRequest(domain="tidegate", descriptors=[descriptor]).SerializeToString()


def heard(answer: bytes) -> Heard:
    response = RateLimitResponse.FromString(answer)
    headers = {header.key: header.value for header in response.response_headers_to_add}
    return Heard(response.overall_code == RateLimitResponse.OK, headers, response.raw_body)


class Gateway:
    """A client of the service on a port of loopback."""

    def __init__(self, port: int) -> None:
        # one connection for each gateway, also to a port that several processes share
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._ask = self._channel.unary_unary(METHOD)

    async def __aenter__(self) -> Gateway:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def send(self, message: bytes) -> Heard:
        return heard(await self._ask(message, timeout=5.0))

    async def reserve(self, tenant: str, pool: str, request: str, tokens: int) -> Heard:
        return await self.send(call("reserve", tenant, pool, request, tokens))

    async def settle(self, tenant: str, pool: str, request: str, tokens: int) -> Heard:
        return await self.send(call("settle", tenant, pool, request, tokens))
