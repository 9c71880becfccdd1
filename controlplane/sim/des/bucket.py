"""The data plane's token buckets, to the unit: costs, classes, order of slots, shares of several gateways.

A bucket fills at UNITS_PER_S and holds `class * UNITS_PER_S`, never COST_MAX; a request of a key with the
rate r costs UNITS_PER_S / r (`controlplane.xds.ratelimit`). Of n gateways each asks its own bucket for n
times the cost, which is how Envoy shares a limit. Slots are charged shortest burst first; the first refusal
ends the charging, and what earlier slots took stays taken, as in Envoy. A key whose floor needs a deep
bucket pays first into every shorter one, down to the wanted burst, in which one request fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from controlplane.decide.burst import burst_class_s
from controlplane.model.decision import Decision
from controlplane.model.ladder import ADAPTIVE_LADDER_S, COST_MAX, UNITS_PER_S
from controlplane.model.policy import Policy, WindowLimit
from controlplane.model.price import cost_units, cost_units_of, window_burst_class_s

ADAPTIVE = "adaptive"
_SHARED_MARGIN = 1.0 - 1e-5  # Envoy rounds a gateway's part of a bucket down
_ANSWER_TOKENS = 256  # what the limits script assumes of a request that names no max_tokens


class Bucket:
    """Full at first. Units and seconds; time never goes back."""

    __slots__ = ("_at_s", "_excess", "_level", "depth", "excess_max")

    def __init__(self, class_s: float) -> None:
        self.depth = float(min(round(UNITS_PER_S * class_s), COST_MAX - 1))
        self._level = self.depth
        self._at_s = 0.0
        self._excess = 0.0
        self.excess_max = 0.0

    def take(self, now_s: float, units: float) -> bool:
        """Whether `units` were there; they are gone then."""
        filled = (now_s - self._at_s) * UNITS_PER_S
        self._at_s = now_s
        self._level = min(self.depth, self._level + filled)
        self._excess = max(0.0, self._excess - filled)
        if units > self._level:
            return False
        self._level -= units
        # The audit: most that any span of time took beyond the fill in it. It must not exceed the depth.
        self._excess += units
        self.excess_max = max(self.excess_max, self._excess)
        return True


@dataclass(frozen=True, slots=True)
class Charge:
    """What a request asks of one bucket."""

    class_s: float
    bucket: str
    units: int
    rule: str  # the limit it stands for


@dataclass(frozen=True, slots=True)
class _Slot:
    class_s: float
    bucket: str
    rule: str
    window: WindowLimit | None = None  # None: the adaptive limit


class Buckets:
    """Every bucket of a fleet of gateways that enforces one policy."""

    def __init__(self, policy: Policy, burst_s: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        keys = range(len(policy.keys))
        self._gateways = 1
        self._cost = cost_units_of(np.zeros(len(keys))).tolist()  # closed before the first decision
        self._slots = [_slots(policy, number, float(burst_s[number])) for number in keys]
        self._bursts = [_shorter_bursts(policy, number, float(burst_s[number])) for number in keys]
        self._window_cost = {w.name: cost_units(w.rate_per_s) for w in policy.windows}
        self._buckets: dict[tuple[int, float, str], Bucket] = {}

    def enforce(self, decision: Decision) -> None:
        """New prices; every bucket stays as it is."""
        self._cost = cost_units_of(decision.rate_per_s).tolist()
        self._gateways = decision.gateways

    def charges(self, key: int, prompt_tokens: int) -> list[Charge]:
        """What a request of `key`, by its position in the policy, is charged, in this order."""
        cost = self._cost[key]
        bursts = self._bursts[key]
        found = [Charge(s.class_s, s.bucket, cost, s.rule) for s in bursts if self._fits(s.class_s, cost)]
        for slot in self._slots[key]:
            units = (
                cost if slot.window is None else self._window_units(slot.class_s, slot.window, prompt_tokens)
            )
            found.append(Charge(slot.class_s, slot.bucket, units, slot.rule))
        return found

    def refusal(self, now_s: float, key: int, gateway: int, prompt_tokens: int) -> str | None:
        """The rule that refuses a request of `key` at `gateway`; None: it passes."""
        for charge in self.charges(key, prompt_tokens):
            at = (gateway, charge.class_s, charge.bucket)
            bucket = self._buckets.get(at)
            if bucket is None:
                bucket = self._buckets[at] = Bucket(charge.class_s)
            if not bucket.take(now_s, charge.units * self._gateways):
                return charge.rule
        return None

    def _fits(self, class_s: float, cost: int) -> bool:
        """Whether one request fits into a gateway's part of a bucket of this class."""
        room = class_s * UNITS_PER_S * (_SHARED_MARGIN if self._gateways > 1 else 1.0)
        return cost * self._gateways <= room

    def _window_units(self, class_s: float, window: WindowLimit, prompt_tokens: int) -> int:
        cost = self._window_cost[window.name]
        if window.unit == "llm_token" and cost < COST_MAX:
            depth = class_s * UNITS_PER_S / self._gateways
            cost = min(math.floor(cost * (prompt_tokens + _ANSWER_TOKENS) + 0.5), math.floor(depth))
        return max(1, min(COST_MAX, cost))

    @property
    def overdrawn_ratio(self) -> float:
        """The most that a bucket gave beyond its fill in any span of time, over its depth; 1: all it may."""
        return max((bucket.excess_max / bucket.depth for bucket in self._buckets.values()), default=0.0)


def _slots(policy: Policy, number: int, burst_s: float) -> tuple[_Slot, ...]:
    """As the limits script orders them: by class, the adaptive limit before windows of the same class."""
    key = policy.keys[number]
    windows = {window.name: window for window in policy.windows}
    patterns = {route.id: route.pattern for route in policy.routes}
    parts = {"tenant_id": key.tenant, "model_version": key.pool, "path": patterns.get(key.route, "")}
    slots = [_Slot(burst_s, f"a|{key.id}", ADAPTIVE)]
    for name in key.windows[:2]:
        window = windows[name]
        fields = [parts[each] for each in window.key_fields]
        gateways = policy.gateways.max_count
        class_s = window_burst_class_s(window.rate_per_s, window.burst_tokens, gateways).class_s
        slots.append(_Slot(class_s, "|".join(["w", name, *fields]), name, window))
    order = {window.name: place for place, window in enumerate(policy.windows, start=1)}
    return tuple(sorted(slots, key=lambda slot: (slot.class_s, order.get(slot.rule, 0))))


def _shorter_bursts(policy: Policy, number: int, class_s: float) -> tuple[_Slot, ...]:
    """The adaptive classes from the wanted burst up to the key's own, without it; the shortest first."""
    key = policy.keys[number]
    wanted_s = next(
        (burst_class_s(0.0, 1, p.rate.burst_s) for p in policy.pools if p.id == key.pool), class_s
    )
    shorter = [each for each in ADAPTIVE_LADDER_S if wanted_s <= each < class_s]
    return tuple(_Slot(each, f"a|{key.id}", ADAPTIVE) for each in shorter)
