"""A continuous-batching model server as physics: requests and time in, tokens out. No I/O, no clock.

The engine works in steps, like vLLM's scheduler. A step decodes one token for every sequence that is past its
prompt and spends what is left of its token budget on prompts (chunked prefill), so it takes

    base + per_sequence * decoding + prompt_tokens / prefill_speed        seconds.

Slots (`max_num_seqs`) and KV-cache blocks bound what runs; the rest waits in arrival order. When the blocks
run out in mid-decode the sequence admitted last is preempted and computed anew later, as vLLM does.

Throughput saturates and queueing time explodes for the same reasons as on a GPU, which a fixed delay per
request (the usual mock) cannot show. Left out: prefix caching, the growth of attention cost with context,
data-parallel ranks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from controlplane.sim.physics import Faults, Physics
from controlplane.sim.stats import Stats


@dataclass(frozen=True, slots=True)
class Output:
    """One token of one request; `finish` says why it was the last one, None while more will come."""

    request: int
    finish: str | None


@dataclass(slots=True)
class _Sequence:
    id: int
    arrived_s: float
    prompt_tokens: int
    answer_tokens: int
    finish: str
    todo_tokens: int  # still to prefill
    started_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    generated: int = 0
    blocks: int = 0


class _KvCache:
    """Blocks of the KV cache; `leaked` ones are taken by nobody who will give them back."""

    def __init__(self, physics: Physics) -> None:
        self.total = physics.kv_blocks
        self.free = physics.kv_blocks
        self._block_tokens = physics.block_tokens
        self.leaked = 0

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def fits(self, blocks: int) -> bool:
        return blocks <= max(0, self.free - self.leaked)

    def take(self, sequence: _Sequence, blocks: int) -> None:
        sequence.blocks += blocks
        self.free -= blocks

    def give_back(self, sequence: _Sequence) -> None:
        self.free += sequence.blocks
        sequence.blocks = 0


class TooLong(ValueError):
    """A request that can never fit: its tokens exceed the context or the KV cache."""


class Engine:
    """One server. Times are seconds on any clock of the caller's, never going back."""

    def __init__(self, physics: Physics, *, now_s: float) -> None:
        self.physics = physics
        self.stats = Stats(max_model_len=physics.max_model_len)
        self.ready_s = now_s + physics.warmup_s
        self._faults = Faults()
        self._warm = False
        self._kv = _KvCache(physics)
        self._running: dict[int, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._ids = 0
        self._step: tuple[float, float] | None = None  # start and end of the step under way
        self._chunks: dict[int, int] = {}  # prompt tokens this step computes, by sequence
        self._busy: deque[tuple[float, float]] = deque()  # recent steps

    @property
    def faults(self) -> Faults:
        """What is broken; after a change, `advance` starts what it held back."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self._kv.leaked = int(faults.kv_reserved_ratio * self._kv.total)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage_ratio(self) -> float:
        """Blocks that are taken, a leak included, as a part of all (0..1)."""
        if self.faults.kv_oom:
            return 1.0
        return min(1.0, 1.0 - (self._kv.free - self._kv.leaked) / self._kv.total)

    def ready(self, now_s: float) -> bool:
        """Whether requests are served: always when warm-up only slows."""
        return now_s >= self.ready_s or self.physics.warmup_slowdown > 0

    def busy_ratio(self, now_s: float, window_s: float = 1.0) -> float:
        """Share of the last `window_s` with a step under way: what a GPU utilisation counter shows."""
        begin_s = now_s - window_s
        steps = [*self._busy, self._step] if self._step else self._busy
        busy_s = sum(max(0.0, min(end_s, now_s) - max(start_s, begin_s)) for start_s, end_s in steps)
        return min(1.0, busy_s / window_s)

    def next_s(self) -> float | None:
        """When `advance` has something to report next; None while nothing is under way."""
        if self._step:
            return self._step[1]
        return self.ready_s if self._waiting and not self._warm and not self.faults.hang else None

    def submit(self, now_s: float, *, prompt_tokens: int, max_tokens: int | None = None) -> int:
        """Queue a request and return its id. Raises TooLong when it can never be served."""
        room = self.physics.max_model_len - prompt_tokens
        if room < 1 or (max_tokens or 1) > room:
            raise TooLong(
                f"This model's maximum context length is {self.physics.max_model_len} tokens, but "
                f"{prompt_tokens} in the prompt and {max_tokens or 1} in the answer were requested."
            )
        natural = min(self.physics.answer_tokens, room)
        answer = natural if max_tokens is None else min(natural, max_tokens)
        if self._kv.blocks_for(prompt_tokens + answer) > self._kv.total:
            raise TooLong(f"{prompt_tokens + answer} tokens exceed the KV cache")
        self._ids += 1
        sequence = _Sequence(
            id=self._ids,
            arrived_s=now_s,
            prompt_tokens=prompt_tokens,
            answer_tokens=answer,
            finish="stop" if max_tokens is None or natural < max_tokens else "length",
            todo_tokens=prompt_tokens,
        )
        self._waiting.append(sequence)
        self.stats.request_max_tokens.observe(max_tokens if max_tokens is not None else room)
        if self._step is None:
            self._start_step(now_s)
        return sequence.id

    def abort(self, request: int) -> bool:
        """Drop a request: its slot and KV blocks are free at once. False when it is not there (any more)."""
        sequence = self._running.pop(request, None)
        if sequence is None:
            sequence = next((each for each in self._waiting if each.id == request), None)
            if sequence is None:
                return False
            self._waiting.remove(sequence)
        self._kv.give_back(sequence)
        self.stats.finished["abort"] += 1
        return True

    def advance(self, now_s: float) -> list[Output]:
        """All tokens that were finished up to `now_s`, in order."""
        outputs: list[Output] = []
        while self._step is not None and self._step[1] <= now_s:
            end_s = self._step[1]
            self._finish_step(outputs)
            self._start_step(end_s)
        if self._step is None:
            self._start_step(now_s)  # a fault may have ended, or blocks been freed by an abort
        return outputs

    def _start_step(self, start_s: float) -> None:
        self._warm = self.ready(start_s)
        if self.faults.hang or not self._warm or not (self._running or self._waiting):
            return
        self._grow_decoding()
        budget = self.physics.max_num_batched_tokens
        decoding = sum(1 for each in self._running.values() if each.todo_tokens == 0)
        budget -= decoding
        self._chunks = {}
        for sequence in self._running.values():  # prompts cut by the last step's budget come first
            budget -= self._take_chunk(sequence, budget)
        while budget > 0 and self._admit(start_s):
            budget -= self._take_chunk(next(reversed(self._running.values())), budget)
        prefill = sum(self._chunks.values())
        if decoding == 0 and prefill == 0:
            return
        duration_s = (
            self.physics.step_base_s
            + self.physics.step_per_seq_s * decoding
            + prefill / self.physics.prefill_tokens_per_s
        )
        slow = self.physics.warmup_slowdown if start_s < self.ready_s else 1.0
        self._step = (start_s, start_s + duration_s * slow * self.faults.latency_factor)
        self.stats.step_tokens.observe(decoding + prefill)

    def _take_chunk(self, sequence: _Sequence, budget: int) -> int:
        chunk = min(sequence.todo_tokens, budget)
        if chunk > 0:
            self._chunks[sequence.id] = chunk
        return max(0, chunk)

    def _admit(self, start_s: float) -> bool:
        """Move the first waiting request that has arrived into a slot; False when none may."""
        if not self._waiting or len(self._running) >= self.physics.max_num_seqs:
            return False
        sequence = self._waiting[0]
        blocks = self._kv.blocks_for(sequence.todo_tokens + 1)
        if sequence.arrived_s > start_s or not self._kv.fits(blocks):
            return False
        self._waiting.popleft()
        if sequence.started_s is None:
            sequence.started_s = start_s
        self._kv.take(sequence, blocks)
        self._running[sequence.id] = sequence
        return True

    def _finish_step(self, outputs: list[Output]) -> None:
        assert self._step is not None
        end_s = self._step[1]
        self._remember_busy(self._step)
        self._step = None
        for sequence in list(self._running.values()):
            chunk = self._chunks.get(sequence.id, 0)
            if chunk:
                self._prefilled(sequence, chunk)
            if sequence.todo_tokens == 0:
                outputs.append(self._emit(sequence, end_s))

    def _prefilled(self, sequence: _Sequence, chunk: int) -> None:
        sequence.todo_tokens -= chunk
        if sequence.todo_tokens == 0 and sequence.generated == 0:
            self.stats.prompt_tokens += sequence.prompt_tokens

    def _emit(self, sequence: _Sequence, now_s: float) -> Output:
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
            self.stats.ttft_s.observe(now_s - sequence.arrived_s)
        else:
            self.stats.inter_token_s.observe(now_s - sequence.last_token_s)
        sequence.last_token_s = now_s
        sequence.generated += 1
        self.stats.generation_tokens += 1
        if sequence.generated < sequence.answer_tokens:
            return Output(sequence.id, None)
        del self._running[sequence.id]
        self._kv.give_back(sequence)
        self._count_finished(sequence, now_s)
        return Output(sequence.id, sequence.finish)

    def _count_finished(self, sequence: _Sequence, now_s: float) -> None:
        assert sequence.started_s is not None
        assert sequence.first_token_s is not None
        self.stats.count_finished(
            reason=sequence.finish,
            times_s=(sequence.arrived_s, sequence.started_s, sequence.first_token_s, now_s),
            prompt_tokens=sequence.prompt_tokens,
            generated_tokens=sequence.generated,
        )

    def _grow_decoding(self) -> None:
        """Give every decoding sequence room for its next token; for want of it the youngest gives way."""
        for sequence in list(self._running.values()):
            if sequence.todo_tokens or sequence.id not in self._running:
                continue
            needed = self._kv.blocks_for(sequence.prompt_tokens + sequence.generated + 1) - sequence.blocks
            while not self._kv.fits(needed) and sequence.id in self._running:
                self._preempt(next(reversed(self._running.values())))
            if sequence.id in self._running:
                self._kv.take(sequence, needed)

    def _preempt(self, sequence: _Sequence) -> None:
        del self._running[sequence.id]
        self._kv.give_back(sequence)
        sequence.todo_tokens = sequence.prompt_tokens + sequence.generated
        self._waiting.appendleft(sequence)
        self.stats.preemptions += 1

    def _remember_busy(self, step: tuple[float, float]) -> None:
        self._busy.append(step)
        while self._busy[0][1] < step[1] - 5.0:
            self._busy.popleft()
