"""Processes on one store that comes and goes, loses questions and loses answers: whatever the order, once
everything is settled and the store has been back for a while, it has counted each request exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from hypothesis import example, given, settings
from hypothesis import strategies as st

from controlplane.policy.debt import Debt
from controlplane.policy.guarded import GuardedStore
from controlplane.policy.memory import MemoryStore
from controlplane.policy.quota import Account, Balance, Line, Verdict
from controlplane.policy.store import Outcome, Reservation, Settlement, StoreError

LIMIT, NOW_S = 10**9, 1_700_000_000.0
ACCOUNT = Account(tenant="acme", pool="chat:v1", lines=(Line(period="daily", limit_tokens=LIMIT),))
Answer = TypeVar("Answer")


class Fate(StrEnum):
    """What becomes of a question."""

    ANSWERED = "answered"
    LOST = "lost"  # it never arrived
    UNHEARD = "unheard"  # it was counted, but the answer was lost


class Shared:
    """A store behind a network that the test breaks."""

    def __init__(self) -> None:
        self.memory = MemoryStore(clock=lambda: NOW_S, lease_s=3600.0)
        self.fate = Fate.ANSWERED

    async def _asked(self, question: Callable[[], Awaitable[Answer]]) -> Answer:
        await asyncio.sleep(0)
        if self.fate is Fate.LOST:
            raise StoreError("lost")
        answer = await question()
        if self.fate is Fate.UNHEARD:
            raise StoreError("unheard")
        return answer

    async def reserve(self, account: Account, reservation: Reservation) -> Verdict:
        return await self._asked(lambda: self.memory.reserve(account, reservation))

    async def settle(self, account: Account, settlement: Settlement) -> Outcome:
        return await self._asked(lambda: self.memory.settle(account, settlement))

    async def show(self, account: Account) -> tuple[Balance, ...]:
        return await self._asked(lambda: self.memory.show(account))

    async def adjust(self, account: Account, period: str, *, grant_tokens: int | None) -> tuple[Balance, ...]:
        return await self._asked(lambda: self.memory.adjust(account, period, grant_tokens=grant_tokens))

    async def greet(self, timeout_s: float) -> None:
        if self.fate is not Fate.ANSWERED:
            raise StoreError("away")

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Step:
    """One thing that happens: what, to which request, by which process."""

    kind: str  # reserve | settle | repeat (a second settlement) | or a Fate
    request: int = 0
    process: int = 0


async def played(steps: list[Step]) -> tuple[int, int, int]:
    """Used and reserved tokens in the store when all is over, and the tokens that were really used."""
    shared = Shared()
    processes = [
        GuardedStore(
            shared,
            shared,
            Debt(name=str(number), lease_s=3600.0),
            clock=lambda: NOW_S,
            processes=lambda: 1,
            on_change=lambda _why: None,
            probe_s=0.001,
        )
        for number in range(2)
    ]
    flying: dict[int, int] = {}
    settled: dict[int, int] = {}

    async def settle(request: int, process: int) -> None:
        settled[request] = flying.pop(request)
        await processes[process].settle(ACCOUNT, Settlement(request=str(request), tokens=settled[request]))

    for step in steps:
        if step.kind in tuple(Fate):
            shared.fate = Fate(step.kind)
            await asyncio.sleep(0.004)  # time to notice
        elif step.kind == "reserve" and step.request not in flying and step.request not in settled:
            ask = Reservation(request=str(step.request), attempt=f"attempt-{step.request}", tokens=1000)
            assert (await processes[step.process].reserve(ACCOUNT, ask)).admitted
            flying[step.request] = 100 + step.request
        elif step.kind == "settle" and step.request in flying:
            await settle(step.request, step.process)
        elif step.kind == "repeat" and step.request in settled:
            again = Settlement(request=str(step.request), tokens=999)
            await processes[step.process].settle(ACCOUNT, again)
    shared.fate = Fate.ANSWERED
    await quiet(processes)
    for request in tuple(flying):
        await settle(request, request % 2)
    await quiet(processes)
    (balance,) = await shared.memory.show(ACCOUNT)
    return balance.used_tokens, balance.reserved_tokens, sum(settled.values())


async def quiet(processes: list[GuardedStore]) -> None:
    """Until nobody has anything left to tell."""
    async with asyncio.timeout(10):
        while any(one.is_degraded or not one.debt.is_empty for one in processes):
            await asyncio.sleep(0.001)


FATES = [Step(fate) for fate in Fate]
HAPPENINGS = st.one_of(
    st.sampled_from(FATES),
    st.builds(Step, st.just("reserve"), st.integers(0, 12), st.integers(0, 1)),
    st.builds(Step, st.just("settle"), st.integers(0, 12), st.integers(0, 1)),
)
LOST, UNHEARD = FATES[1], FATES[2]


@given(st.lists(HAPPENINGS, max_size=40))
@example([Step("reserve"), LOST, Step("settle"), Step("reserve", 1), Step("settle", 1)])
@example([UNHEARD, Step("reserve"), Step("reserve", 1), Step("reserve", 2), FATES[0], Step("settle", 1)])
@example([LOST, Step("reserve"), Step("reserve", 1), Step("settle", 0, 1), FATES[0], Step("settle", 1, 1)])
@settings(max_examples=100)
def test_every_request_is_counted_once_whatever_was_lost(steps: list[Step]) -> None:
    used, reserved, really = asyncio.run(played(steps))
    assert (used, reserved) == (really, 0)


REPEATS = st.one_of(HAPPENINGS, st.builds(Step, st.just("repeat"), st.integers(0, 12), st.integers(0, 1)))


@given(st.lists(REPEATS, max_size=40).map(lambda steps: [Step(s.kind, s.request) for s in steps]))
@settings(max_examples=100)
def test_a_second_settlement_at_the_same_process_changes_nothing(steps: list[Step]) -> None:
    used, reserved, really = asyncio.run(played(steps))
    assert (used, reserved) == (really, 0)
