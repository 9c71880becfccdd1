"""Words for tests of breakers: calls in numbers, and a run of ticks with time as a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from controlplane.decide.breakers import BreakerMemory, BreakerTick, judge_breaker
from controlplane.model.decision import BreakerDecision, BreakerState
from controlplane.model.policy import BreakerPolicy
from controlplane.model.signal import Calls

BOUNDS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, math.inf)
POOL = "chat:v1"


@dataclass(slots=True)
class Watched:
    """One pool, its breaker and what its gateways have counted so far."""

    policy: BreakerPolicy = field(default_factory=BreakerPolicy)
    memory: BreakerMemory = field(default_factory=BreakerMemory)
    good: float = 0.0
    failed: float = 0.0
    within: list[float] = field(default_factory=lambda: [0.0] * len(BOUNDS_S))
    in_a_row: int = 0
    states: list[BreakerState] = field(default_factory=list)
    last: BreakerDecision | None = None

    def count(self, good: float = 0, failed: float = 0, first_byte_s: float | Sequence[float] = 0.08) -> None:
        """Calls since the last tick; each of the times belongs to an equal part of the good ones."""
        self.good += good
        self.failed += failed
        self.in_a_row = 0 if good else self.in_a_row + int(failed)
        times = [first_byte_s] if isinstance(first_byte_s, int | float) else first_byte_s
        for time_s in times:
            for index, bound_s in enumerate(BOUNDS_S):
                self.within[index] += good / len(times) if time_s <= bound_s else 0.0

    @property
    def calls(self) -> Calls:
        return Calls(
            answered=self.good + self.failed,
            failed=self.failed,
            bounds_s=BOUNDS_S,
            within=tuple(self.within),
            failures_in_a_row=self.in_a_row,
        )

    def tick(
        self, dt_s: float = 1.0, *, silent: bool = False, offered_per_s: float | None = 50.0
    ) -> BreakerDecision:
        """One tick `dt_s` later; `silent`: no gateway reports."""
        tick = BreakerTick(
            pool=POOL, dt_s=dt_s, calls=None if silent else self.calls, offered_per_s=offered_per_s
        )
        self.memory, self.last = judge_breaker(self.policy, self.memory, tick)
        if not self.states or self.states[-1] is not self.last.state:
            self.states.append(self.last.state)
        return self.last

    def run(
        self,
        ticks: int,
        *,
        good: float = 50,
        failed: float = 0,
        first_byte_s: float | Sequence[float] = 0.08,
        dt_s: float = 1.0,
    ) -> BreakerDecision:
        """Ticks with the same calls a second, as far as the breaker lets calls pass."""
        for _ in range(ticks):
            state = self.last.state if self.last else BreakerState.CLOSED
            part = {BreakerState.CLOSED: 1.0, BreakerState.OPEN: 0.0, BreakerState.HALF_OPEN: 0.06}[state]
            self.count(good * part * dt_s, failed * part * dt_s, first_byte_s)
            self.tick(dt_s)
        assert self.last is not None
        return self.last
