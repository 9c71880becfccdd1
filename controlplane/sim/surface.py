"""The HTTP surface of a model server: OpenAI requests, `/health`, `/metrics`, and `/sim/*` to script it.

It knows no physics: a `Backend` answers (`sim_backend`, or a real transformer in `real_model`).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

from aiohttp import web

from controlplane.sim import dcgm_text, exposition
from controlplane.sim.dcgm_text import BLANK, Gpu, Layout
from controlplane.sim.exposition import Family
from controlplane.sim.generation import Generation
from controlplane.sim.openai_api import Ask, Refused, Renderer, parse
from controlplane.sim.physics import Faults
from controlplane.sim.seen import Seen
from controlplane.sim.spread import Spread

MAX_BODY_BYTES = 64 * 1024 * 1024


class Backend(Protocol):
    """What answers behind the surface. `begin` raises Refused; `abort` of something finished does nothing."""

    max_model_len: int
    faults: Faults

    def begin(self, ask: Ask) -> Generation: ...
    def abort(self, generation: Generation) -> None: ...
    def ready(self) -> bool: ...
    def restart(self) -> None: ...
    def metrics(self) -> list[Family]: ...
    def busy_ratio(self) -> float: ...
    def state(self) -> dict[str, object]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuScript:
    """What the GPU counter shows. All default: what the engine really does."""

    util_percent: float | None = None  # None: computed
    blank: bool = False  # DCGM's "not supported" number
    absent: bool = False  # no GPU_UTIL series at all
    sm_active_ratio: float | None = None  # None: not exported


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a server is. `models` are the names it accepts; the first is the one it serves under."""

    name: str
    models: tuple[str, ...]
    namespace: str = "default"
    gpus: int = 1


class Surface:
    """One server's routes and what was scripted on them."""

    def __init__(self, backend: Backend, identity: Identity, *, layout: Layout = Layout.POD) -> None:
        self.backend = backend
        self.identity = identity
        self.layout = layout
        self.seen = Seen()
        self.gpu = GpuScript()
        self._failures = Spread()
        self._cuts = Spread()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/dcgm/metrics", self._gpu_metrics),
                web.get("/sim/state", self._state),
                web.get("/sim/seen", self._seen),
                web.get("/sim/faults", self._show_faults),
                web.post("/sim/faults", self._set_faults),
                web.post("/sim/gpu", self._set_gpu),
                web.post("/sim/reset", self._reset),
                web.post("/sim/restart", self._restart),
            ]
        )
        return app

    def gpu_list(self, *, first: int = 0) -> list[Gpu]:
        """This server's GPUs as a DCGM exporter sees them, numbered from `first`."""
        util: float | int | None = self.gpu.util_percent
        if self.gpu.blank:
            util = BLANK
        elif self.gpu.absent:
            util = None
        elif util is None:
            util = round(100.0 * self.backend.busy_ratio())
        return [
            Gpu(
                index=first + number,
                pod=self.identity.name,
                namespace=self.identity.namespace,
                util_percent=util,
                sm_active_ratio=self.gpu.sm_active_ratio,
            )
            for number in range(self.identity.gpus)
        ]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        self.seen.add(request.raw_headers)
        try:
            ask = parse(await request.read(), chat=chat)
            if ask.model is not None and ask.model not in self.identity.models:
                raise Refused(404, f"The model `{ask.model}` does not exist.", "NotFoundError")
            self._refuse_if_broken()
            generation = self.backend.begin(ask)
        except Refused as refused:
            return web.Response(status=refused.status, body=refused.body(), content_type="application/json")
        renderer = Renderer(
            ask,
            id=("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex,
            created=int(time.time()),
            model=ask.model or self.identity.models[0],
            prompt_tokens=generation.prompt_tokens,
            usage=self.backend.faults.usage,
        )
        try:
            send = self._stream if ask.stream else self._whole
            return await send(request, renderer, generation)
        finally:  # also when the client has left: the slot is free at once
            self.backend.abort(generation)

    def _refuse_if_broken(self) -> None:
        if not self.backend.ready():
            raise Refused(503, "the model is loading", "ServiceUnavailableError")
        faults = self.backend.faults
        if faults.kv_oom:
            raise Refused(500, "CUDA out of memory", "InternalServerError")
        if self._failures.hit(faults.failure_ratio):
            raise Refused(faults.failure_status, "injected failure", "InternalServerError")

    async def _whole(
        self, request: web.Request, renderer: Renderer, generation: Generation
    ) -> web.StreamResponse:
        await generation.all()
        assert generation.finish is not None
        if generation.finish == "error":
            refused = Refused(500, "the engine restarted", "InternalServerError")
            return web.Response(status=500, body=refused.body(), content_type="application/json")
        body = renderer.whole("".join(generation.tokens), len(generation.tokens), generation.finish)
        return web.Response(
            body=body, content_type="application/json", headers={"x-sim-pod": self.identity.name}
        )

    async def _stream(
        self, request: web.Request, renderer: Renderer, generation: Generation
    ) -> web.StreamResponse:
        cut = self._cuts.hit(self.backend.faults.cut_ratio)
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "x-sim-pod": self.identity.name,
            }
        )
        await response.prepare(request)
        sent = 0
        pending = renderer.first()
        while True:
            await generation.more(sent)
            tokens, finish = generation.tokens[sent:], generation.finish
            for number, token in enumerate(tokens, start=sent + 1):
                last = number == len(generation.tokens)
                pending += renderer.piece(token, number, finish if last else None)
            sent += len(tokens)
            if finish == "error" or cut:
                await response.write(pending)
                _abort_connection(request)
                return response
            if finish is not None:
                await response.write(pending + renderer.last(sent))
                return response
            await response.write(pending)
            pending = b""

    async def _models(self, request: web.Request) -> web.Response:
        rows = [
            {
                "id": model,
                "object": "model",
                "created": 0,
                "owned_by": "vllm",
                "root": self.identity.models[0],
                "parent": None,
                "max_model_len": self.backend.max_model_len,
            }
            for model in self.identity.models
        ]
        return web.json_response({"object": "list", "data": rows})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.backend.ready() else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        faults = self.backend.faults
        if faults.metrics_status != 200:
            return web.Response(status=faults.metrics_status)
        return _exposition(self.backend.metrics(), faults)

    async def _gpu_metrics(self, request: web.Request) -> web.Response:
        families = dcgm_text.families(self.gpu_list(), layout=self.layout)
        return _exposition(families, self.backend.faults)

    async def _state(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"name": self.identity.name, "gpu": asdict(self.gpu), **self.backend.state()}
        )

    async def _seen(self, request: web.Request) -> web.Response:
        return web.json_response(self.seen.as_json())

    async def _show_faults(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self.backend.faults))

    async def _set_faults(self, request: web.Request) -> web.Response:
        def put(changes: dict[str, Any]) -> object:
            self.backend.faults = replace(self.backend.faults, **changes)
            return self.backend.faults

        return await _scripted(request, Faults, put)

    async def _set_gpu(self, request: web.Request) -> web.Response:
        def put(changes: dict[str, Any]) -> object:
            self.gpu = GpuScript(**changes)
            return self.gpu

        return await _scripted(request, GpuScript, put)

    async def _reset(self, request: web.Request) -> web.Response:
        """Back to a healthy server and empty `seen`; engine counters go on, as they would."""
        self.backend.faults = Faults()
        self.gpu = GpuScript()
        self.seen = Seen()
        self._failures = Spread()
        self._cuts = Spread()
        return web.json_response({})

    async def _restart(self, request: web.Request) -> web.Response:
        """A new engine process: counters at zero, requests in flight lost, warm-up from the start."""
        self.backend.restart()
        return web.json_response({})


def _abort_connection(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _exposition(families: list[Family], faults: Faults) -> web.Response:
    text = exposition.text(families, hide=faults.hide_metrics, rename=faults.rename_metrics)
    return web.Response(body=text.encode(), headers={"Content-Type": exposition.CONTENT_TYPE})


async def _scripted(
    request: web.Request, kind: type[Any], put: Callable[[dict[str, Any]], object]
) -> web.Response:
    """Apply a JSON object of `kind`'s fields; an unknown field is an error, not a silent no-op."""
    changes = json.loads(await request.read() or b"{}")
    unknown = sorted(set(changes) - {field.name for field in fields(kind)})
    if unknown:
        known = ", ".join(field.name for field in fields(kind))
        return web.json_response({"error": f"unknown: {', '.join(unknown)}; known: {known}"}, status=400)
    now: Any = put(
        {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}
    )
    return web.json_response(asdict(now))
