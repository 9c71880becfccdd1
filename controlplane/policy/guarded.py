"""A store that others share, guarded: while it does not answer, each tenant gets what its policy says.

After a few failures in a row nothing is asked any more, so that a store that stands still costs no request
its time-out; a small question every quarter of a second finds out when it is back, and what was counted here
meanwhile is then told to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from controlplane.model.policy import OnStoreFailure
from controlplane.policy.debt import Debt, Owed
from controlplane.policy.quota import Account, Balance, Verdict
from controlplane.policy.store import Outcome, Reservation, Settled, Settlement, Store, StoreError

FAILURES_MAX = 2
PROBE_S = 0.25
PAUSE_MAX_S = 4.0
SHORT_S = 10.0
TOLD_AT_ONCE = 64


class Shared(Store, Protocol):
    """A store in another process."""

    async def greet(self, timeout_s: float) -> None:
        """Raises StoreError when it does not answer in time."""


class GuardedStore:
    """`shared` as long as it answers. `behind` is the same store with more patience, for all that no request
    waits for. `clock` gives Unix seconds; `processes`: how many share the limits when
    each counts alone; `on_change` hears when the store goes (why) and comes back (None)."""

    def __init__(
        self,
        shared: Shared,
        behind: Shared,
        debt: Debt,
        *,
        clock: Callable[[], float],
        processes: Callable[[], int],
        on_change: Callable[[str | None], None],
        probe_s: float = PROBE_S,
    ) -> None:
        self._shared = shared
        self._behind = behind
        self.debt = debt
        self._clock = clock
        self._processes = processes
        self._on_change = on_change
        self._probe_s = self._pause_s = probe_s
        self._back_at_s = float("-inf")
        self._failures = 0
        self.failures = 0  # since the start
        self.degraded_why: str | None = None
        self._mending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find out whether the store is there, before anybody asks."""
        try:
            await self._behind.greet(self._probe_s)
        except StoreError as error:
            self._failed(error, FAILURES_MAX)

    @property
    def is_degraded(self) -> bool:
        """Whether the store is away."""
        return self.degraded_why is not None

    async def reserve(self, account: Account, reservation: Reservation) -> Verdict:
        is_unsure = False
        if not self.is_degraded:
            try:
                verdict = await self._shared.reserve(account, reservation)
            except StoreError as error:
                self._failed(error)
                is_unsure = True
            else:
                self._answered(account, verdict.balances)
                self.debt.reserved_elsewhere(account, reservation.request)
                return verdict
        return self._reserve_alone(account, reservation, is_unsure=is_unsure)

    async def settle(self, account: Account, settlement: Settlement) -> Outcome:
        if self.debt.settles(account, settlement.request):
            outcome = self.debt.settle(account, settlement, self._clock())
            self._mend()
            return outcome
        if not self.is_degraded:
            try:
                outcome = await self._shared.settle(account, settlement)
            except StoreError as error:
                self._failed(error)
            else:
                self._answered(account, outcome.balances)
                return outcome
        self.debt.owe(account, settlement)
        self._mend()
        return Outcome(settled=Settled.OWED, balances=(), degraded=True)

    async def show(self, account: Account) -> tuple[Balance, ...]:
        return await self._behind.show(account)

    async def adjust(self, account: Account, period: str, *, grant_tokens: int | None) -> tuple[Balance, ...]:
        balances = await self._behind.adjust(account, period, grant_tokens=grant_tokens)
        self.debt.heard(account, balances)
        return balances

    async def close(self) -> None:
        """Tell the store what it does not know yet, if it is there, and leave it."""
        if self._mending is not None:
            self._mending.cancel()
            with suppress(asyncio.CancelledError):
                await self._mending
        if not self.is_degraded:
            with suppress(StoreError):
                await self._tell()
        await self._shared.close()
        await self._behind.close()

    def _reserve_alone(self, account: Account, ask: Reservation, *, is_unsure: bool) -> Verdict:
        now_s = self._clock()
        if account.on_store_failure is OnStoreFailure.CLOSED:
            nothing = replace(account, lines=tuple(replace(line, limit_tokens=0) for line in account.lines))
            verdict = self.debt.reserve(nothing, ask, now_s, 1, is_unsure=is_unsure)
            return replace(verdict, unavailable=True)
        is_open = account.on_store_failure is OnStoreFailure.OPEN
        asked = replace(ask, forced=True) if is_open else ask
        verdict = self.debt.reserve(account, asked, now_s, self._processes(), is_unsure=is_unsure)
        return replace(verdict, admitted=True) if is_open else verdict

    def _answered(self, account: Account, balances: tuple[Balance, ...]) -> None:
        self._failures = 0
        self.debt.heard(account, balances)

    def _failed(self, error: StoreError, count: int = 1) -> None:
        self.failures += 1
        self._failures += count
        if self._failures >= FAILURES_MAX:
            self._leave(error)
        self._mend()

    def _leave(self, error: StoreError) -> None:
        """Ask no more. A store that greets, then fails (it is full, say) is left alone longer each time."""
        if self.is_degraded:
            return
        was_short = asyncio.get_running_loop().time() - self._back_at_s < SHORT_S
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S) if was_short else self._probe_s
        self.degraded_why = str(error)
        self._on_change(self.degraded_why)

    def _mend(self) -> None:
        """See to it that somebody waits for the store and tells it what it does not know."""
        if self._mending is None or self._mending.done():
            self._mending = asyncio.create_task(self._wait_and_tell())

    async def _wait_and_tell(self) -> None:
        while self.is_degraded or not self.debt.is_empty:
            if self.is_degraded:
                await self._wait()
            try:
                await self._tell()
            except StoreError as error:
                self.failures += 1
                self._leave(error)
            if not self.is_degraded and not self.debt.is_empty:
                await asyncio.sleep(self._probe_s)  # requests that began here are still under way

    async def _wait(self) -> None:
        while self.is_degraded:
            await asyncio.sleep(self._pause_s)
            try:
                await self._behind.greet(self._probe_s)
            except StoreError:
                continue
            else:
                self._failures = 0
                self._back_at_s = asyncio.get_running_loop().time()
                self.degraded_why = None
                self._on_change(None)

    async def _tell(self) -> None:
        """Transfers first: a settlement that is owed may be of one of them."""
        transfers = self.debt.transfers()
        for start in range(0, len(transfers), TOLD_AT_ONCE):
            await _all(self._transfer(*one) for one in transfers[start : start + TOLD_AT_ONCE])
        owed = self.debt.owed()
        for start in range(0, len(owed), TOLD_AT_ONCE):
            await _all(self._pay(one) for one in owed[start : start + TOLD_AT_ONCE])
        if self.debt.is_empty:
            self.debt.reconciled(self._clock())

    async def _transfer(self, account: Account, ask: Reservation) -> None:
        verdict = await self._behind.reserve(account, ask)
        self.debt.transferred(account, ask)
        self.debt.heard(account, verdict.balances)

    async def _pay(self, owed: Owed) -> None:
        await self._behind.settle(owed.account, owed.settlement)
        self.debt.paid(owed)


async def _all(questions: Iterable[Awaitable[None]]) -> None:
    """Ask them all; then raise the first failure."""
    for outcome in await asyncio.gather(*questions, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
