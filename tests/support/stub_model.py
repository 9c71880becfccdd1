"""A model server that keeps what it was sent and answers JSON or a slow stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(slots=True, kw_only=True)
class StubModel:
    """`requests` are (path, header pairs, body), in order of arrival."""

    port: int
    requests: list[tuple[str, list[tuple[str, str]], Any]] = field(default_factory=list)
    broken_off_s: list[float] = field(default_factory=list)  # when a client left before the end, monotonic


async def _said(stub: StubModel, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(status=body.get("status", 200), headers=body.get("answer_headers"))
    try:
        await response.prepare(request)
        for text in body["say"]:
            await response.write(text.encode())
            await asyncio.sleep(body.get("interval_s", 0.0))
        if body.get("break_off"):
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write_eof()
    except (ConnectionError, asyncio.CancelledError):
        stub.broken_off_s.append(time.monotonic())
        raise
    return response


@asynccontextmanager
async def serving() -> AsyncIterator[StubModel]:
    """A stub on a free port. Body fields: `delay_s` before an answer, `chunks`, `interval_s` of a stream.

    With `say` (list of texts) in the body the answer is exactly these, `interval_s` apart, with `status` and
    the headers `answer_headers`; with `break_off` the connection closes instead of ending the answer.
    """
    stub = StubModel(port=0)

    async def answer(request: web.Request) -> web.StreamResponse:
        text = await request.read()
        body = await request.json() if text and request.content_type == "application/json" else None
        await asyncio.sleep((body or {}).get("delay_s", 0.0))
        stub.requests.append((request.path, list(request.headers.items()), body))
        if (body or {}).get("say") is not None:
            return await _said(stub, request, body)
        if not (body or {}).get("stream"):
            return web.json_response({"object": "chat.completion", "usage": {"total_tokens": 3}})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(body.get("chunks", 3)):
            await response.write(f'data: {{"chunk":{number}}}\n\n'.encode())
            await asyncio.sleep(body.get("interval_s", 0.0))
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application(client_max_size=32 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stub.port = runner.addresses[0][1]
    try:
        yield stub
    finally:
        await runner.cleanup()
