"""An HTTP/1.1 response as its bytes come in: enough to know when it starts, streams and ends. No I/O.

Only what a load generator needs (one response at a time, bodies counted and not kept): a general client costs
several times the CPU, which on a small machine would be taken from the gateway under test.
"""

from __future__ import annotations

_NO_BODY = (204, 304)


class Malformed(ValueError):
    """Bytes that are no HTTP/1.1 response."""


class Response:
    """Feed it bytes until `complete`."""

    __slots__ = ("_buffer", "_chunked", "_in_trailers", "_left", "body_bytes", "complete", "head", "status")

    def __init__(self) -> None:
        self.head = b""  # status line and header fields, lower case; empty until all have come
        self.status = 0
        self.body_bytes = 0
        self.complete = False
        self._buffer = b""
        self._left: int | None = (
            None  # bytes of the body or chunk still to come; None: until the end of stream
        )
        self._chunked = False
        self._in_trailers = False

    def feed(self, data: bytes) -> None:
        """The next bytes; raises Malformed."""
        self._buffer += data
        while not self.head:
            if not self._read_head():
                return
        if self._chunked:
            self._read_chunks()
        elif not self.complete:
            self._read_plain()

    def end_of_stream(self) -> None:
        """The peer closed: the regular end of a body without length, else the response stays incomplete."""
        if self.head and not self._chunked and self._left is None:
            self.complete = True

    def header(self, name: str) -> str | None:
        """The first value of a header field (lower case, as all of the head), None without it."""
        start = self.head.find(b"\r\n" + name.lower().encode() + b":")
        if start < 0:
            return None
        end = self.head.find(b"\r\n", start + 2)
        value = self.head[start + len(name) + 3 : end if end >= 0 else None]
        return value.strip().decode("latin-1")

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request after this response."""
        return self.complete and (self._chunked or self._left == 0) and self.header("connection") != "close"

    def _read_head(self) -> bool:
        """True when the head is whole (or an interim response was dropped and more bytes are there)."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head, self._buffer = self._buffer[:end].lower(), self._buffer[end + 4 :]
        if not head.startswith(b"http/1."):
            raise Malformed(head[:40].decode("latin-1"))
        status = int(head[9:12])
        if status < 200:
            return bool(self._buffer)
        self.head, self.status = head, status
        self._chunked = (self.header("transfer-encoding") or "").endswith("chunked")
        length = self.header("content-length")
        if status in _NO_BODY:
            self._chunked, length = False, "0"
        if not self._chunked:
            self._left = None if length is None else int(length)
            self.complete = self._left == 0
        else:
            self._left = 0
        return True

    def _read_plain(self) -> None:
        self.body_bytes += len(self._buffer)
        if self._left is not None:
            self._left -= len(self._buffer)
            self.complete = self._left <= 0
        self._buffer = b""

    def _read_chunks(self) -> None:
        while not self.complete:
            if self._left:
                taken = self._buffer[: self._left]
                self._buffer = self._buffer[len(taken) :]
                self._left -= len(taken)
                if self._left:
                    return
            end = self._buffer.find(b"\r\n")
            if end < 0:
                return
            line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
            self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        if self._in_trailers:
            self.complete = not line
            return
        try:
            size = int(line.split(b";", 1)[0], 16)
        except ValueError:
            raise Malformed(line[:40].decode("latin-1")) from None
        self.body_bytes += size
        self._left = size + 2 if size else 0  # a chunk ends in CRLF
        self._in_trailers = size == 0
