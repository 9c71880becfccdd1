"""Two decisions in, what changed between them out: the audit trail of every automatic change.

Only changes above a threshold count, the largest first and a bounded number for each tick: when the rate of a
pool moves, all its keys move with it, and ten thousand lines a second would hide what happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from controlplane.model.decision import KEY_REASONS, BreakerDecision, BreakerState, Decision, PoolDecision
from controlplane.model.policy import Key, Policy

THRESHOLD_RATIO = 0.01  # a smaller change of a rate is not worth a line
KEYS_PER_TICK = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One limit (or switch) that changed. `old` is None for a new one, `new` for one that is gone."""

    at_s: float
    kind: str  # pool | key | breaker | freeze | mode | config
    subject: str  # Pool.id, Key.id, or what was switched
    old: float | str | None
    new: float | str | None
    reason: str
    inputs: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one tick changed; `omitted` counts the changed keys that got no line of their own."""

    lines: Sequence[Change]
    omitted: int = 0


class Trail:
    """The newest changes, bounded; the oldest fall out."""

    def __init__(self, capacity: int = 2000) -> None:
        self._ring: deque[Change] = deque(maxlen=capacity)

    def add(self, lines: Sequence[Change]) -> None:
        """Remember `lines`, given oldest first."""
        self._ring.extend(lines)

    def newest(self, limit: int) -> Sequence[Change]:
        """At most `limit` changes, newest first."""
        return tuple(self._ring)[::-1][: max(0, limit)]


def changes(
    old: tuple[Policy, Decision] | None,
    new: tuple[Policy, Decision],
    *,
    threshold_ratio: float = THRESHOLD_RATIO,
    keys_at_most: int = KEYS_PER_TICK,
) -> Changes:
    """Breakers and pools whose state changed, pools whose rate did, and the keys that changed most."""
    breakers = _breaker_changes(old[1].breakers if old else {}, new[1])
    pools = _pool_changes(old[1].pools if old else {}, new[1], threshold_ratio)
    keys, omitted = _key_changes(old, new, threshold_ratio, keys_at_most)
    return Changes(lines=(*breakers, *pools, *keys), omitted=omitted)


def _breaker_changes(old: Mapping[str, BreakerDecision], new: Decision) -> list[Change]:
    """A breaker that was never seen counts as closed: a start is no event."""
    found = []
    for pool_id, after in sorted(new.breakers.items()):
        before = str(old[pool_id].state) if pool_id in old else BreakerState.CLOSED.value
        if before != after.state:
            found.append(
                Change(
                    at_s=new.now_s,
                    kind="breaker",
                    subject=pool_id,
                    old=before,
                    new=str(after.state),
                    reason=after.reason,
                    inputs={"threshold_s": after.threshold_s, "failure_ratio": after.failure_ratio}
                    | dict(after.inputs),
                )
            )
    return found


def _pool_changes(old: Mapping[str, PoolDecision], new: Decision, threshold_ratio: float) -> list[Change]:
    found = []
    for pool_id in sorted(old.keys() | new.pools.keys()):
        before, after = old.get(pool_id), new.pools.get(pool_id)
        if _pool_differs(before, after, threshold_ratio):
            found.append(_pool_change(new.now_s, pool_id, before, after))
    return found


def _pool_differs(before: PoolDecision | None, after: PoolDecision | None, threshold_ratio: float) -> bool:
    if before is None or after is None:
        return before is not after
    step = abs(after.rate_per_s - before.rate_per_s)
    return before.state != after.state or step > threshold_ratio * before.rate_per_s


def _pool_change(
    now_s: float, pool_id: str, before: PoolDecision | None, after: PoolDecision | None
) -> Change:
    inputs: dict[str, float | None] = {}
    if after:
        inputs = {
            "base_rate_per_s": after.base_rate_per_s,
            "utilisation_percent": after.utilisation_percent,
            "factor": after.factor,
            "target_per_s": after.target_per_s,
        } | dict(after.inputs)
    return Change(
        at_s=now_s,
        kind="pool",
        subject=pool_id,
        old=before.rate_per_s if before else None,
        new=after.rate_per_s if after else None,
        reason=f"{after.state}: {after.reason}" if after else "no longer configured",
        inputs=inputs,
    )


def _key_changes(
    old: tuple[Policy, Decision] | None, new: tuple[Policy, Decision], threshold_ratio: float, at_most: int
) -> tuple[list[Change], int]:
    policy, decision = new
    before = _rates_before(old, policy)
    steps = np.abs(decision.rate_per_s - before)
    changed = np.flatnonzero(np.isnan(before) | (steps > threshold_ratio * before))
    weight = np.where(np.isnan(steps), np.inf, steps)[changed]
    largest = np.sort(changed[np.argsort(-weight, kind="stable")[:at_most]])
    found = [_key_change(decision, policy.keys[i], int(i), float(before[i])) for i in largest]
    return found, len(changed) - len(found)


def _rates_before(old: tuple[Policy, Decision] | None, policy: Policy) -> NDArray[np.float64]:
    """The earlier rate of each key of `policy`, nan for a new one."""
    if old is None:
        return np.full(len(policy.keys), np.nan)
    if old[0] is policy:
        return old[1].rate_per_s
    rates = {key.id: float(rate) for key, rate in zip(old[0].keys, old[1].rate_per_s, strict=True)}
    return np.array([rates.get(key.id, np.nan) for key in policy.keys], dtype=np.float64)


def _key_change(decision: Decision, key: Key, index: int, before: float) -> Change:
    pool = decision.pools.get(key.pool)
    return Change(
        at_s=decision.now_s,
        kind="key",
        subject=key.id,
        old=None if np.isnan(before) else before,
        new=float(decision.rate_per_s[index]),
        reason=KEY_REASONS[int(decision.reason[index])],
        inputs={
            "pool_rate_per_s": pool.rate_per_s if pool else None,
            "weight": key.weight,
            "demand_per_s": _number(decision.demand_per_s[index]),
            "fair_per_s": _number(decision.fair_per_s[index]),
        },
    )


def _number(value: np.float64) -> float | None:
    return float(value) if np.isfinite(value) else None
