"""One call of a gateway in, the bytes of its answer out: accounts, store and counters between them.

Trouble with accounting never fails an answer: what cannot be understood passes and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controlplane.model.policy import Mode, Policy
from controlplane.policy import answer
from controlplane.policy.asked import Asked, Op, asked
from controlplane.policy.metrics import PolicyMetrics
from controlplane.policy.quota import Account, Balance, accounts
from controlplane.policy.store import Outcome, Reservation, Settled, Settlement, Store, StoreError


class Judge:
    """Judges calls by the quotas of the policy applied last. `name` is this process', unlike any other's."""

    def __init__(self, store: Callable[[], Store], metrics: PolicyMetrics, *, name: str) -> None:
        self._store = store
        self._metrics = metrics
        self._name = name
        self._attempts = 0
        self._accounts: Mapping[tuple[str, str], Account] = {}
        self._seen: dict[tuple[str, str], tuple[Balance, ...]] = {}
        self.mode: Callable[[], Mode] = lambda: Mode.ENFORCE

    def apply(self, policy: Policy) -> None:
        """Judge by the quotas of `policy` from now on; what was counted stays."""
        self._accounts = accounts(policy)
        self._seen = {key: seen for key, seen in self._seen.items() if key in self._accounts}

    @property
    def accounts(self) -> Mapping[tuple[str, str], Account]:
        """Every account with a quota."""
        return self._accounts

    def known(self) -> Mapping[Account, tuple[Balance, ...]]:
        """Every account and its balances as they were last heard of."""
        return {account: self._seen.get(key, ()) for key, account in self._accounts.items()}

    def saw(self, account: Account, balances: tuple[Balance, ...]) -> None:
        """Remember balances that were asked for elsewhere."""
        self._seen[account.tenant, account.pool] = balances

    async def answer(self, message: bytes) -> bytes:
        """Never raises for what the call says or for what the store does."""
        call = asked(message)
        if call is None:
            self._metrics.malformed()
            return answer.passed()
        account = self._accounts.get((call.tenant, call.pool))
        if account is None:
            if call.op is Op.RESERVE:
                self._metrics.decided("no_quota")
            return answer.passed()
        if call.op is Op.SETTLE:
            return await self._settle(account, call)
        return await self._reserve(account, call)

    async def _reserve(self, account: Account, call: Asked) -> bytes:
        is_observed = self.mode() is Mode.OBSERVE
        ask = Reservation(
            request=call.request, attempt=self._attempt(), tokens=call.tokens, forced=is_observed
        )
        try:
            verdict = await self._store().reserve(account, ask)
        except StoreError:
            self._metrics.store_failed()
            self._metrics.decided("unavailable")
            return answer.passed(is_degraded=True)
        if not verdict.degraded:
            self.saw(account, verdict.balances)
        if verdict.admitted or is_observed:
            self._metrics.decided("admitted" if verdict.admitted else "would_refuse")
            return answer.passed(is_degraded=verdict.degraded)
        self._metrics.decided("unavailable" if verdict.unavailable else "refused")
        return answer.refused(verdict, call.tokens)

    async def _settle(self, account: Account, call: Asked) -> bytes:
        try:
            outcome: Outcome = await self._store().settle(
                account, Settlement(request=call.request, tokens=call.tokens)
            )
        except StoreError:
            self._metrics.store_failed()
            self._metrics.settlement_lost()
            return answer.passed(is_degraded=True)
        self._metrics.settled(Settled(outcome.settled), call.tokens)
        if not outcome.degraded:
            self.saw(account, outcome.balances)
        return answer.passed(is_degraded=outcome.degraded)

    def _attempt(self) -> str:
        self._attempts += 1
        return f"{self._name}-{self._attempts}"
