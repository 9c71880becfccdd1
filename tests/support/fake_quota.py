"""A policy service that keeps what it was asked: Envoy's side of quotas, without counting anything."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from controlplane.pb import tidegate_ratelimit_pb2 as pb

_SERVICE = "envoy.service.ratelimit.v3.RateLimitService"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One descriptor; `at_s` on the monotonic clock."""

    entries: tuple[tuple[str, str], ...]
    tokens: int | None
    domain: str
    at_s: float

    @property
    def op(self) -> str:
        return dict(self.entries)["op"]

    @property
    def id(self) -> str:
        return dict(self.entries)["id"]


@dataclass(slots=True, kw_only=True)
class FakeQuota:
    """`refuse`: whether a reservation gets OVER_LIMIT; `delay_s`: how long each answer takes."""

    port: int = 0
    refuse: bool = False
    delay_s: float = 0.0
    asked: list[Asked] = field(default_factory=list)

    def of(self, op: str) -> list[Asked]:
        return [each for each in self.asked if each.op == op]

    async def settled(self, count: int = 1, *, within_s: float = 5.0) -> list[int | None]:
        """The tokens of the first `count` settlements, in the order they came."""
        async with asyncio.timeout(within_s):
            while len(self.of("settle")) < count:
                await asyncio.sleep(0.01)
        return [each.tokens for each in self.of("settle")]


BODY = json.dumps(
    {
        "error": {
            "message": "Your quota is used up.",
            "type": "insufficient_quota",
            "param": None,
            "code": "insufficient_quota",
        }
    }
).encode()
HEADERS = {
    "content-type": "application/json",
    "x-tidegate-limited": "quota",
    "retry-after": "77",
    "ratelimit": '"daily";r=0;t=77',
    "ratelimit-policy": '"daily";q=500000;w=86400',
}


@asynccontextmanager
async def serving() -> AsyncIterator[FakeQuota]:
    """The service on a free port."""
    fake = FakeQuota()

    async def should_rate_limit(
        request: pb.RateLimitRequest, _: grpc.aio.ServicerContext[pb.RateLimitRequest, pb.RateLimitResponse]
    ) -> pb.RateLimitResponse:
        over = False
        for descriptor in request.descriptors:
            asked = Asked(
                entries=tuple((entry.key, entry.value) for entry in descriptor.entries),
                tokens=descriptor.hits_addend.value if descriptor.HasField("hits_addend") else None,
                domain=request.domain,
                at_s=time.monotonic(),
            )
            fake.asked.append(asked)
            over = over or (fake.refuse and asked.op == "reserve")
        await asyncio.sleep(fake.delay_s)
        code = pb.RateLimitResponse.OVER_LIMIT if over else pb.RateLimitResponse.OK
        answer = pb.RateLimitResponse(
            overall_code=code, statuses=[pb.RateLimitResponse.DescriptorStatus(code=code)]
        )
        if over:
            answer.raw_body = BODY
            answer.response_headers_to_add.extend(
                pb.HeaderValue(key=name, value=value) for name, value in HEADERS.items()
            )
        return answer

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        should_rate_limit,
        request_deserializer=pb.RateLimitRequest.FromString,
        response_serializer=pb.RateLimitResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {"ShouldRateLimit": handler}),)
    )
    fake.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield fake
    finally:
        await server.stop(0.1)
