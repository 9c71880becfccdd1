"""The client side of a load run: requests rendered to bytes, one connection, one request in flight."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from controlplane.sim.http1 import Malformed, Response
from controlplane.sim.load_result import FAILED, TIMED_OUT, KeyResult
from controlplane.sim.load_spec import LoadKey, LoadSpec
from controlplane.sim.spread import Spread
from controlplane.sim.trace import TraceRequest

SPOOF_MARK = "forged-by-client"
SPOOFED_HEADERS: tuple[tuple[str, str], ...] = tuple(
    (name, SPOOF_MARK)
    for name in (
        *("x-tidegate-tenant", "X-Tidegate-Tenant", "x_tidegate_tenant", "X_TIDEGATE-TENANT"),
        *("x-tidegate-route", "x-tidegate-pool", "x-tidegate-model-version", "x-tidegate-priority"),
        *("x-tidegate-anything-else", "X-TIDEGATE-COST"),
        *("Resilience.Status", "resilience.status", "resilience-status", "Resilience_Status"),
        *("Resilience.Failure-Rate", "resilience.failure-rate", "resilience_failure_rate"),
    )
)
_FILLER = "the tide comes in and the gate lets it through, slowly; " * 2000
_CHARS_PER_TOKEN = 4


class Writer:
    """Renders the requests of one key: all that does not change is rendered once."""

    def __init__(self, spec: LoadSpec, key: LoadKey) -> None:
        self._spec = spec
        headers = (*key.headers, *(SPOOFED_HEADERS if spec.spoof else ()))
        lines = [
            f"POST {key.path} HTTP/1.1",
            f"host: {spec.host}:{spec.port}",
            "content-type: application/json",
            *(f"{name}: {value}" for name, value in headers),
            "content-length: ",
        ]
        self._head = "\r\n".join(lines)
        self._chat = key.path.endswith("/chat/completions")
        self._model = json.dumps(key.model)
        self._streams = Spread()

    def next(self, request: TraceRequest) -> bytes:
        spec = self._spec
        stream = self._streams.hit(spec.stream_ratio)
        text = _FILLER[: max(1, round(request.prompt_tokens * spec.prompt_scale)) * _CHARS_PER_TOKEN]
        answer = min(spec.max_answer_tokens, max(1, round(request.answer_tokens * spec.answer_scale)))
        prompt = f'"messages":[{{"role":"user","content":"{text}"}}]' if self._chat else f'"prompt":"{text}"'
        usage = ',"stream":true,"stream_options":{"include_usage":true}' if stream else ""
        body = f'{{"model":{self._model},"max_tokens":{answer},{prompt}{usage}}}'
        return f"{self._head}{len(body)}\r\n\r\n{body}".encode()


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in flight."""

    def __init__(self, on_idle: Callable[[Connection], None], on_gone: Callable[[Connection], None]) -> None:
        self._on_idle = on_idle
        self._on_gone = on_gone
        self.transport: asyncio.Transport | None = None
        self.flight: Flight | None = None

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def give_up_after(self, age_s: float) -> None:
        """Abort a request that has taken longer."""
        if self.flight is not None and self.flight.age_s() > age_s and self.transport is not None:
            self.flight.timed_out = True
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        flight = self.flight
        if flight is None or self.transport is None:
            return
        try:
            flight.received(data)
        except Malformed:
            self.transport.abort()
            return
        if flight.response.complete:
            self.flight = None
            flight.ended()
            if flight.response.reusable:
                self._on_idle(self)
            else:
                self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        flight, self.flight, self.transport = self.flight, None, None
        if flight is not None:
            flight.response.end_of_stream()
            flight.ended()
        self._on_gone(self)


class Flight:
    """One request under way; writes what becomes of it into its row of the result."""

    __slots__ = ("_result", "_row", "_sent_s", "_time", "response", "timed_out")

    def __init__(self, result: KeyResult, row: int, clock: Callable[[], float]) -> None:
        self.response = Response()
        self.timed_out = False
        self._result = result
        self._row = row
        self._time = clock
        self._sent_s = clock()

    def age_s(self) -> float:
        return self._time() - self._sent_s

    def received(self, data: bytes) -> None:
        before = self.response.body_bytes
        self.response.feed(data)
        if before == 0 and self.response.body_bytes:
            self._result.first_chunk_s[self._row] = self.age_s()

    def ended(self) -> None:
        row, response = self._row, self.response
        self._result.total_s[row] = self.age_s()
        self._result.complete[row] = response.complete
        self._result.status[row] = response.status or (TIMED_OUT if self.timed_out else FAILED)
