"""A small control plane, by hand: what the admin API, the metrics and the commands are tested against."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.model.decision import BreakerDecision, BreakerState, Decision, PoolDecision, PoolState
from controlplane.model.policy import (
    Gateways,
    Key,
    Listener,
    Mode,
    Model,
    Policy,
    Pool,
    Priority,
    Route,
    SignalPolicy,
    Tenant,
)
from controlplane.model.resource import CLUSTER, EXTENSION
from controlplane.model.signal import KeyTraffic, Load, Observation, Reading
from controlplane.serve.cache import CacheStatus, ConnectedNode, StreamStatus
from controlplane.serve.changes import Change
from controlplane.serve.view import ConfigStatus, Control, Moment, XdsTotals
from controlplane.xds.exchange import Variant
from controlplane.xds.quarantine import Quarantined
from controlplane.xds.session import Nack, ResourceStatus, SessionStatus, TypeStatus

NOW_S = 1_000.0
API_KEY = "sk-acme-0123456789abcdef"
ODD_API_KEY = "correct:horse.battery/staple"
DIGESTS = tuple(hashlib.sha256(key.encode()).hexdigest() for key in (API_KEY, ODD_API_KEY))

POOLS = ("chat:v1", "chat:v2")
TENANTS = ("acme", "globex", "initech")
CHAT = Route(id="chat", pattern="/v1/chat/completions", models=("chat",))


def policy(*, tenants: Sequence[str] = TENANTS, routes: Sequence[Route] = (CHAT,)) -> Policy:
    """Two versions of one model; the last tenant may use the first version only."""
    allowed = [(tenant, pool) for tenant in tenants for pool in POOLS]
    keys = [
        Key(
            route=route.id,
            tenant=tenant,
            pool=pool,
            priority=Priority.NORMAL,
            weight=2.0 if tenant == "acme" else 1.0,
            guarantee_per_s=0.0,
            ceiling_per_s=None,
            pin_per_s=None,
        )
        for route in routes
        for tenant, pool in allowed
        if (tenant, pool) != ("initech", "chat:v2")
    ]
    return Policy(
        listener=Listener(),
        gateways=Gateways(),
        signals=SignalPolicy(),
        models=(Model(name="chat", versions=("v1", "v2"), default_version="v2"),),
        pools=tuple(Pool(model="chat", version=version, endpoints=()) for version in ("v1", "v2")),
        routes=tuple(routes),
        tenants=tuple(Tenant(id=name, key_digests=DIGESTS if name == "acme" else ()) for name in tenants),
        keys=tuple(sorted(keys, key=lambda key: key.id)),
    )


def pool_decision(pool: str, rate_per_s: float, **more: object) -> PoolDecision:
    """A pool that follows its signal at 60 %."""
    decided = PoolDecision(
        pool=pool,
        state=PoolState.LIVE,
        rate_per_s=rate_per_s,
        target_per_s=rate_per_s,
        factor=rate_per_s / 100,
        base_rate_per_s=100.0,
        utilisation_percent=60.0,
        reason="gpu_util at 60 %",
        inputs={"gpu_util_percent": 60.0},
    )
    return replace(decided, **more)  # type: ignore[arg-type]


def decision(of: Policy, *, rate_per_s: float = 40.0) -> Decision:
    """Every pool at `rate_per_s`, split by weight; demand of the last key is not known."""
    pools = {pool.id: pool_decision(pool.id, rate_per_s) for pool in of.pools}
    weights = {pool: sum(key.weight for key in of.keys if key.pool == pool) for pool in pools}
    rates = np.array([rate_per_s * key.weight / weights[key.pool] for key in of.keys])
    demand = rates * 1.5
    demand[-1:] = np.nan
    return Decision(
        now_s=NOW_S,
        pools=pools,
        rate_per_s=rates,
        demand_per_s=demand,
        fair_per_s=rates.copy(),
        reason=np.zeros(len(rates), np.int8),
        burst_s=np.ones(len(rates)),
        breakers={
            id: BreakerDecision(
                pool=id,
                state=BreakerState.CLOSED,
                threshold_s=0.5,
                failure_ratio=0.01,
                reason="closed: nothing speaks against it.",
            )
            for id in pools
        },
    )


def observation(of: Policy, *, traffic: bool = True) -> Observation:
    """The first pool is measured, the second one's GPU metric has vanished."""
    fresh = Reading(value=60.0, sampled_at_s=NOW_S - 0.5, count=2, source="scrape")
    stale = Reading(value=0.7, sampled_at_s=NOW_S - 60.0, count=2, source="scrape")
    seen = {key.id: KeyTraffic(offered_per_s=30.0, limited_per_s=10.0) for key in of.keys[:2]}
    loads = {
        "chat:v1": Load(readings={"gpu_util_percent": fresh, "kv_cache_usage_ratio": stale}),
        "chat:v2": Load(readings={"gpu_util_percent": Reading(absent="no such metric")}),
    }
    return Observation(now_s=NOW_S, loads=loads, traffic=seen if traffic else None)


def xds_status(*, nack: str = "") -> CacheStatus:
    """One gateway, which rejected an extension when `nack` is given."""
    kinds = tuple(
        TypeStatus(
            type_url=url,
            subscribed=("*",),
            in_flight=None,
            in_flight_since_s=None,
            waiting=1 if nack and url == EXTENSION else 0,
            resources=(_resource(refused=bool(nack) and url == EXTENSION),),
        )
        for url in (CLUSTER, EXTENSION)
    )
    nacks = (
        Nack(
            at_s=NOW_S,
            type_url=EXTENSION,
            names=("tidegate.limits",),
            versions=("1",),
            origins=("tidegate.yaml:7",),
            reason=nack,
            found=True,
        ),
    )
    node = ConnectedNode(
        id="gateway-0", peer="127.0.0.1:4711", variant=Variant.DELTA, connected_at_s=NOW_S - 10
    )
    session = SessionStatus(
        node_id="gateway-0",
        variant=Variant.DELTA,
        settled=not nack,
        types=kinds,
        nacks=nacks if nack else (),
    )
    quarantine = Quarantined(
        type_url=EXTENSION,
        name="tidegate.limits",
        version="1",
        origin="tidegate.yaml:7",
        reason=nack,
        node_id="gateway-0",
        at_s=NOW_S,
        fleet=True,
    )
    return CacheStatus(
        published={CLUSTER: 2, EXTENSION: 3},
        published_at_s=NOW_S,
        streams=(StreamStatus(node=node, session=session),),
        quarantine=(quarantine,) if nack else (),
    )


def _resource(*, refused: bool) -> ResourceStatus:
    return ResourceStatus(
        name="one",
        acked_version=None if refused else "1",
        sent_version=None,
        refused_version="1" if refused else None,
        origin="",
    )


@dataclass
class FakeView:
    """`serve.view.View` from plain values; the switches really switch."""

    in_force: Policy | None = field(default_factory=policy)
    tick: Moment | None = None
    xds: CacheStatus = field(default_factory=xds_status)
    config: ConfigStatus = field(
        default_factory=lambda: ConfigStatus(loaded_at_s=NOW_S - 60, files=("tidegate.yaml",), in_force=True)
    )
    switches: Control = field(default_factory=Control)
    missing: tuple[str, ...] = ()
    trail: tuple[Change, ...] = ()
    at_s: float = NOW_S

    @staticmethod
    def running(**more: object) -> FakeView:
        """A control plane after a tick."""
        of = policy()
        tick = Moment(policy=of, decision=decision(of), observation=observation(of))
        return FakeView(in_force=of, tick=tick, **more)  # type: ignore[arg-type]

    @staticmethod
    def starting() -> FakeView:
        """A control plane before its first tick."""
        missing = ("no snapshot was published yet",)
        empty = CacheStatus(published={}, published_at_s=None, streams=(), quarantine=())
        return FakeView(in_force=None, xds=empty, config=ConfigStatus(), missing=missing)

    def now_s(self) -> float:
        return self.at_s

    def policy(self) -> Policy | None:
        return self.in_force

    def moment(self) -> Moment | None:
        return self.tick

    def xds_totals(self) -> XdsTotals:
        return XdsTotals(pushes=12, nacks=1, visible_to_acked_s=(0.031, 0.044))

    def xds_status(self) -> CacheStatus:
        return self.xds

    def config_status(self) -> ConfigStatus:
        return self.config

    def control(self) -> Control:
        return self.switches

    def ready(self) -> tuple[bool, Sequence[str]]:
        return not self.missing, self.missing

    def recent_changes(self, limit: int) -> Sequence[Change]:
        return self.trail[:limit]

    def freeze(self, on: bool, *, reason: str, by: str) -> None:
        self.switches = replace(self.switches, frozen=on, by=by, reason=reason, since_s=NOW_S)

    def set_mode(self, mode: Mode, *, reason: str, by: str) -> None:
        self.switches = replace(self.switches, mode=mode, by=by, reason=reason, since_s=NOW_S)
