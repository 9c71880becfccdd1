"""The store of one process: ledgers in memory. It forgets everything when the process ends."""

from __future__ import annotations

from collections.abc import Callable

from controlplane.policy.ledger import Ledger
from controlplane.policy.quota import Account, Balance, Verdict
from controlplane.policy.store import Outcome, Reservation, Settlement


class MemoryStore:
    """`clock` gives Unix seconds. It may step back: windows are kept by their dates."""

    def __init__(self, *, clock: Callable[[], float], lease_s: float) -> None:
        self._clock = clock
        self._ledgers: dict[str, Ledger] = {}
        self.lease_s = lease_s

    async def reserve(self, account: Account, reservation: Reservation) -> Verdict:
        return self.ledger(account).reserve(account, reservation, self._clock())

    async def settle(self, account: Account, settlement: Settlement) -> Outcome:
        return self.ledger(account).settle(account, settlement, self._clock())

    async def show(self, account: Account) -> tuple[Balance, ...]:
        return self.ledger(account).show(account, self._clock())

    async def adjust(self, account: Account, period: str, *, grant_tokens: int | None) -> tuple[Balance, ...]:
        now_s, ledger = self._clock(), self.ledger(account)
        ledger.adjust(account, period, grant_tokens, now_s)
        return ledger.show(account, now_s)

    async def close(self) -> None:
        """Nothing is held."""

    def ledger(self, account: Account) -> Ledger:
        """The account's own; there are as many as accounts are configured."""
        ledger = self._ledgers.get(account.id)
        if ledger is None:
            ledger = self._ledgers[account.id] = Ledger(self.lease_s)
        ledger.lease_s = self.lease_s
        return ledger
