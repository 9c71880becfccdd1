"""An open-loop load generator: keys with rate schedules in, what happened to every request out.

Open loop: a request is sent when its time has come, whatever became of those before it, so that a slow server
meets the same load as a fast one. Requests that find no connection (the bound is `max_connections`) are
counted as `unsent`, never delayed; how late the others left is reported, so a saturated generator shows.

`python -m controlplane.sim.load --spec FILE.json` runs it in a process of its own: one JSON line of totals a
second, then one with the result. `replay` is the same as a coroutine; `generate` runs on the caller's loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from controlplane.sim.load_client import SPOOF_MARK, SPOOFED_HEADERS, Connection, Flight, Writer
from controlplane.sim.load_result import FAILED, Counts, KeyResult, LoadResult
from controlplane.sim.load_spec import LoadKey, LoadSpec, plan
from controlplane.sim.trace import EXCERPT, TraceRequest, read_trace

__all__ = [
    "SPOOFED_HEADERS",
    "SPOOF_MARK",
    "Counts",
    "KeyResult",
    "LoadKey",
    "LoadResult",
    "LoadSpec",
    "generate",
    "replay",
]

OnProgress = Callable[[dict[str, Any]], None]


class _Generator:
    """The run itself."""

    def __init__(self, spec: LoadSpec) -> None:
        self._spec = spec
        self._loop = asyncio.get_running_loop()
        self._writers = [Writer(spec, key) for key in spec.keys]
        self._keys = [KeyResult(name=key.name) for key in spec.keys]
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._late_s: list[float] = []
        self._unsent = 0
        trace = read_trace(Path(spec.trace) if spec.trace else EXCERPT)
        self._plan = plan(spec, trace)
        start_unix_s = spec.start_at_s if spec.start_at_s is not None else time.time()
        self._unix_offset_s = time.time() - self._loop.time()
        self._start_s = start_unix_s - self._unix_offset_s

    async def run(self, on_progress: OnProgress | None) -> LoadResult:
        reporter = asyncio.create_task(self._report(on_progress))
        try:
            await self._send_all()
            await self._drain()
        finally:
            reporter.cancel()
            for task in self._opening:
                task.cancel()
            for connection in self._open:
                if connection.transport is not None:
                    connection.transport.abort()
        await asyncio.sleep(0)  # lets the aborted connections write their rows
        return LoadResult(
            started_s=self._start_s + self._unix_offset_s,
            duration_s=self._spec.duration_s,
            keys=tuple(self._keys),
            unsent=self._unsent,
            late_p99_s=_p99(self._late_s),
        )

    async def _send_all(self) -> None:
        for at_s, index, request in self._plan:
            due_s = self._start_s + at_s
            wait_s = due_s - self._loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._send(due_s, index, request)

    def _send(self, due_s: float, index: int, request: TraceRequest) -> None:
        message = self._writers[index].next(request)
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                self._write(connection, due_s, index, message)
                return
        if len(self._open) + len(self._opening) < self._spec.max_connections:
            task = asyncio.create_task(self._write_on_new(due_s, index, message))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        else:
            self._unsent += 1

    async def _write_on_new(self, due_s: float, index: int, message: bytes) -> None:
        try:
            _, connection = await self._loop.create_connection(
                lambda: Connection(self._idle.append, self._forget), self._spec.host, self._spec.port
            )
        except OSError:
            self._keys[index].add(due_s + self._unix_offset_s, status=FAILED)
            return
        if connection.usable:
            self._open.add(connection)
            self._write(connection, due_s, index, message)
        else:
            self._keys[index].add(due_s + self._unix_offset_s, status=FAILED)

    def _write(self, connection: Connection, due_s: float, index: int, message: bytes) -> None:
        assert connection.transport is not None
        now_s = self._loop.time()
        self._late_s.append(now_s - due_s)
        result = self._keys[index]
        row = result.add(now_s + self._unix_offset_s)
        connection.flight = Flight(result, row, self._loop.time)
        connection.transport.write(message)

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def _drain(self) -> None:
        end_s = self._loop.time() + self._spec.timeout_s
        while self._loop.time() < end_s and (self._opening or any(each.flight for each in self._open)):
            await asyncio.sleep(0.02)
        for connection in list(self._open):
            connection.give_up_after(0.0)

    async def _report(self, on_progress: OnProgress | None) -> None:
        """Once a second: totals so far, and an end to requests that take too long."""
        second = 0
        while True:
            second += 1
            await asyncio.sleep(max(0.0, self._start_s + second - self._loop.time()))
            for connection in list(self._open):
                connection.give_up_after(self._spec.timeout_s)
            if on_progress is not None:
                on_progress(
                    {"second": second, "keys": {key.name: asdict(key.totals()) for key in self._keys}}
                )


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))] if values else 0.0


async def generate(spec: LoadSpec, on_progress: OnProgress | None = None) -> LoadResult:
    """Run the load on this event loop."""
    return await _Generator(spec).run(on_progress)


async def replay(spec: LoadSpec, on_progress: OnProgress | None = None) -> LoadResult:
    """Run the load in a process of its own. Cancelling ends the process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controlplane.sim.load", "--spec", "-"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 28,  # the result is one long line
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(asdict(spec)).encode() + b"\n")
        async for line in process.stdout:
            document = json.loads(line)
            if "result" in document:
                return LoadResult.from_json(document["result"])
            if on_progress is not None:
                on_progress(document)
        raise RuntimeError(f"the load generator ended without a result (exit status {await process.wait()})")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="An open-loop load generator.")
    parser.add_argument("--spec", required=True, help="JSON file; '-': first line of standard input")
    path = parser.parse_args().spec
    document = json.loads(sys.stdin.readline() if path == "-" else Path(path).read_text(encoding="utf-8"))

    def show(progress: dict[str, Any]) -> None:
        print(json.dumps(progress), flush=True)

    result = asyncio.run(generate(LoadSpec.from_json(document), show))
    show({"result": result.as_json()})


if __name__ == "__main__":
    main()
