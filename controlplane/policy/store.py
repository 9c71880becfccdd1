"""What counts tokens: the four questions every store answers alike.

A store keeps, for each account, what each calendar window has used, and the reservations in flight:

- `reserve` takes an estimate out of all quotas of the account, or out of none.
- `settle` replaces the reservation by what was really used. A request is settled once; a second settlement
  changes nothing. One that was refused costs nothing. One that was never reserved (it passed while the store
  was away) is charged.
- A reservation that nobody settles within its lease is charged as it was reserved: its gateway is gone, and
  what the model server did for it will not be known. A settlement after that still corrects it.

Requests are told apart by `attempt`, which the policy service draws; `request` is what the settlement
names, and clients may repeat it: each attempt of it is charged, and each settlement settles one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from controlplane.policy.calendar import Window
from controlplane.policy.quota import Account, Balance, Verdict

KEEP_S = 86_400.0  # windows are remembered this long after they ended, and two leases more
SETTLED_KEEP_S = 600.0  # a settled request, against a second settlement
REFUSED_KEEP_S = 60.0  # a refused one, whose settlement comes at once


class StoreError(Exception):
    """The store did not answer, or not in time; whether it counted is not known."""


class Settled(StrEnum):
    """What a settlement met."""

    SETTLED = "settled"
    LATE = "late"  # after its lease: what was charged is corrected
    UNRESERVED = "unreserved"  # charged without a reservation
    REFUSED = "refused"  # the request was refused and costs nothing
    DUPLICATE = "duplicate"  # settled before
    OWED = "owed"  # the store is away; it will be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A request before its answer. `forced` is counted even if it does not fit (observe mode).

    `is_transfer`: it was admitted elsewhere; a settlement that overtook it has already charged it.
    """

    request: str
    attempt: str
    tokens: int
    forced: bool = False
    is_transfer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A request after its answer. Without a reservation it is charged to `windows`, by period; else to
    those of now."""

    request: str
    tokens: int
    windows: tuple[tuple[str, Window], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer to a settlement; balances are those after it."""

    settled: Settled
    balances: tuple[Balance, ...]
    degraded: bool = False


class Store(Protocol):
    """Counts tokens. Every method raises StoreError when it cannot."""

    async def reserve(self, account: Account, reservation: Reservation) -> Verdict: ...
    async def settle(self, account: Account, settlement: Settlement) -> Outcome: ...
    async def show(self, account: Account) -> tuple[Balance, ...]: ...

    async def adjust(self, account: Account, period: str, *, grant_tokens: int | None) -> tuple[Balance, ...]:
        """Add `grant_tokens` (may be negative) to the current window of `period`; None: nothing was used."""

    async def close(self) -> None: ...
