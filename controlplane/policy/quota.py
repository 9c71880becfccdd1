"""Quotas, and what was counted against them -> whether a request fits. Pure; the words of this room.

What counts against a limit is what was used plus what requests in flight have reserved. A request fits when
its estimate still fits into every one of its quotas; an estimate of nothing needs one token to be left, so
that a quota of zero refuses and an exhausted one does too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.model.policy import OnStoreFailure, Policy
from controlplane.policy.calendar import Window

LEASE_DEFAULT_S = 3600.0
SETTLING_S = 60.0  # from the end of a stream to its settlement, at most
TOKENS_MAX = 2**53 - 1  # what the store's numbers carry exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quota: `limit_tokens` in each `period` of the calendar of `time_zone`."""

    period: str
    limit_tokens: int
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is counted together: one tenant's use of one model version, against all its quotas."""

    tenant: str
    pool: str
    lines: tuple[Line, ...]
    on_store_failure: OnStoreFailure = OnStoreFailure.BOUNDED_LOCAL

    @property
    def id(self) -> str:
        """`tenant|model:version`."""
        return f"{self.tenant}|{self.pool}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """One quota in its current window."""

    line: Line
    window: Window
    used_tokens: int
    reserved_tokens: int
    granted_tokens: int = 0

    @property
    def limit_tokens(self) -> int:
        """The configured limit and what an operator granted on top, for this window."""
        return self.line.limit_tokens + self.granted_tokens

    @property
    def remaining_tokens(self) -> int:
        """Never negative: usage above the estimate of a last request is debt, not a number to show."""
        return max(0, self.limit_tokens - self.used_tokens - self.reserved_tokens)

    def fits(self, tokens: int) -> bool:
        """Whether a request of `tokens` passes."""
        return self.used_tokens + self.reserved_tokens + max(1, tokens) <= self.limit_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to a reservation; balances are those after it."""

    admitted: bool
    balances: tuple[Balance, ...]
    now_s: float  # of the store
    degraded: bool = False  # counted by this process alone
    unavailable: bool = False  # refused because nothing could be counted


def binding(verdict: Verdict, tokens: int) -> Balance | None:
    """The quota a refused request waits for longest; for an admitted one the scarcest."""
    if not verdict.admitted:
        short = [balance for balance in verdict.balances if not balance.fits(tokens)]
        return max(short, key=lambda balance: balance.window.end_s, default=None)
    return min(verdict.balances, key=lambda balance: balance.remaining_tokens, default=None)


def accounts(policy: Policy) -> Mapping[tuple[str, str], Account]:
    """Every account with a quota, by tenant and model version."""
    lines: dict[tuple[str, str], list[Line]] = {}
    failure = {tenant.id: tenant.on_store_failure for tenant in policy.tenants}
    for tenant in policy.tenants:
        for quota in tenant.quotas:
            line = Line(period=quota.period, limit_tokens=quota.tokens, time_zone=quota.time_zone)
            lines.setdefault((tenant.id, quota.model_version), []).append(line)
    return {
        (tenant, pool): Account(
            tenant=tenant,
            pool=pool,
            lines=tuple(found),
            on_store_failure=failure[tenant] or policy.policy_service.on_store_failure,
        )
        for (tenant, pool), found in lines.items()
    }


def lease_s(policy: Policy) -> float:
    """How long a reservation may wait for its settlement: longer than any stream may last."""
    durations = [route.max_stream_duration_s for route in policy.routes if not route.free]
    return max(durations, default=LEASE_DEFAULT_S) + SETTLING_S


def part_of(account: Account, processes: int, remaining: Mapping[str, int]) -> Account:
    """What one of `processes` may hand out alone: its part of each limit, but no more than was left.

    `remaining` is what was left when the store answered last, by period; without it the whole part is free.
    """
    lines = tuple(_part(line, processes, remaining.get(line.period)) for line in account.lines)
    return Account(
        tenant=account.tenant, pool=account.pool, lines=lines, on_store_failure=account.on_store_failure
    )


def _part(line: Line, processes: int, remaining: int | None) -> Line:
    part = -(-line.limit_tokens // max(1, processes))  # rounded up: a small quota still admits
    limit = part if remaining is None else min(part, remaining)
    return Line(period=line.period, limit_tokens=limit, time_zone=line.time_zone)
