"""The engine on the event loop's clock: what answers behind the HTTP surface of a simulated pod."""

from __future__ import annotations

import asyncio

from controlplane.sim import vllm_text
from controlplane.sim.engine import Engine, Output, TooLong
from controlplane.sim.exposition import Family
from controlplane.sim.generation import Generation
from controlplane.sim.openai_api import Ask, Refused
from controlplane.sim.physics import Faults, Physics

TOKENS = (
    "The",
    " tide",
    " comes",
    " in",
    " and",
    " the",
    " gate",
    " lets",
    " it",
    " through",
    " slowly",
    ".",
)


class SimBackend:
    """An Engine on the event loop's clock."""

    def __init__(self, physics: Physics, *, model: str) -> None:
        self.max_model_len = physics.max_model_len
        self._physics = physics
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._engine = Engine(physics, now_s=self._loop.time())
        self._generations: dict[int, Generation] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def faults(self) -> Faults:
        return self._engine.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._engine.faults = faults
        self._advance()

    def begin(self, ask: Ask) -> Generation:
        self._advance()
        try:
            request = self._engine.submit(
                self._loop.time(), prompt_tokens=ask.prompt_tokens, max_tokens=ask.max_tokens
            )
        except TooLong as error:
            raise Refused(400, str(error)) from None
        generation = Generation(request=request, prompt_tokens=ask.prompt_tokens)
        self._generations[request] = generation
        self._arm()
        return generation

    def abort(self, generation: Generation) -> None:
        if self._generations.pop(generation.request, None) is not None:
            self._engine.abort(generation.request)

    def ready(self) -> bool:
        return self._engine.ready(self._loop.time())

    def restart(self) -> None:
        lost, self._generations = self._generations, {}
        faults = self._engine.faults
        self._engine = Engine(self._physics, now_s=self._loop.time())
        self._engine.faults = faults
        for generation in lost.values():
            generation.push("", "error")

    def metrics(self) -> list[Family]:
        self._advance()
        engine, physics = self._engine, self._physics
        now = vllm_text.Occupancy(
            running=engine.running,
            waiting=engine.waiting,
            kv_usage_ratio=engine.kv_usage_ratio,
            kv_blocks=physics.kv_blocks,
            block_tokens=physics.block_tokens,
        )
        return vllm_text.families(engine.stats, now, model_name=self._model)

    def busy_ratio(self) -> float:
        self._advance()
        return self._engine.busy_ratio(self._loop.time())

    def state(self) -> dict[str, object]:
        return {
            "ready": self.ready(),
            "running": self._engine.running,
            "waiting": self._engine.waiting,
            "kv_usage_ratio": self._engine.kv_usage_ratio,
            "busy_ratio": self.busy_ratio(),
        }

    def _advance(self) -> None:
        for output in self._engine.advance(self._loop.time()):
            self._deliver(output)
        self._arm()

    def _deliver(self, output: Output) -> None:
        generation = self._generations.get(output.request)
        if generation is None:
            return
        generation.push(TOKENS[len(generation.tokens) % len(TOKENS)], output.finish)
        if output.finish is not None:
            del self._generations[output.request]

    def _arm(self) -> None:
        next_s = self._engine.next_s()
        if self._timer is None and next_s is not None:
            self._timer = self._loop.call_at(next_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._advance()
