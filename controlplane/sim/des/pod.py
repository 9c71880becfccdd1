"""One model server as discrete events: the scheduler of `controlplane.sim.engine` at a constant cost a step.

`engine` walks over every running sequence at every step, which is right for a server that sends tokens and
too slow for hours of many pods. Here a step knows beforehand what it will do:

- A decoding sequence ends at a known step number: steps look up who ends, they do not count tokens.
- It needs a new KV block whenever its length is a multiple of the block size, so all that matters is how
  many sequences there are of each remainder.
- Only when blocks run out does a step walk over the sequences, to preempt the youngest, as `engine` does.

Both give the same times for the same requests (`tests/sim/des/test_pod.py`). A pod has no clock: `next_s`
says when its step ends, and the caller calls `finish_step` at that time.
"""

from __future__ import annotations

import math
from collections import deque

from controlplane.sim.des.job import Job, Outcome
from controlplane.sim.des.physics import PodPhysics


class Pod:
    """Requests and time in, first and last tokens out. Times never go back."""

    def __init__(self, physics: PodPhysics, number: int) -> None:
        self.physics = physics
        self.number = number
        self.next_s = math.inf  # end of the step under way
        self.up = True
        self.preemptions = 0
        self.first_tokens: list[Job] = []  # had theirs since somebody looked, who empties the list
        self._started_s = 0.0
        self._busy_s = 0.0  # in finished steps
        self._step = 0  # number of the step that is next, or under way
        self._free = physics.kv_blocks
        self._running: dict[Job, None] = {}  # in order of admission
        self._prefilling: list[Job] = []  # those of them that are not past their prompt
        self._chunks: list[tuple[Job, int]] = []
        self._waiting: deque[Job] = deque()
        self._ending: dict[int, list[Job]] = {}  # by step number
        self._growing = [0] * physics.block_tokens  # decoding sequences by `base` modulo the block size
        self._decoding = 0
        self._context_tokens = 0  # of the decoding

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def load(self) -> int:
        """Requests in it."""
        return len(self._running) + len(self._waiting)

    @property
    def kv_usage_ratio(self) -> float:
        return 1.0 - self._free / self.physics.kv_blocks

    def busy_s(self, now_s: float) -> float:
        """Seconds with a step under way, since the start: what a GPU utilisation counter integrates."""
        return self._busy_s + (now_s - self._started_s if self.next_s < math.inf else 0.0)

    def fits(self, job: Job) -> bool:
        """Whether it can ever be served here."""
        return self._blocks(job.prompt_tokens + job.answer_tokens) <= self.physics.kv_blocks

    def submit(self, job: Job, now_s: float) -> None:
        """Queue a request; an idle pod begins at once."""
        job.pod, job.todo_tokens = self.number, job.prompt_tokens
        self._waiting.append(job)
        if self.next_s == math.inf:
            self._start_step(now_s)

    def abort(self, job: Job) -> None:
        """Drop a request that has no first token yet; its blocks are free at once."""
        if job not in self._running:
            self._waiting.remove(job)
            return
        del self._running[job]
        self._prefilling.remove(job)
        self._free += job.blocks

    def lose(self, now_s: float) -> list[Job]:
        """The pod is gone for good, and everything in it: those requests are returned."""
        lost = [*self._running, *self._waiting]
        self._busy_s = self.busy_s(now_s)
        self._running.clear()
        self._waiting.clear()
        self.up, self.next_s = False, math.inf
        return lost

    def finish_step(self) -> list[Job]:
        """The step under way is over: requests that ended with it. The next one begins if there is work."""
        now_s = self.next_s
        self._busy_s += now_s - self._started_s
        self.next_s = math.inf
        ended = self._ending.pop(self._step, [])
        for job in ended:
            self._leave_decoding(job, job.prompt_tokens + job.answer_tokens)
            job.generated = job.answer_tokens
        self._context_tokens += self._decoding
        self._step += 1
        for job, chunk in self._chunks:
            if job in self._running:  # not aborted meanwhile
                job.todo_tokens -= chunk
                if job.todo_tokens == 0 and self._first_token(job, now_s):
                    ended.append(job)
        for job in ended:
            job.outcome, job.end_s = Outcome.DONE, now_s
        self._start_step(now_s)
        return ended

    def _first_token(self, job: Job, now_s: float) -> bool:
        """The prompt is computed, which yields one token. Whether it was the last one."""
        self._prefilling.remove(job)
        if job.first_s < 0:
            job.first_s = now_s
            self.first_tokens.append(job)
        job.generated += 1
        if job.generated >= job.answer_tokens:
            del self._running[job]
            self._free += job.blocks
            return True
        tokens = job.prompt_tokens + job.generated
        job.base = tokens - self._step
        self._ending.setdefault(self._step + job.answer_tokens - job.generated - 1, []).append(job)
        self._growing[job.base % self.physics.block_tokens] += 1
        self._decoding += 1
        self._context_tokens += tokens
        return False

    def _leave_decoding(self, job: Job, held_tokens: int) -> None:
        del self._running[job]
        self._free += self._blocks(held_tokens)
        self._growing[job.base % self.physics.block_tokens] -= 1
        self._decoding -= 1
        self._context_tokens -= job.base + self._step

    def _start_step(self, now_s: float) -> None:
        if not self._running and not self._waiting:
            return
        needed = self._growing[-self._step % self.physics.block_tokens]
        if needed <= self._free:
            self._free -= needed
        else:
            self._grow_one_by_one()
        budget = self.physics.max_num_batched_tokens - self._decoding
        self._chunks = []
        prefill = 0
        for job in self._prefilling:
            prefill += self._take_chunk(job, budget - prefill)
        while prefill < budget and self._waiting and self._admit():
            prefill += self._take_chunk(self._prefilling[-1], budget - prefill)
        if self._decoding == 0 and prefill == 0:
            return
        physics = self.physics
        self._started_s = now_s
        duration_s = (
            physics.step_base_s
            + physics.step_per_seq_s * self._decoding
            + physics.step_per_kv_token_s * self._context_tokens
            + prefill / physics.prefill_tokens_per_s
        )
        self.next_s = now_s + duration_s

    def _take_chunk(self, job: Job, budget: int) -> int:
        chunk = max(0, min(job.todo_tokens, budget))
        if chunk:
            self._chunks.append((job, chunk))
        return chunk

    def _admit(self) -> bool:
        """Move the first waiting request into a slot; False when slots or blocks are wanting."""
        job = self._waiting[0]
        blocks = self._blocks(job.todo_tokens + 1)
        if len(self._running) >= self.physics.max_num_seqs or blocks > self._free:
            return False
        self._waiting.popleft()
        job.blocks = blocks
        self._free -= blocks
        self._running[job] = None
        self._prefilling.append(job)
        return True

    def _grow_one_by_one(self) -> None:
        """Blocks are short: the oldest take theirs first, and for want of one the youngest gives way."""
        size = self.physics.block_tokens
        for job in list(self._running):
            if job.todo_tokens or job not in self._running or (job.base + self._step) % size:
                continue
            while self._free < 1 and job in self._running:
                self._preempt(next(reversed(self._running)))
            if job in self._running:
                self._free -= 1

    def _preempt(self, job: Job) -> None:
        """Back to the head of the queue, everything but its tokens lost. It has not grown in this step."""
        self.preemptions += 1
        if job.todo_tokens:
            del self._running[job]
            self._prefilling.remove(job)
            self._free += job.blocks
        else:
            tokens = job.base + self._step
            job.generated = tokens - job.prompt_tokens
            self._ending[self._step + job.answer_tokens - job.generated - 1].remove(job)
            self._leave_decoding(job, tokens)
        job.todo_tokens = job.prompt_tokens + job.generated
        self._waiting.appendleft(job)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.physics.block_tokens)
