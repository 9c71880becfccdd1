"""A question about an account -> keys and argument of `lua/redis/quota.lua`; its reply -> balances. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from controlplane.policy.calendar import Window
from controlplane.policy.quota import Account, Balance, Line
from controlplane.policy.store import (
    KEEP_S,
    REFUSED_KEEP_S,
    SETTLED_KEEP_S,
    Reservation,
    Settlement,
    StoreError,
)

Around = Callable[[float, str, str], Sequence[Window]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One call of the script."""

    account: Account
    request: str  # whose record is read; empty: none
    body: Mapping[str, Any]

    def keys(self) -> tuple[str, str, str]:
        """Three keys in one hash slot."""
        tag = f"tidegate:{{{self.account.id}}}"
        return f"{tag}:counters", f"{tag}:leases", f"{tag}:request:{self.request}"

    def argument(self, now_s: float, around: Around, terms: Mapping[str, Any]) -> str:
        """The JSON argument: `now_s` chooses the windows that the store may choose from."""
        windows = tuple(tuple(around(now_s, line.period, line.time_zone)) for line in self.account.lines)
        rest = json.dumps({**self.body, **terms}, separators=(",", ":"))
        return f'{{"quotas":{_quotas(self.account.lines, windows)},{rest[1:]}'


@lru_cache(maxsize=4096)
def _quotas(lines: tuple[Line, ...], windows: tuple[tuple[Window, ...], ...]) -> str:
    """The part of the argument that stays the same for an account as long as its windows do."""
    quotas = [
        {"period": line.period, "limit": line.limit_tokens, "windows": [_listed(one) for one in candidates]}
        for line, candidates in zip(lines, windows, strict=True)
    ]
    return json.dumps(quotas, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the script answered."""

    status: str
    now_s: float
    balances: tuple[Balance, ...]


def terms(lease_s: float) -> dict[str, Any]:
    """How long things are kept, seconds."""
    return {
        "lease": lease_s,
        "keep": 2 * lease_s + KEEP_S,
        "settled_keep": SETTLED_KEEP_S,
        "refused_keep": REFUSED_KEEP_S,
    }


def reserving(account: Account, ask: Reservation) -> Question:
    body = {
        "op": "reserve",
        "attempt": ask.attempt,
        "tokens": ask.tokens,
        "forced": ask.forced,
        "transfer": ask.is_transfer,
    }
    return Question(account=account, request=ask.request, body=body)


def settling(account: Account, ask: Settlement) -> Question:
    into = {period: _listed(window) for period, window in ask.windows}
    body = {"op": "settle", "tokens": ask.tokens} | ({"into": into} if into else {})
    return Question(account=account, request=ask.request, body=body)


def showing(account: Account) -> Question:
    return Question(account=account, request="", body={"op": "show"})


def adjusting(account: Account, period: str, grant_tokens: int | None) -> Question:
    body = {"op": "adjust", "period": period} | ({} if grant_tokens is None else {"grant": grant_tokens})
    return Question(account=account, request="", body=body)


def reply_of(account: Account, raw: Any) -> Reply:
    """Raises StoreError when it is no reply of our script."""
    try:
        status, now, *fields = raw.decode().split("|")
        balances = tuple(
            _balance(line, fields[6 * place : 6 * place + 6])
            for place, line in enumerate(account.lines if fields else ())
        )
        return Reply(status=status, now_s=float(now), balances=balances)
    except (TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"the store answers something odd: {error}") from error


def _balance(line: Line, fields: Sequence[str]) -> Balance:
    name, start, end, used, reserved, granted = fields
    return Balance(
        line=line,
        window=Window(id=name.partition("/")[2], start_s=int(start), end_s=int(end)),
        used_tokens=int(used),
        reserved_tokens=int(reserved),
        granted_tokens=int(granted),
    )


def _listed(window: Window) -> list[str | int]:
    return [window.id, window.start_s, window.end_s]
