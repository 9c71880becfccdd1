"""Wiring of the policy service: store, judge and gRPC server, in `tidegate serve` or a process of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

from prometheus_client import CollectorRegistry

from controlplane.assets import read_asset
from controlplane.model.policy import Mode, Policy, PolicyService, StoreKind
from controlplane.policy.debt import Debt
from controlplane.policy.desk import Adjustment, Desk
from controlplane.policy.guarded import GuardedStore
from controlplane.policy.judge import Judge
from controlplane.policy.memory import MemoryStore
from controlplane.policy.metrics import PolicyMetrics, QuotaCollector
from controlplane.policy.quota import lease_s
from controlplane.policy.redis_store import RedisStore, connect
from controlplane.policy.script import QUOTA, Script
from controlplane.policy.service import PolicyServer
from controlplane.policy.store import Store, StoreError
from controlplane.serve.changes import Change
from controlplane.serve.log import Logger

PATIENT_S = 1.0  # for what no request waits for


class QuotasError(RuntimeError):
    """The policy service cannot run as it is configured."""


class Quotas:
    """The quotas of one process. The service listens from the first policy that has a quota until `close`.

    `note` writes down what an operator or an outage changed. `is_alone`: this process is nothing else, and
    may share its port with others like it.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        registry: CollectorRegistry,
        logger: Logger,
        note: Callable[[Change], None],
        is_alone: bool = False,
    ) -> None:
        self._clock = clock
        self._logger = logger
        self._note = note
        self._is_alone = is_alone
        self._name = uuid.uuid4().hex[:12]
        self._metrics = PolicyMetrics(registry)
        self._store: Store = MemoryStore(clock=clock, lease_s=0.0)
        self._kept: tuple[object, ...] | None = None  # what the store was opened for
        self._server: PolicyServer | None = None
        self._gateways_max = 1
        self.port: int | None = None  # None: not listening
        self.judge = Judge(lambda: self._store, self._metrics, name=self._name)
        self.desk = Desk(
            self.judge, lambda: self._store, why_degraded=lambda: self.degraded_why, note=self._adjusted
        )
        registry.register(QuotaCollector(self.judge.known, lambda: self.degraded_why is not None, clock))

    @property
    def degraded_why(self) -> str | None:
        """Why the store is away; None: it is not."""
        return self._store.degraded_why if isinstance(self._store, GuardedStore) else None

    def follow(self, mode: Callable[[], Mode]) -> None:
        """Refuse only while `mode` says so."""
        self.judge.mode = mode

    async def apply(self, policy: Policy, *, port: int | None = None) -> Policy:
        """Judge by `policy` from now on; `port` is above that of the policy. Returns it with the port that is
        listened on. Raises QuotasError; the policy before then stays in force."""
        service = policy.policy_service
        try:
            if policy.has_quotas or self._kept is not None:
                await self._open_store(service, lease_s(policy))
            is_ours = service.embedded or self._is_alone
            if policy.has_quotas and is_ours and self._server is None:
                await self._listen(service, service.port if port is None else port)
        except (StoreError, RuntimeError) as error:
            raise QuotasError(f"the policy service: {error}") from error
        self._gateways_max = policy.gateways.max_count
        self.judge.apply(policy)
        if self.port is None:
            return policy
        return replace(policy, policy_service=replace(service, port=self.port))

    async def _listen(self, service: PolicyService, port: int) -> None:
        host = f"[{service.listen_address}]" if ":" in service.listen_address else service.listen_address
        server = PolicyServer(self.judge, self._metrics, f"{host}:{port}", shared_port=self._is_alone)
        self.port = await server.start()
        self._server = server
        self._logger.info("policy_service", address=f"{host}:{self.port}", store=str(service.store))

    async def close(self) -> None:
        """End calls, then leave the store."""
        if self._server is not None:
            await self._server.stop()
        await self._store.close()

    async def _open_store(self, service: PolicyService, lease: float) -> None:
        """The store of `service`; the one that is open stays as long as it is the same."""
        kept = (service.store, service.redis, service.timeout_s, lease)
        if isinstance(self._store, MemoryStore) and service.store is StoreKind.MEMORY:
            self._store.lease_s = lease  # another store would have forgotten everything
        elif kept != self._kept:
            before, opened = self._store, self._opened(service, lease)
            if isinstance(opened, GuardedStore):
                await opened.start()
            self._store = opened
            await before.close()
        self._kept = kept

    def _opened(self, service: PolicyService, lease: float) -> Store:
        if service.store is StoreKind.MEMORY or service.redis is None:
            return MemoryStore(clock=self._clock, lease_s=lease)
        where, script = service.redis, Script(read_asset(QUOTA))

        def shared(timeout_s: float) -> RedisStore:
            client = connect(where, timeout_s=timeout_s)
            return RedisStore(client, script, lease_s=lease, timeout_s=timeout_s, guess=self._clock)

        return GuardedStore(
            shared(service.timeout_s),
            shared(max(PATIENT_S, service.timeout_s)),
            Debt(name=self._name, lease_s=lease),
            clock=self._clock,
            processes=lambda: self._gateways_max,
            on_change=self._store_changed,
        )

    def _store_changed(self, why: str | None) -> None:
        old, new = ("answering", "away") if why else ("away", "answering")
        self._note(
            Change(
                at_s=self._clock(), kind="quota_store", subject="store", old=old, new=new, reason=why or ""
            )
        )

    def _adjusted(self, made: Adjustment) -> None:
        self._note(
            Change(
                at_s=self._clock(),
                kind=made.kind,
                subject=made.subject,
                old=made.old,
                new=made.new,
                reason=made.reason,
            )
        )
