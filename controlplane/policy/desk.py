"""The operator's desk: quotas as documents, grants and resets, each written down. For the admin API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.policy.judge import Judge
from controlplane.policy.quota import TOKENS_MAX, Account, Balance
from controlplane.policy.store import Store, StoreError

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """A change that an operator made, for the trail: remaining tokens before and after."""

    subject: str  # tenant|model:version|period
    kind: str  # quota_grant | quota_reset
    old: int | None  # None: not known
    new: int
    reason: str


class Desk:
    """Reads and adjusts what the judge's store counts. `note` hears of every adjustment."""

    def __init__(
        self,
        judge: Judge,
        store: Callable[[], Store],
        *,
        why_degraded: Callable[[], str | None],
        note: Callable[[Adjustment], None],
    ) -> None:
        self._judge = judge
        self._store = store
        self._why_degraded = why_degraded
        self._note = note

    async def show(self, tenant: str | None, model_version: str | None) -> Document:
        """Every quota that is selected; usage is null when the store cannot say."""
        rows = [
            row
            for account in self._selected(tenant, model_version)
            for row in _rows(account, await self._balances(account))
        ]
        why = self._why_degraded()
        return {"degraded": why is not None, "reason": why, "quotas": rows}

    async def adjust(self, wanted: Mapping[str, Any], *, by: str) -> Document:
        """`{"action": "grant"|"reset", "tenant", "model_version", "period", "tokens", "reason"}` -> the quota
        after it. Raises ValueError with a sentence for what is wrong with it, ConnectionError when the store
        is away.
        """
        account, period, tokens = self._checked(wanted)
        before = await self._balances(account)
        try:
            after = await self._store().adjust(account, period, grant_tokens=tokens)
        except StoreError as error:
            raise ConnectionError(f"nothing was adjusted for certain, look again: {error}") from error
        self._judge.saw(account, after)
        self._note(
            Adjustment(
                subject=f"{account.id}|{period}",
                kind="quota_reset" if tokens is None else "quota_grant",
                old=_remaining(before, period),
                new=_remaining(after, period) or 0,
                reason=_reason(wanted, tokens, by),
            )
        )
        return {"quotas": [row for row in _rows(account, after) if row["period"] == period]}

    def _checked(self, wanted: Mapping[str, Any]) -> tuple[Account, str, int | None]:
        action, period = wanted.get("action"), wanted.get("period")
        if action not in ("grant", "reset"):
            raise ValueError("`action` must be `grant` or `reset`")
        account = self._judge.accounts.get((str(wanted.get("tenant")), str(wanted.get("model_version"))))
        if account is None:
            raise ValueError("no such quota: `tenant` and `model_version` (MODEL:VERSION) must name one")
        if period not in [line.period for line in account.lines]:
            has = ", ".join(line.period for line in account.lines)
            raise ValueError(f"`period` must be one that the quota has: {has}")
        if action == "reset":
            return account, str(period), None
        tokens = wanted.get("tokens")
        if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 < abs(tokens) <= TOKENS_MAX // 4:
            raise ValueError("`tokens` must be a whole number, not 0; below 0 takes away")
        return account, str(period), tokens

    def _selected(self, tenant: str | None, model_version: str | None) -> list[Account]:
        return [
            account
            for account in sorted(self._judge.accounts.values(), key=lambda account: account.id)
            if tenant in (None, account.tenant) and model_version in (None, account.pool)
        ]

    async def _balances(self, account: Account) -> tuple[Balance, ...]:
        if self._why_degraded() is not None:
            return ()
        try:
            balances = await self._store().show(account)
        except StoreError:
            return ()
        self._judge.saw(account, balances)
        return balances


def _rows(account: Account, balances: tuple[Balance, ...]) -> list[Document]:
    return [_row(account, line.period, line.limit_tokens, balances) for line in account.lines]


def _row(account: Account, period: str, limit_tokens: int, balances: tuple[Balance, ...]) -> Document:
    balance = next((balance for balance in balances if balance.line.period == period), None)
    return {
        "tenant": account.tenant,
        "model_version": account.pool,
        "period": period,
        "limit_tokens": limit_tokens,
        "granted_tokens": balance.granted_tokens if balance else None,
        "used_tokens": balance.used_tokens if balance else None,
        "reserved_tokens": balance.reserved_tokens if balance else None,
        "remaining_tokens": balance.remaining_tokens if balance else None,
        "window": balance.window.id if balance else None,
        "ends_at": balance.window.end_s if balance else None,
    }


def _remaining(balances: tuple[Balance, ...], period: str) -> int | None:
    return next((balance.remaining_tokens for balance in balances if balance.line.period == period), None)


def _reason(wanted: Mapping[str, Any], tokens: int | None, by: str) -> str:
    reason = wanted.get("reason")
    said = f": {reason[:200]}" if isinstance(reason, str) and reason else ""
    return f"{'reset' if tokens is None else f'{tokens:+d} tokens'} by {by}{said}"
