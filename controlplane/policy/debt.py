"""What one process counted while the store was away, and what it owes the store for it. No I/O.

For each account a ledger admits and settles locally. What is left to tell the store, once it is back:

- reservations of requests still in flight (*transfers*), so that any process can settle them;
- the sum of what was used in each window, as one settlement with a name of its own;
- settlements of requests that the store knows or may know, one by one (*owed*).

Each of these is told until the store has confirmed it, and counted once however often it is told.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controlplane.policy.calendar import Window
from controlplane.policy.ledger import Ledger
from controlplane.policy.quota import Account, Balance, Verdict, part_of
from controlplane.policy.store import Outcome, Reservation, Settlement

OWED_MAX = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """A settlement the store has not confirmed."""

    number: int
    account: Account
    settlement: Settlement


@dataclass(slots=True, kw_only=True)
class _Local:
    """One account as this process counts it."""

    account: Account
    ledger: Ledger
    unsure: set[str] = field(default_factory=set)  # requests whose reservation the store may have, too
    elsewhere: Counter[str] = field(default_factory=Counter)  # attempts of known requests that the store has
    told: Counter[str] = field(default_factory=Counter)  # of each window's usage, what became a settlement


class Debt:
    """Local counting of one process. `name` is unlike that of any other process."""

    def __init__(self, *, name: str, lease_s: float) -> None:
        self.lease_s = lease_s
        self.lost = 0  # settlements given up since the start
        self._name = name
        self._numbers = itertools.count(1)
        self._locals: dict[str, _Local] = {}
        self._left: dict[str, tuple[Balance, ...]] = {}
        self._owed: OrderedDict[int, Owed] = OrderedDict()

    def heard(self, account: Account, balances: tuple[Balance, ...]) -> None:
        """The store said what is left; it bounds what is handed out without it."""
        self._left[account.id] = balances

    def reserve(
        self, account: Account, ask: Reservation, now_s: float, processes: int, *, is_unsure: bool
    ) -> Verdict:
        """Judge without the store. `is_unsure`: it was asked, and may have reserved."""
        local = self._local(account)
        part = part_of(account, processes, self._left_now(account, now_s))
        verdict = local.ledger.reserve(part, ask, now_s)
        if is_unsure and (verdict.admitted or ask.forced):
            local.unsure.add(ask.request)
        elif is_unsure:
            self.owe(account, Settlement(request=ask.request, tokens=0))
        return replace(verdict, degraded=True)

    def settles(self, account: Account, request: str) -> bool:
        """Whether the next settlement of `request` is to be told here, and not to the store."""
        local = self._locals.get(account.id)
        record = local.ledger.records.get(request) if local else None
        if local is None or record is None:
            return False
        if not record.attempts and not record.refused and local.elsewhere[request]:
            local.elsewhere[request] -= 1
            return False
        return True

    def settle(self, account: Account, ask: Settlement, now_s: float) -> Outcome:
        """Settle what was judged here."""
        local = self._local(account)
        is_unsure = ask.request in local.unsure and bool(local.ledger.records[ask.request].attempts)
        outcome = local.ledger.settle(account, replace(ask, tokens=0) if is_unsure else ask, now_s)
        if is_unsure:
            local.unsure.discard(ask.request)
            self.owe(account, ask)
        return replace(outcome, degraded=True)

    def owe(self, account: Account, ask: Settlement) -> None:
        """The store has to be told, and could not be, or did not confirm."""
        if len(self._owed) >= OWED_MAX:
            self._owed.popitem(last=False)
            self.lost += 1
        number = next(self._numbers)
        self._owed[number] = Owed(number=number, account=account, settlement=ask)

    def reserved_elsewhere(self, account: Account, request: str) -> None:
        """The store has reserved for `request`; it matters where a client repeats an id judged here."""
        local = self._locals.get(account.id)
        if local is not None and request in local.ledger.records:
            local.elsewhere[request] += 1

    def transfers(self) -> Sequence[tuple[Account, Reservation]]:
        """Every reservation in flight that was made here."""
        return [
            (local.account, _transfer(request, attempt, lease.tokens))
            for local in self._locals.values()
            for request, record in local.ledger.records.items()
            for attempt, lease in record.attempts.items()
        ]

    def transferred(self, account: Account, ask: Reservation) -> None:
        """The store has the reservation. If it was settled here meanwhile, its usage is counted here."""
        local = self._local(account)
        if local.ledger.withdraw(ask.request, ask.attempt):
            local.unsure.discard(ask.request)
            self.reserved_elsewhere(account, ask.request)
        else:
            self.owe(account, Settlement(request=ask.request, tokens=0))

    def owed(self) -> Sequence[Owed]:
        """Everything to settle; what was used here since the last call becomes settlements, too."""
        for local in self._locals.values():
            self._sum(local)
        return tuple(self._owed.values())

    def paid(self, owed: Owed) -> None:
        """The store confirmed it."""
        self._owed.pop(owed.number, None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to tell the store."""
        return not self._owed and not self.transfers() and not any(self._untold())

    def reconciled(self, now_s: float) -> None:
        """The store knows everything: what was counted here no longer bounds what is handed out here."""
        for id, local in tuple(self._locals.items()):
            for name, counter in local.ledger.counters.items():
                counter.used -= local.told.pop(name, 0)
            local.ledger.show(local.account, now_s)  # forgets requests that were settled long ago
            if not local.ledger.records:
                del self._locals[id]

    def _sum(self, local: _Local) -> None:
        """One settlement for each window, of that window alone."""
        for line in local.account.lines:
            for name, counter in local.ledger.counters.items():
                period, _, id = name.partition("/")
                tokens = counter.used - local.told[name]
                if period == line.period and tokens > 0:
                    local.told[name] += tokens
                    windows = ((period, Window(id=id, start_s=0, end_s=int(counter.end_s))),)
                    request = f"sum-{self._name}-{next(self._numbers)}"
                    settlement = Settlement(request=request, tokens=tokens, windows=windows)
                    self.owe(replace(local.account, lines=(line,)), settlement)

    def _untold(self) -> Iterator[bool]:
        for local in self._locals.values():
            for name, counter in local.ledger.counters.items():
                yield counter.used > local.told[name]

    def _left_now(self, account: Account, now_s: float) -> Mapping[str, int]:
        balances = self._left.get(account.id, ())
        return {b.line.period: b.remaining_tokens for b in balances if b.window.end_s > now_s}

    def _local(self, account: Account) -> _Local:
        local = self._locals.get(account.id)
        if local is None:
            local = self._locals[account.id] = _Local(account=account, ledger=Ledger(self.lease_s))
        local.account = account
        return local


def _transfer(request: str, attempt: str, tokens: int) -> Reservation:
    return Reservation(request=request, attempt=attempt, tokens=tokens, forced=True, is_transfer=True)
