"""A running control plane in, the JSON documents of the admin API out. Pure: no sockets, no clock.

Fields are listed by hand, so that nothing is shown because it happened to be in a dataclass; what cannot be
known is null, never zero. docs/admin-api.md describes every document.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.decide.burst import bursts_in_force_s
from controlplane.decide.explain import Explanation
from controlplane.model.decision import KEY_REASON_CODES, KEY_REASONS, BreakerDecision, PoolDecision
from controlplane.model.policy import Key, Policy
from controlplane.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, RUNTIME
from controlplane.model.signal import SIGNALS, KeyTraffic, Load, Observation, Reading
from controlplane.serve.cache import CacheStatus, StreamStatus
from controlplane.serve.changes import Change
from controlplane.serve.view import ConfigStatus, Control, Moment, XdsTotals
from controlplane.xds.quarantine import Quarantined
from controlplane.xds.session import TypeStatus

Document = dict[str, Any]
SHORT_NAMES: Mapping[str, str] = {
    CLUSTER: "CDS",
    ENDPOINT: "EDS",
    LISTENER: "LDS",
    ROUTE: "RDS",
    EXTENSION: "ECDS",
    RUNTIME: "RTDS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which keys are asked for; None matches everything. A bare model name means all its versions."""

    tenant: str | None = None
    route: str | None = None  # Route.id or its pattern
    model_version: str | None = None

    def matches(self, key: Key, route_ids: frozenset[str]) -> bool:
        """Whether `key` is selected; `route_ids` are the ids that `route` stands for."""
        if self.tenant is not None and key.tenant != self.tenant:
            return False
        if self.route is not None and key.route not in route_ids:
            return False
        return self.model_version in (None, key.pool, key.pool.partition(":")[0])

    def matches_pool(self, pool_id: str) -> bool:
        """Whether the pool is selected."""
        return self.model_version in (None, pool_id, pool_id.partition(":")[0])


def decisions(
    moment: Moment, control: Control, selection: Selection, *, after: str = "", limit: int = 500
) -> Document:
    """All pools and one page of keys: those whose id sorts behind `after`, at most `limit`."""
    policy, decision = moment.policy, moment.decision
    route_ids = frozenset(route.id for route in policy.routes if selection.route in (route.id, route.pattern))
    chosen = [i for i, key in enumerate(policy.keys) if selection.matches(key, route_ids)]
    page = [i for i in chosen if policy.keys[i].id > after][: limit + 1]
    more, page = len(page) > limit, page[:limit]
    bursts_s = bursts_in_force_s(policy, decision)
    return {
        "at": decision.now_s,
        "mode": str(control.mode),
        "frozen": control.frozen,
        "gateways": decision.gateways,
        "pools": [_pool(pool) for id, pool in sorted(decision.pools.items()) if selection.matches_pool(id)],
        "breakers": [
            _breaker(made) for id, made in sorted(decision.breakers.items()) if selection.matches_pool(id)
        ],
        "keys": [_key(moment, i, float(bursts_s[i])) for i in page],
        "total": len(chosen),
        "next": policy.keys[page[-1]].id if more else None,
    }


def _pool(pool: PoolDecision) -> Document:
    return {
        "model_version": pool.pool,
        "state": str(pool.state),
        "rate_per_s": pool.rate_per_s,
        "target_per_s": number(pool.target_per_s),
        "base_rate_per_s": pool.base_rate_per_s,
        "factor": number(pool.factor),
        "utilisation_percent": number(pool.utilisation_percent),
        "reason": pool.reason,
        "inputs": {name: number(value) for name, value in sorted(pool.inputs.items())},
    }


def _breaker(made: BreakerDecision) -> Document:
    return {
        "model_version": made.pool,
        "state": str(made.state),
        "threshold_s": number(made.threshold_s),
        "failure_ratio": number(made.failure_ratio),
        "retry_after_s": None if made.state == "closed" else made.retry_after_s,
        "probe_ratio": number(made.probe_ratio),
        "capacity_ratio": number(made.capacity_ratio),
        "reason": made.reason,
        "inputs": {name: number(value) for name, value in sorted(made.inputs.items())},
    }


def _key(moment: Moment, index: int, burst_s: float) -> Document:
    key, decision = moment.policy.keys[index], moment.decision
    rate_per_s = float(decision.rate_per_s[index])
    reason = int(decision.reason[index])
    return {
        "id": key.id,
        "route": key.route,
        "tenant": key.tenant,
        "model_version": key.pool,
        "priority": str(key.priority),
        "rate_per_s": number(rate_per_s),
        "burst_s": burst_s,
        "burst_requests": number(rate_per_s * burst_s),
        "demand_per_s": number(decision.demand_per_s[index]),
        "fair_per_s": number(decision.fair_per_s[index]),
        "weight": key.weight,
        "guarantee_per_s": key.guarantee_per_s,
        "ceiling_per_s": key.ceiling_per_s,
        "pin_per_s": key.pin_per_s,
        "reason": KEY_REASONS[reason],
        "reason_code": KEY_REASON_CODES[reason],
        "windows": list(key.windows),
    } | _traffic(moment.observation, key.id)


def _traffic(observation: Observation | None, key_id: str) -> Document:
    """What gateways counted; all null without their counters, zero for a key nobody used."""
    if observation is None or observation.traffic is None:
        return dict.fromkeys(
            ("offered_per_s", "admitted_per_s", "limited_per_s", "would_limit_per_s", "shed_per_s", "by_rule")
        )
    seen = observation.traffic.get(key_id, KeyTraffic(offered_per_s=0.0))
    return {
        "offered_per_s": number(seen.offered_per_s),
        "admitted_per_s": number(max(0.0, seen.offered_per_s - seen.limited_per_s - seen.shed_per_s)),
        "limited_per_s": number(seen.limited_per_s),
        "would_limit_per_s": number(seen.would_limit_per_s),
        "shed_per_s": number(seen.shed_per_s),
        "by_rule": {rule: number(rate) for rule, rate in sorted(seen.by_rule.items())},
    }


def signals(policy: Policy, observation: Observation, now_s: float) -> Document:
    """Every signal of every pool, with its age, or why it is absent."""
    pools = []
    for pool in policy.pools:
        load = observation.loads.get(pool.id, Load())
        names = [*SIGNALS, *sorted(load.readings.keys() - set(SIGNALS))]
        readings = {name: _reading(load.get(name), now_s, pool.rate.max_age_s) for name in names}
        pools.append(
            {
                "model_version": pool.id,
                "engine": pool.engine,
                "rate_signal": str(pool.rate.signal),
                "signals": readings,
            }
        )
    return {"at": observation.now_s, "source": policy.signals.source, "pools": pools}


def _reading(reading: Reading, now_s: float, max_age_s: float) -> Document:
    age_s = reading.age_s(now_s)
    return {
        "value": number(reading.value),
        "age_s": None if age_s is None else round(age_s, 3),
        "stale": age_s is not None and age_s > max_age_s,
        "count": reading.count,
        "source": reading.source,
        "absent": reading.absent if reading.value is None else None,
    }


def explanation(moment: Moment, told: Explanation, key_id: str) -> Document:
    """How one limit came about, line by line, and the key as `decisions` shows it."""
    index = next(i for i, key in enumerate(moment.policy.keys) if key.id == key_id)
    return {
        "at": moment.decision.now_s,
        "key": _key(moment, index, float(bursts_in_force_s(moment.policy, moment.decision)[index])),
        "lines": [
            {"label": line.label, "value": _scalar(line.value), "unit": line.unit, "reason": line.reason}
            for line in told.lines
        ],
    }


def xds(status: CacheStatus, totals: XdsTotals) -> Document:
    """The connected gateways, what each accepted, and what is quarantined."""
    return {
        "pushes": totals.pushes,
        "nacks": totals.nacks,
        "visible_to_acked_s": list(totals.visible_to_acked_s),
        "published": {short_name(url): count for url, count in status.published.items()},
        "published_at": status.published_at_s,
        "gateways": [_gateway(stream) for stream in status.streams],
        "quarantined": [_quarantined(entry) for entry in status.quarantine],
    }


def _gateway(stream: StreamStatus) -> Document:
    node, session = stream.node, stream.session
    return {
        "node": node.id,
        "address": node.peer,
        "protocol": str(node.variant),
        "connected_at": node.connected_at_s,
        "settled": session.settled,
        "types": {short_name(kind.type_url): _type(kind) for kind in session.types},
        "nacks": [
            {
                "at": nack.at_s,
                "type": short_name(nack.type_url),
                "names": list(nack.names),
                "origins": list(nack.origins),
                "reason": nack.reason,
            }
            for nack in session.nacks
        ],
    }


def _type(kind: TypeStatus) -> Document:
    return {
        "acked": sum(resource.acked_version is not None for resource in kind.resources),
        "refused": sum(resource.refused_version is not None for resource in kind.resources),
        "waiting": kind.waiting,
        "in_flight_since": kind.in_flight_since_s,
    }


def _quarantined(entry: Quarantined) -> Document:
    return {
        "type": short_name(entry.type_url),
        "name": entry.name,
        "version": entry.version,
        "origin": entry.origin,
        "reason": entry.reason,
        "node": entry.node_id,
        "since": entry.at_s,
        "fleet": entry.fleet,
    }


def short_name(type_url: str) -> str:
    """The discovery service of a type: CDS, EDS, LDS, RDS, ECDS, RTDS; else the type's own last word."""
    return SHORT_NAMES.get(type_url, type_url.rpartition(".")[2])


def config(status: ConfigStatus, policy: Policy | None) -> Document:
    """The files in force, what is wrong with the newest read, and how much is configured."""
    return {
        "in_force": status.in_force,
        "loaded_at": status.loaded_at_s,
        "reloads": status.reloads,
        "files": list(status.files),
        "problems": [
            {name: getattr(problem, name) for name in ("file", "line", "path", "message", "expected")}
            | {"severity": str(problem.severity)}
            for problem in status.problems
        ],
        "configured": None if policy is None else _sizes(policy),
    }


def _sizes(policy: Policy) -> Document:
    return {
        "routes": len(policy.routes),
        "models": len(policy.models),
        "model_versions": len(policy.pools),
        "tenants": len(policy.tenants),
        "keys": len(policy.keys),
        "windows": len(policy.windows),
    }


def changes(recent: Sequence[Change]) -> Document:
    """The newest changes, newest first."""
    return {"changes": [change(line) for line in recent]}


def change(line: Change) -> Document:
    """One change with its inputs."""
    return {
        "at": line.at_s,
        "kind": line.kind,
        "subject": line.subject,
        "old": _scalar(line.old),
        "new": _scalar(line.new),
        "reason": line.reason,
        "inputs": {name: number(value) for name, value in line.inputs.items()},
    }


def control(state: Control) -> Document:
    """The switches, and who set them."""
    return {
        "mode": str(state.mode),
        "frozen": state.frozen,
        "by": state.by,
        "reason": state.reason,
        "since": state.since_s,
    }


def number(value: float | None) -> float | None:
    """`value` as JSON knows numbers: nan and infinities are null."""
    return float(value) if value is not None and math.isfinite(value) else None


def _scalar(value: float | str | None) -> float | str | None:
    return value if isinstance(value, str) else number(value)
