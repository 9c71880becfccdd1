"""One account in memory: what `lua/redis/quota.lua` keeps in Redis, as plain Python. Time is an argument.

Both are the same machine; the tests run the same cases on both.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from controlplane.policy.calendar import Window, window
from controlplane.policy.quota import Account, Balance, Line, Verdict
from controlplane.policy.store import (
    KEEP_S,
    REFUSED_KEEP_S,
    SETTLED_KEEP_S,
    Outcome,
    Reservation,
    Settled,
    Settlement,
)

SETTLED_KEPT = 16  # attempts of one request id, against replays


@dataclass(slots=True, kw_only=True)
class Counter:
    """What one window has seen, in tokens."""

    end_s: float
    used: int = 0
    reserved: int = 0
    granted: int = 0

    def room(self, limit_tokens: int) -> int:
        """What still fits."""
        return limit_tokens + self.granted - self.used - self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One quota, and the counter of its window of now."""

    line: Line
    window: Window
    name: str
    counter: Counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One reservation in flight, and the windows it was taken out of."""

    expires_s: float
    tokens: int
    windows: tuple[str, ...]


@dataclass(slots=True)
class Record:
    """What is known of one request id."""

    attempts: dict[str, Lease] = field(default_factory=dict)  # not settled yet, oldest first
    settled: deque[str] = field(default_factory=lambda: deque(maxlen=SETTLED_KEPT))
    refused: int = 0  # attempts refused whose settlement did not come yet
    ahead: int = 0  # settlements that came without a reservation
    queue: OrderedDict[str, float] = field(default_factory=OrderedDict)  # the one it expires in


class Ledger:
    """Counters, leases and known requests of one account. What expires waits in queues, oldest first."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.counters: dict[str, Counter] = {}
        self.leases: OrderedDict[str, Lease] = OrderedDict()
        self.records: dict[str, Record] = {}
        self._open: OrderedDict[str, float] = OrderedDict()
        self._settled: OrderedDict[str, float] = OrderedDict()
        self._refused: OrderedDict[str, float] = OrderedDict()

    def reserve(self, account: Account, ask: Reservation, now_s: float) -> Verdict:
        """Take the estimate out of every quota, or out of none."""
        self._sweep(now_s)
        current = self._current(account, now_s)
        admitted = self._reserve(ask, current, now_s)
        return Verdict(admitted=admitted, balances=_balances(current), now_s=now_s)

    def _reserve(self, ask: Reservation, current: Sequence[_Place], now_s: float) -> bool:
        record = self.records.get(ask.request)
        if record is not None and (ask.attempt in record.attempts or ask.attempt in record.settled):
            return True
        if ask.is_transfer and record is not None and record.ahead:
            record.ahead -= 1
            record.settled.append(ask.attempt)
            return True
        need = max(1, ask.tokens)
        fits = all(place.counter.room(place.line.limit_tokens) >= need for place in current)
        if fits or ask.forced:
            self._lease(ask, tuple(place.name for place in current), now_s)
        else:
            record = record or self._record(ask.request, self._refused, now_s + REFUSED_KEEP_S)
            record.refused += 1
        return fits

    def settle(self, account: Account, ask: Settlement, now_s: float) -> Outcome:
        """Put real usage in the place of a reservation, once."""
        self._sweep(now_s)
        settled = self._settle(account, ask, now_s)
        return Outcome(settled=settled, balances=self.show(account, now_s))

    def show(self, account: Account, now_s: float) -> tuple[Balance, ...]:
        """Every quota of the account in its window of now."""
        self._sweep(now_s)
        return _balances(self._current(account, now_s))

    def _current(self, account: Account, now_s: float) -> list[_Place]:
        places = []
        for line in account.lines:
            of = window(now_s, line.period, line.time_zone)
            name = f"{line.period}/{of.id}"
            counter = self._counter(name, of, now_s)
            places.append(_Place(line=line, window=of, name=name, counter=counter))
        return places

    def withdraw(self, request: str, attempt: str) -> bool:
        """Forget a reservation in flight, which is counted elsewhere from now on; False: it was settled."""
        record = self.records.get(request)
        if record is None or attempt not in record.attempts:
            return False
        lease = record.attempts.pop(attempt)
        if self.leases.pop(attempt, None) is not None:
            self._release(lease)
        else:
            self._charge(lease.windows, -lease.tokens)
        if not (record.attempts or record.settled or record.refused or record.ahead):
            del record.queue[request], self.records[request]
        return True

    def adjust(self, account: Account, period: str, grant_tokens: int | None, now_s: float) -> None:
        """Grant, or forget what was used."""
        self._sweep(now_s)
        for place in self._current(account, now_s):
            if place.line.period == period and grant_tokens is None:
                place.counter.used = 0
            elif place.line.period == period:
                place.counter.granted += grant_tokens or 0

    def _settle(self, account: Account, ask: Settlement, now_s: float) -> Settled:
        record = self.records.get(ask.request)
        if record is None:
            self._charge(self._windows(account, ask, now_s), ask.tokens)
            self._record(ask.request, self._open, now_s + 2 * self.lease_s).ahead += 1
            return Settled.UNRESERVED
        if record.attempts:
            attempt = next(iter(record.attempts))
            lease = record.attempts.pop(attempt)
            record.settled.append(attempt)
            if not record.attempts:
                self._record(ask.request, self._settled, now_s + SETTLED_KEEP_S)
            if self.leases.pop(attempt, None) is None:
                self._charge(lease.windows, ask.tokens - lease.tokens)
                return Settled.LATE
            self._move(lease, ask.tokens)
            return Settled.SETTLED
        if record.refused:
            record.refused -= 1
            return Settled.REFUSED
        return Settled.DUPLICATE

    def _windows(self, account: Account, ask: Settlement, now_s: float) -> list[str]:
        named = dict(ask.windows)
        names = []
        for line in account.lines:
            chosen = named.get(line.period) or window(now_s, line.period, line.time_zone)
            names.append(f"{line.period}/{chosen.id}")
            self._counter(names[-1], chosen, now_s)
        return names

    def _lease(self, ask: Reservation, windows: tuple[str, ...], now_s: float) -> None:
        lease = Lease(expires_s=now_s + self.lease_s, tokens=ask.tokens, windows=windows)
        self.leases[ask.attempt] = lease
        for name in windows:
            self.counters[name].reserved += ask.tokens
        self._record(ask.request, self._open, now_s + 2 * self.lease_s).attempts[ask.attempt] = lease

    def _record(self, request: str, queue: OrderedDict[str, float], expires_s: float) -> Record:
        """The record, new or not, forgotten at `expires_s`."""
        record = self.records.get(request)
        if record is None:
            record = self.records[request] = Record()
        record.queue.pop(request, None)
        record.queue = queue
        queue[request] = expires_s
        return record

    def _counter(self, name: str, of: Window, now_s: float) -> Counter:
        counter = self.counters.get(name)
        if counter is None:
            ended = now_s - 2 * self.lease_s - KEEP_S
            for old in [key for key, value in self.counters.items() if value.end_s < ended]:
                del self.counters[old]
            counter = self.counters[name] = Counter(end_s=of.end_s)
        return counter

    def _charge(self, windows: Iterable[str], tokens: int) -> None:
        for name in windows:
            if counter := self.counters.get(name):
                counter.used = max(0, counter.used + tokens)

    def _move(self, lease: Lease, tokens: int) -> None:
        """Out of what is reserved, `tokens` into what was used."""
        self._release(lease)
        self._charge(lease.windows, tokens)

    def _release(self, lease: Lease) -> None:
        for name in lease.windows:
            if counter := self.counters.get(name):
                counter.reserved = max(0, counter.reserved - lease.tokens)

    def _sweep(self, now_s: float) -> None:
        while self.leases:
            lease = next(iter(self.leases.values()))
            if lease.expires_s > now_s:
                break
            self.leases.popitem(last=False)
            self._move(lease, lease.tokens)
        for queue in (self._open, self._settled, self._refused):
            while queue:
                request, expires_s = next(iter(queue.items()))
                if expires_s > now_s:
                    break
                del queue[request], self.records[request]


def _balances(places: Sequence[_Place]) -> tuple[Balance, ...]:
    return tuple(
        Balance(
            line=place.line,
            window=place.window,
            used_tokens=place.counter.used,
            reserved_tokens=place.counter.reserved,
            granted_tokens=place.counter.granted,
        )
        for place in places
    )
