"""A pod that really thinks: SmolLM2-135M behind the same HTTP surface and metrics as the simulated ones.

A worker thread batches continuously: every step takes one new token of each running sequence and a chunk of
at most one prompt. It answers 503 while the weights load, which is its warm-up. Slots and the size of the KV
cache come from `Physics`, its speed from the CPU.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from controlplane.sim import transformer, vllm_text
from controlplane.sim.exposition import Family
from controlplane.sim.generation import Generation
from controlplane.sim.openai_api import Ask, Refused
from controlplane.sim.physics import Faults, Physics
from controlplane.sim.stats import Stats

END = "<|im_end|>"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
PREFILL_CHUNK_TOKENS = 128
DEFAULT_ANSWER_TOKENS = 64


@dataclass(slots=True, eq=False)
class _Sequence:
    generation: Generation
    ids: list[int]  # prompt, then answer
    max_tokens: int
    arrived_s: float
    done: int = 0  # ids in the cache
    text: str = ""  # of the answer, as far as it was pushed
    started_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    cache: transformer.KvCache = field(default_factory=transformer.KvCache)
    aborted: bool = False

    @property
    def generated(self) -> int:
        return len(self.ids) - self.generation.prompt_tokens


class RealBackend:
    """`surface.Backend` on a real transformer. Raises ModelMissing when the extra is not installed."""

    def __init__(self, physics: Physics, *, model: str) -> None:
        transformer.weights_path()
        self.faults = Faults()
        self.max_model_len = physics.max_model_len
        self.stats = Stats(max_model_len=physics.max_model_len)
        self._physics = physics
        self._name = model
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Condition()
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._sequences: dict[int, _Sequence] = {}
        self._count = 0
        self._busy: deque[tuple[float, float]] = deque(maxlen=1000)
        self._loaded = False
        threading.Thread(target=self._work, daemon=True).start()

    def begin(self, ask: Ask) -> Generation:
        _, tokenizer = transformer.load()
        ids: list[int] = tokenizer.encode(_prompt(ask)).ids or [0]
        room = self.max_model_len - len(ids)
        if room < (ask.max_tokens or 1):
            raise Refused(400, f"the context of {self.max_model_len} tokens is too short")
        self._count += 1
        generation = Generation(request=self._count, prompt_tokens=len(ids))
        limit = min(room, ask.max_tokens or DEFAULT_ANSWER_TOKENS)
        sequence = _Sequence(generation, ids, limit, time.monotonic())
        self.stats.request_max_tokens.observe(limit)
        self._sequences[generation.request] = sequence
        with self._wake:
            self._waiting.append(sequence)
            self._wake.notify()
        return generation

    def abort(self, generation: Generation) -> None:
        sequence = self._sequences.pop(generation.request, None)
        if sequence is not None and generation.finish is None:
            sequence.aborted = True

    def ready(self) -> bool:
        return self._loaded

    def restart(self) -> None:
        self.stats = Stats(max_model_len=self.max_model_len)
        for sequence in self._sequences.values():
            sequence.aborted = True
            sequence.generation.push("", "error")

    def busy_ratio(self) -> float:
        now_s = time.monotonic()
        busy_s = sum(max(0.0, end_s - max(start_s, now_s - 1.0)) for start_s, end_s in list(self._busy))
        return min(1.0, busy_s)

    def metrics(self) -> list[Family]:
        blocks = self._physics.kv_blocks
        used = sum(-(-each.cache.length // self._physics.block_tokens) for each in list(self._running))
        now = vllm_text.Occupancy(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage_ratio=min(1.0, used / blocks),
            kv_blocks=blocks,
            block_tokens=self._physics.block_tokens,
        )
        return vllm_text.families(self.stats, now, model_name=self._name)

    def state(self) -> dict[str, object]:
        return {
            "ready": self.ready(),
            "running": len(self._running),
            "waiting": len(self._waiting),
            "busy_ratio": self.busy_ratio(),
        }

    def _work(self) -> None:
        """The engine's thread: load, then step for ever."""
        transformer.load()
        self._loaded = True
        while True:
            with self._wake:
                while not (self._waiting or self._running) or self.faults.hang:
                    self._wake.wait(0.2)
                self._admit()
            start_s = time.monotonic()
            self._step()
            time.sleep((self.faults.latency_factor - 1) * (time.monotonic() - start_s))
            self._busy.append((start_s, time.monotonic()))

    def _admit(self) -> None:
        for group in (self._waiting, self._running):
            for sequence in [each for each in group if each.aborted]:
                group.remove(sequence)
                self.stats.finished["abort"] += 1
        while self._waiting and len(self._running) < self._physics.max_num_seqs:
            sequence = self._waiting.popleft()
            sequence.started_s = time.monotonic()
            self._running.append(sequence)

    def _step(self) -> None:
        decoding = [each for each in self._running if each.done == len(each.ids) - 1 and each.generated]
        prefilling = [each for each in self._running if each not in decoding][:1]
        batch = decoding + prefilling
        if not batch:
            return
        model, _ = transformer.load()
        chunks = [each.ids[each.done : each.done + PREFILL_CHUNK_TOKENS] for each in batch]
        scores = model.step([(each.cache, chunk) for each, chunk in zip(batch, chunks, strict=True)])
        self.stats.step_tokens.observe(sum(len(chunk) for chunk in chunks))
        for sequence, chunk, best in zip(batch, chunks, scores.argmax(axis=-1).tolist(), strict=True):
            sequence.done += len(chunk)
            if sequence.done == len(sequence.ids):
                self._emit(sequence, int(best))

    def _emit(self, sequence: _Sequence, token: int) -> None:
        _, tokenizer = transformer.load()
        now_s = time.monotonic()
        if sequence.first_s is None:
            sequence.first_s = now_s
            self.stats.ttft_s.observe(now_s - sequence.arrived_s)
            self.stats.prompt_tokens += sequence.generation.prompt_tokens
        else:
            self.stats.inter_token_s.observe(now_s - sequence.last_s)
        sequence.last_s = now_s
        sequence.ids.append(token)
        self.stats.generation_tokens += 1
        ended = token == tokenizer.token_to_id(END)
        finish = "stop" if ended else "length" if sequence.generated >= sequence.max_tokens else None
        text: str = tokenizer.decode(sequence.ids[sequence.generation.prompt_tokens :])
        if finish is None and text.endswith("\ufffd"):
            return  # half a character: wait for the rest
        piece, sequence.text = text[len(sequence.text) :], text
        if finish is not None:
            self._running.remove(sequence)
            self.stats.count_finished(
                reason=finish,
                times_s=(sequence.arrived_s, sequence.started_s, sequence.first_s, now_s),
                prompt_tokens=sequence.generation.prompt_tokens,
                generated_tokens=sequence.generated,
            )
        if not sequence.aborted:
            self._loop.call_soon_threadsafe(sequence.generation.push, piece, finish)


def _prompt(ask: Ask) -> str:
    """SmolLM2's chat template; a plain completion is the text itself."""
    if not ask.chat:
        return ask.text
    messages = ask.messages if ask.messages[0][0] == "system" else (("system", SYSTEM), *ask.messages)
    turns = "".join(f"<|im_start|>{role}\n{text}{END}\n" for role, text in messages)
    return f"{turns}<|im_start|>assistant\n"
