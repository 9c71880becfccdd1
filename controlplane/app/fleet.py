"""How many Envoys share the limits, judged from who is connected. Pure; time is an argument.

Too few members would let every gateway admit too much, so the count rises at once and falls late: a
gateway that lost its stream still serves its share. After a start of the control plane the gateways come
back one by one, each still enforcing its old share; the count therefore starts at what they report to
hold, at least `min_count`, and only falls after the hold. Members carry no addresses: Envoy counts them,
and a list that is a function of the count alone lets a restarted control plane recognise the share its
gateways already have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Gateways
from controlplane.xds.translate import gateways_version

HOLD_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """`count` is enforced; `pending_until_s` is when it may fall to `seen`, None while they agree."""

    count: int = 1
    seen: int = 0
    pending_until_s: float | None = None


def start(policy: Gateways, now_s: float) -> Fleet:
    """Nobody is connected yet; the operator's minimum is believed for the hold."""
    return Fleet(count=max(1, policy.min_count), seen=0, pending_until_s=now_s + HOLD_S)


def observe(fleet: Fleet, policy: Gateways, connected: int, now_s: float, *, held_count: int = 0) -> Fleet:
    """The fleet after `connected` distinct gateways were counted at `now_s`.

    `held_count` is the member count a reconnecting gateway says it enforces (0: unknown).
    """
    wanted = max(1, policy.min_count, connected)
    count = max(fleet.count, wanted, held_count)
    if count == wanted:
        return Fleet(count=count, seen=connected)
    if fleet.pending_until_s is None:
        return Fleet(count=count, seen=connected, pending_until_s=now_s + HOLD_S)
    if now_s >= fleet.pending_until_s:
        return Fleet(count=wanted, seen=connected)
    until_s = min(fleet.pending_until_s, now_s + HOLD_S)  # a clock that stepped back must not make it longer
    return Fleet(count=count, seen=connected, pending_until_s=until_s)


def members(count: int) -> tuple[GatewayMember, ...]:
    """The members every gateway is told of; equal counts give equal bytes."""
    return tuple(GatewayMember(id=f"gateway-{i:05d}", port=i) for i in range(1, count + 1))


def held_count(version: str, policy: Gateways) -> int:
    """The member count whose resource has `version`; 0 when it is none of ours.

    What a client says is believed up to the operator's `max_count`: beyond, it could starve the fleet.
    """
    counts = range(1, policy.max_count + 1)
    return next((count for count in counts if gateways_version(members(count)) == version), 0)


def distinct(node_ids: Iterable[str]) -> int:
    """Gateways among the connected streams: one Envoy may hold several."""
    return len(set(node_ids))
