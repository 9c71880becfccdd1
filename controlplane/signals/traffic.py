"""The request counters of every gateway -> the traffic of each key, per second.

The limits script of a gateway counts every request of a key once as `offered` (refused ones included)
and, where that was so, as `limited`, `would_limit` or `shed` together with the rule that bound. Gateways are
summed. One that stops answering counts with its last rates for a while and is then left out; when fewer
than half are known, the traffic is unknown, and unknown is not zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.model.signal import KeyTraffic
from controlplane.signals.text import Sample
from controlplane.signals.window import Vector

HOLD_S = 10.0

_OUTCOMES = {"offered": 0, "limited": 1, "would_limit": 2, "shed": 3}


@dataclass(slots=True)
class Counters:
    """The request counters of one gateway at its last two pages."""

    time_s: float | None = None
    counts: Vector | None = None
    rates: Vector | None = None  # per second, by `key~outcome~rule`, where above zero
    carried: dict[str, float] = field(default_factory=dict)  # grown since `time_s`, by pages in between

    def add(self, time_s: float, counts: Vector, *, restarted: bool = False) -> None:
        """One page. A counter that appears or fell began at zero.

        Each for itself: Envoy drops the script's counters with the script they belong to, at every change of
        the limits, except those that a request under way still holds.
        """
        before_s, known = self.time_s, self.counts is not None
        self.carry(counts, restarted=restarted)
        grown, self.carried, self.time_s = self.carried, {}, time_s
        if before_s is None or not known or time_s <= before_s:
            self.rates = None
            return
        elapsed_s = time_s - before_s
        self.rates = {name: count / elapsed_s for name, count in grown.items() if count > 0}

    def carry(self, counts: Vector, *, restarted: bool = False) -> None:
        """A page right behind a change of the limits, before counters that began anew reach what they were.

        At a steady rate they count as much from one regular page to the next as they did before, and nothing
        would seem to have happened.
        """
        if self.counts is not None:
            base = {} if restarted else self.counts
            for name, count in counts.items():
                self.carried[name] = self.carried.get(name, 0.0) + growth_of(base.get(name, 0.0), count)
        self.counts = counts

    def not_after(self, now_s: float) -> None:
        """A clock that stepped back: see `Target.not_after`. What grows next has no known duration."""
        if self.time_s is not None and self.time_s > now_s:
            self.time_s, self.counts, self.carried = now_s, None, {}


def growth_of(before: float, now: float) -> float:
    """What one counter grew by: all that it shows when it began anew in between."""
    return now - before if now >= before else now


class Names:
    """The name of each request counter, remembered as long as its series is on the page.

    With 10,000 keys most of a page's cost would be putting the same names together again.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Mapping[str, str], str | None]] = {}

    def counts_of(self, samples: Sequence[Sample]) -> Vector:
        """Counters by `route|tenant|model:version~outcome~rule`; one that lacks another part is left out."""
        known: dict[int, tuple[Mapping[str, str], str | None]] = {}
        counts: dict[str, float] = {}
        for labels, value, _ in samples:
            old = self._known.get(id(labels))
            pair = old if old is not None and old[0] is labels else (labels, _name(labels))
            known[id(labels)] = pair
            name = pair[1]
            if name is not None and 0 <= value < math.inf:
                counts[name] = counts.get(name, 0.0) + value
        self._known = known
        return counts


def _name(labels: Mapping[str, str]) -> str | None:
    parts = [labels.get(label) for label in ("route", "tenant", "model_version", "outcome")]
    if None in parts:
        return None
    route, tenant, model_version, outcome = parts
    name = f"{route}|{tenant}|{model_version}~{outcome}~{labels.get('rule', '')}"
    return name if name.count("~") == 2 else None


def enough(known: int, gateways: int) -> bool:
    """Whether `known` of `gateways` may speak for all: at least half."""
    return known > 0 and 2 * known >= gateways


def key_traffic(gateways: Sequence[Counters], now_s: float) -> Mapping[str, KeyTraffic] | None:
    """The traffic of each counted key over all gateways; None when too few of them are known."""
    known = [each.rates for each in gateways if each.rates is not None and _recent(each, now_s)]
    if not enough(len(known), len(gateways)):
        return None
    summed: dict[str, list[float]] = {}
    by_rule: dict[str, dict[str, float]] = {}
    for rates in known:
        for name, rate_per_s in rates.items():
            key, outcome, rule = name.split("~")
            place = _OUTCOMES.get(outcome)
            if place is None:
                continue
            summed.setdefault(key, [0.0, 0.0, 0.0, 0.0])[place] += rate_per_s
            if rule:
                rules = by_rule.setdefault(key, {})
                rules[rule] = rules.get(rule, 0.0) + rate_per_s
    return {
        key: KeyTraffic(
            offered_per_s=offered,
            limited_per_s=limited,
            would_limit_per_s=would,
            shed_per_s=shed,
            by_rule=by_rule.get(key, {}),
        )
        for key, (offered, limited, would, shed) in summed.items()
    }


def _recent(counters: Counters, now_s: float) -> bool:
    return counters.time_s is not None and now_s - counters.time_s <= HOLD_S
