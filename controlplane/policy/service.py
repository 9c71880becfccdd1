"""Envoy's rate limit service over gRPC: bytes between gateways and the judge, and nothing else."""

from __future__ import annotations

import time
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from controlplane.policy.judge import Judge
from controlplane.policy.metrics import PolicyMetrics

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"
MESSAGE_BYTES_MAX = 64 * 1024
_STOPPING_S = 1.0


class PolicyServer:
    """Serves one judge until `stop`."""

    def __init__(
        self, judge: Judge, metrics: PolicyMetrics, address: str, *, shared_port: bool = False
    ) -> None:
        self._judge = judge
        self._metrics = metrics
        self._address = address
        self._server = grpc.aio.server(
            options=[
                # several processes may take one port; a second server by mistake is told
                ("grpc.so_reuseport", int(shared_port)),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.http2.max_ping_strikes", 0),
            ]
        )
        self._health = health.aio.HealthServicer()

    async def start(self) -> int:
        """Listen; returns the port. Raises RuntimeError when the address is taken."""
        handlers = {METHOD: grpc.unary_unary_rpc_method_handler(self._should_rate_limit)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        port = int(self._server.add_insecure_port(self._address))
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        return port

    async def stop(self) -> None:
        """Report not serving, let calls end, then stop."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(_STOPPING_S)

    async def _should_rate_limit(self, message: bytes, _context: Any) -> bytes:
        started_s = time.perf_counter()
        answer = await self._judge.answer(message)
        self._metrics.answered(time.perf_counter() - started_s)
        return answer
