"""Any interleaving of reserve, settle, replay, lost gateways and clock steps by several processes, against a
reference written another way: it keeps a line for each attempt and adds them up when asked, where the stores
keep running totals. What the stores say has to be exact at every step, so nothing leaks and nothing is lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from redis.asyncio import Redis
from redis_server import RedisServer

from controlplane.assets import read_asset
from controlplane.policy.calendar import window
from controlplane.policy.memory import MemoryStore
from controlplane.policy.quota import Account, Line
from controlplane.policy.redis_store import RedisStore
from controlplane.policy.script import QUOTA, Script
from controlplane.policy.store import Reservation, Settled, Settlement, Store

LEASE_S, EPOCH_S = 600.0, 50.0
ZONE = "Europe/Berlin"
START_S = datetime(2024, 10, 31, 22, 59, 40, tzinfo=UTC).timestamp()  # a month ends in twenty seconds
Answer = TypeVar("Answer")
_tenants = itertools.count()


@dataclass(kw_only=True)
class Attempt:
    """One reservation in the reference's books."""

    request: str
    name: str
    tokens: int
    windows: tuple[str, str]
    expires_s: float
    used: int | None = None  # settled

    def counted(self, now_s: float) -> tuple[int, int]:
        """Used and reserved at `now_s`."""
        if self.used is not None:
            return self.used, 0
        return (self.tokens, 0) if self.expires_s <= now_s else (0, self.tokens)


class Books(RuleBasedStateMachine):
    """One account, three processes. In each epoch, shorter than anything is remembered, request ids are
    repeated and time steps to and fro; an epoch ends with every gateway lost, until all leases are over."""

    open: Callable[[Callable[[], float]], list[Store]]  # given by the test
    run: Callable[[Coroutine[Any, Any, Answer]], Answer]

    def __init__(self) -> None:
        super().__init__()
        self.now_s = self.epoch_s = START_S
        self.processes = type(self).open(lambda: self.now_s)
        self.tenant = f"tenant-{next(_tenants)}"
        self.account = self.with_limits(1500, 2500)
        self.attempts: list[Attempt] = []
        self.unreserved: list[tuple[tuple[str, str], int]] = []
        self.epoch = 0
        self.known: set[str] = set()  # ids of this epoch
        self.refused: dict[str, int] = {}

    def with_limits(self, day: int, month: int) -> Account:
        limits = (("daily", day), ("monthly", month))
        lines = tuple(Line(period=p, limit_tokens=tokens, time_zone=ZONE) for p, tokens in limits)
        return Account(tenant=self.tenant, pool="chat:v1", lines=lines)

    def windows(self) -> tuple[str, str]:
        return window(self.now_s, "daily", ZONE).id, window(self.now_s, "monthly", ZONE).id

    def expected(self) -> list[tuple[int, int]]:
        """Used and reserved of each quota in its window of now."""
        totals = []
        for place, name in enumerate(self.windows()):
            mine = [a.counted(self.now_s) for a in self.attempts if a.windows[place] == name]
            charged = sum(tokens for windows, tokens in self.unreserved if windows[place] == name)
            totals.append((charged + sum(used for used, _ in mine), sum(reserved for _, reserved in mine)))
        return totals

    def ask(self, process: int, ask: Reservation) -> bool:
        return type(self).run(self.processes[process].reserve(self.account, ask)).admitted

    def told(self, process: int, request: str, tokens: int) -> Settled:
        settlement = Settlement(request=request, tokens=tokens)
        return type(self).run(self.processes[process].settle(self.account, settlement)).settled

    @rule(number=st.integers(0, 4), tokens=st.integers(0, 900), process=st.integers(0, 2))
    def reserve(self, number: int, tokens: int, process: int) -> None:
        request, name = f"{self.epoch}-{number}", f"attempt-{len(self.attempts)}-{self.epoch}"
        limits = [line.limit_tokens for line in self.account.lines]
        fits = all(
            used + reserved + max(1, tokens) <= limit
            for (used, reserved), limit in zip(self.expected(), limits, strict=True)
        )
        assert self.ask(process, Reservation(request=request, attempt=name, tokens=tokens)) is fits
        self.known.add(request)
        if fits:
            self.attempts.append(
                Attempt(
                    request=request,
                    name=name,
                    tokens=tokens,
                    windows=self.windows(),
                    expires_s=self.now_s + LEASE_S,
                )
            )
        else:
            self.refused[request] = self.refused.get(request, 0) + 1

    @rule(place=st.integers(0, 50), process=st.integers(0, 2))
    def replay(self, place: int, process: int) -> None:
        fresh = [a for a in self.attempts if a.request in self.known]
        if fresh:
            old = fresh[place % len(fresh)]
            assert self.ask(process, Reservation(request=old.request, attempt=old.name, tokens=old.tokens))

    @rule(number=st.integers(0, 4), tokens=st.integers(0, 1500), process=st.integers(0, 2))
    def settle(self, number: int, tokens: int, process: int) -> None:
        request = f"{self.epoch}-{number}"
        outcome = self.told(process, request, tokens)
        waiting = [a for a in self.attempts if a.request == request and a.used is None]
        if waiting:
            assert outcome is Settled.SETTLED
            min(waiting, key=lambda attempt: attempt.expires_s).used = tokens
        elif self.refused.get(request):
            assert outcome is Settled.REFUSED
            self.refused[request] -= 1
        elif request in self.known:
            assert outcome is Settled.DUPLICATE
        else:
            assert outcome is Settled.UNRESERVED
            self.known.add(request)
            self.unreserved.append((self.windows(), tokens))

    @rule(tokens=st.integers(0, 1500), process=st.integers(0, 2))
    def settle_after_the_lease(self, tokens: int, process: int) -> None:
        lost = [a for a in self.attempts if a.used is None and a.expires_s <= self.now_s < a.expires_s + 400]
        if lost:
            oldest = min((a for a in lost if a.request == lost[0].request), key=lambda a: a.expires_s)
            assert self.told(process, oldest.request, tokens) is Settled.LATE
            oldest.used = tokens

    @rule(day=st.integers(0, 3000), month=st.integers(0, 5000))
    def change_limits(self, day: int, month: int) -> None:
        self.account = self.with_limits(day, month)

    @rule(seconds=st.sampled_from([-20.0, -3.0, 0.5, 7.0, 25.0]))
    def step_the_clock(self, seconds: float) -> None:
        self.now_s = min(max(self.epoch_s, self.now_s + seconds), self.epoch_s + EPOCH_S)

    @rule()
    def lose_every_gateway(self) -> None:
        flying = [a.expires_s for a in self.attempts if a.used is None and a.expires_s > self.now_s]
        if flying:
            self.now_s = self.epoch_s = max(flying) + 1.0
            self.epoch += 1
            self.known, self.refused = set(), {}
            assert all(reserved == 0 for _, reserved in self.expected())

    @invariant()
    def every_process_says_the_same(self) -> None:
        for process in self.processes:
            balances = type(self).run(process.show(self.account))
            assert [(b.used_tokens, b.reserved_tokens) for b in balances] == self.expected()
            assert all(balance.remaining_tokens >= 0 for balance in balances)


def check(open_processes: Callable[..., list[Store]], loop: asyncio.AbstractEventLoop, examples: int) -> None:
    class Machine(Books):
        open = staticmethod(open_processes)
        run = staticmethod(loop.run_until_complete)

    slow = [HealthCheck.too_slow]
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=slow
        ),
    )


def test_the_memory_store_is_exact_in_any_order() -> None:
    def processes(clock: Callable[[], float]) -> list[Store]:
        return [MemoryStore(clock=clock, lease_s=LEASE_S)] * 3

    loop = asyncio.new_event_loop()
    check(processes, loop, examples=100)
    loop.close()


@pytest.mark.redis
def test_the_redis_store_is_exact_in_any_order(redis_server: RedisServer) -> None:
    script, loop = Script(read_asset(QUOTA)), asyncio.new_event_loop()
    clients = [Redis.from_url(redis_server.url) for _ in range(3)]

    def processes(clock: Callable[[], float]) -> list[Store]:
        return [RedisStore(c, script, lease_s=LEASE_S, timeout_s=5.0, clock=clock) for c in clients]

    check(processes, loop, examples=25)
    for client in clients:
        loop.run_until_complete(client.aclose())
    loop.close()
