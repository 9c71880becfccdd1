"""A real Redis-protocol server of a test's own: started, paused, continued, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """Listens on `port` (a free one) of loopback, keeps nothing on disk."""

    def __init__(self, path: Path, folder: Path, port: int | None = None, *arguments: str) -> None:
        self._path = path
        self._folder = folder
        self._arguments = arguments
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        command = [self._path, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._process = subprocess.Popen(
            [*command, "--appendonly", "no", "--dir", str(self._folder), *self._arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        deadline_s = time.monotonic() + 10
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 0.5) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(64):
                        return self
            except OSError:
                pass
            assert time.monotonic() < deadline_s, "the server does not answer"
            time.sleep(0.02)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self.resume()
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)
