"""Clients that say exactly what a test tells them to: bytes over HTTP/1, frames over HTTP/2."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

import h2.config
import h2.connection
import h2.events

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    """`status` 0: the connection ended without an answer."""

    status: int
    head: str = ""
    body: bytes = b""


def http1_request(
    path: str, headers: Sequence[str], body: bytes, *, method: str = "POST", chunked: bool = False
) -> bytes:
    """A request with these header lines as they are, and with its length in one of the two ways."""
    length = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", *headers, length, "", ""]
    content = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    return "\r\n".join(lines).encode("latin-1") + content


async def http1(port: int, request: bytes, *, within_s: float = 10.0) -> RawAnswer:
    """The first answer to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(within_s):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return RawAnswer(status=0)
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length else b""
        return RawAnswer(status=int(head.split(b" ", 2)[1]), head=head.decode("latin-1").lower(), body=body)
    finally:
        writer.close()


class _Exchange:
    """One request on a new HTTP/2 connection, as far as it has come."""

    def __init__(self, body: bytes) -> None:
        self.machine = h2.connection.H2Connection(
            h2.config.H2Configuration(header_encoding="utf-8", validate_outbound_headers=False)
        )
        self.left = body
        self.status = 0
        self.got = b""
        self.ended = False

    def send_more(self) -> None:
        """As much of the body as flow control allows."""
        while self.left:
            room = min(
                self.machine.local_flow_control_window(1),
                self.machine.max_outbound_frame_size,
                len(self.left),
            )
            if room <= 0:
                return
            self.machine.send_data(1, self.left[:room], end_stream=room == len(self.left))
            self.left = self.left[room:]

    def note(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.status = int({str(name): str(value) for name, value in event.headers}[":status"])
        elif isinstance(event, h2.events.DataReceived):
            self.got += event.data
            self.machine.acknowledge_received_data(event.flow_controlled_length, 1)
        elif isinstance(
            event, h2.events.StreamEnded | h2.events.StreamReset | h2.events.ConnectionTerminated
        ):
            self.ended = True


async def http2(
    port: int, path: str, headers: Sequence[tuple[str, str]], body: bytes, *, within_s: float = 10.0
) -> RawAnswer:
    """The answer to one POST on a new HTTP/2 connection (prior knowledge), within its flow control."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    exchange = _Exchange(body)
    machine = exchange.machine
    machine.initiate_connection()
    pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "gateway"), (":path", path)]
    machine.send_headers(1, [*pseudo, *headers], end_stream=not body)
    try:
        async with asyncio.timeout(within_s):
            while not exchange.ended:
                exchange.send_more()
                writer.write(machine.data_to_send())
                data = await reader.read(65536)
                if not data:
                    break
                for event in machine.receive_data(data):
                    exchange.note(event)
        return RawAnswer(status=exchange.status, body=exchange.got)
    finally:
        writer.write(machine.data_to_send())
        writer.close()
