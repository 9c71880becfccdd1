"""A view of the last tick in, Prometheus gauges out, made when somebody scrapes.

Series of keys are capped: the first `key_series` keys in the policy's order have their own (so a key keeps or
lacks its series until the configuration changes), the rest are summed per model version under `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.decide.burst import bursts_in_force_s
from controlplane.model.decision import BreakerState, PoolDecision, PoolState
from controlplane.model.policy import Mode, Policy
from controlplane.model.signal import SIGNALS, KeyTraffic, Load, Observation
from controlplane.serve.documents import number, short_name
from controlplane.serve.view import Moment, View

KEY_SERIES = 2000
OTHER = "other"
KEY_LABELS = ("route", "tenant", "model_version")
TRAFFIC = ("offered", "limited", "would_limit", "shed")

KeyLabels = tuple[str, str, str]


@dataclass(slots=True, kw_only=True)
class Totals:
    """Requests of each key since the start, summed from the gateways' rates. Bounded by the policy's keys."""

    offered: dict[KeyLabels, float] = field(default_factory=dict)
    limited: dict[KeyLabels, float] = field(default_factory=dict)
    would_limit: dict[KeyLabels, float] = field(default_factory=dict)
    shed: dict[KeyLabels, float] = field(default_factory=dict)
    by_rule: dict[tuple[str, str, str, str], float] = field(default_factory=dict)  # key labels and rule

    def keep(self, labels: frozenset[KeyLabels]) -> None:
        """Drop what a reload took away: tenants come and go, and must not pile up."""
        for name in TRAFFIC:
            totals: dict[KeyLabels, float] = getattr(self, name)
            setattr(self, name, {at: total for at, total in totals.items() if at in labels})
        self.by_rule = {ruled: total for ruled, total in self.by_rule.items() if ruled[:3] in labels}


class ViewCollector(Collector):
    """Gauges of a running control plane."""

    def __init__(self, view: View, *, key_series: int = KEY_SERIES) -> None:
        self._view = view
        self._key_series = key_series
        self._totals = Totals()
        self._known: tuple[Policy, dict[str, KeyLabels]] | None = None  # labels by Key.id, made once a policy

    def count_traffic(self, policy: Policy, observation: Observation, seconds: float) -> None:
        """Add what gateways saw over the last `seconds` to the counters. Call it once a tick."""
        if not observation.traffic:
            return
        if self._known is None or self._known[0] is not policy:
            own = zip((key.id for key in policy.keys), self._labels(policy), strict=True)
            self._known = policy, dict(own)
            self._totals.keep(frozenset(self._known[1].values()))
        for key_id, seen in observation.traffic.items():
            if labels := self._known[1].get(key_id):
                self._add(labels, seen, seconds)

    def _add(self, labels: KeyLabels, seen: KeyTraffic, seconds: float) -> None:
        for name in TRAFFIC:
            total: dict[KeyLabels, float] = getattr(self._totals, name)
            total[labels] = total.get(labels, 0.0) + getattr(seen, f"{name}_per_s") * seconds
        for rule, rate_per_s in seen.by_rule.items():
            ruled = (*labels, rule)
            self._totals.by_rule[ruled] = self._totals.by_rule.get(ruled, 0.0) + rate_per_s * seconds

    def collect(self) -> Iterator[Metric]:
        yield from self._switches()
        yield from self._gateways()
        yield from self._config()
        moment = self._view.moment()
        if moment is not None:
            yield from _pools(moment)
            yield from _breakers(moment)
            yield from self._keys(moment)
            yield from _signals(moment, self._view.now_s())

    def _switches(self) -> Iterator[Metric]:
        control = self._view.control()
        ready, _reasons = self._view.ready()
        yield _states("tidegate_mode", "The mode in force.", [((), control.mode)], (), Mode)
        yield GaugeMetricFamily("tidegate_frozen", "1 while rates are held by an operator.", control.frozen)
        yield GaugeMetricFamily("tidegate_ready", "1 once a first snapshot is published.", ready)

    def _gateways(self) -> Iterator[Metric]:
        status = self._view.xds_status()
        sessions = [stream.session for stream in status.streams]
        yield GaugeMetricFamily("tidegate_xds_gateways", "Connected gateways.", len(sessions))
        yield GaugeMetricFamily(
            "tidegate_xds_unsettled_gateways",
            "Gateways that do not have all that is published yet.",
            sum(not session.settled for session in sessions),
        )
        yield GaugeMetricFamily(
            "tidegate_xds_quarantined_resources",
            "Rejected resources that are held back.",
            len(status.quarantine),
        )
        counts = sorted(status.published.items())
        yield _gauges(
            "tidegate_xds_resources",
            "Published now.",
            ("type",),
            [((short_name(url),), float(count)) for url, count in counts],
        )

    def _config(self) -> Iterator[Metric]:
        status = self._view.config_status()
        family = GaugeMetricFamily(
            "tidegate_config_problems", "In the newest read of the configuration.", labels=["severity"]
        )
        for severity in ("error", "warning"):
            family.add_metric([severity], sum(str(p.severity) == severity for p in status.problems))
        yield family
        yield GaugeMetricFamily(
            "tidegate_config_in_force", "1 when the newest configuration is in force.", status.in_force
        )
        if status.loaded_at_s is not None:
            yield GaugeMetricFamily(
                "tidegate_config_loaded_timestamp_seconds", "When it came into force.", status.loaded_at_s
            )

    def _labels(self, policy: Policy) -> list[KeyLabels]:
        """The labels of each key of the policy, `other` beyond the cap."""
        own = [(key.route, key.tenant, key.pool) for key in policy.keys[: self._key_series]]
        return own + [(OTHER, OTHER, key.pool) for key in policy.keys[self._key_series :]]

    def _keys(self, moment: Moment) -> Iterator[Metric]:
        labels = self._labels(moment.policy)
        decision = moment.decision
        at_once = decision.rate_per_s * bursts_in_force_s(moment.policy, decision)
        for name, text, values in (
            ("tidegate_limit_per_second", "Enforced rate, whole fleet.", decision.rate_per_s),
            ("tidegate_limit_burst", "Requests at once.", at_once),
            ("tidegate_demand_per_second", "Offered work that entered sharing.", decision.demand_per_s),
            ("tidegate_fair_share_per_second", "Weight share before borrowing.", decision.fair_per_s),
        ):
            yield _summed(GaugeMetricFamily(name, text, labels=KEY_LABELS), labels, values)
        if self._key_series < len(labels):
            hidden = len(labels) - self._key_series
            yield GaugeMetricFamily("tidegate_keys_without_series", "Summed under `other`.", hidden)
        yield from self._counters()

    def _counters(self) -> Iterator[Metric]:
        for name, text in (
            ("offered", "Requests that reached a limit."),
            ("limited", "Requests refused with 429."),
            ("would_limit", "Requests that observe mode let through, and enforce mode would have refused."),
            ("shed", "Requests refused with 503 because the breaker of the model version was not closed."),
        ):
            family = CounterMetricFamily(f"tidegate_{name}", text, labels=KEY_LABELS)
            for labels, total in getattr(self._totals, name).items():
                family.add_metric(labels, total)
            yield family
        family = CounterMetricFamily(
            "tidegate_over_limit",
            "Requests over a limit, refused or (in observe mode) let through, by the limit that bound.",
            labels=(*KEY_LABELS, "rule"),
        )
        for ruled, total in self._totals.by_rule.items():
            family.add_metric(ruled, total)
        yield family


_POOL_GAUGES: tuple[tuple[str, str, Callable[[PoolDecision], float | None]], ...] = (
    ("tidegate_pool_rate_per_second", "Enforced.", lambda pool: pool.rate_per_s),
    ("tidegate_pool_target_per_second", "Wanted by the curve.", lambda pool: pool.target_per_s),
    ("tidegate_pool_base_rate_per_second", "At factor 1.", lambda pool: pool.base_rate_per_s),
    ("tidegate_pool_factor_ratio", "Of the base rate.", lambda pool: pool.factor),
    (
        "tidegate_pool_utilisation_ratio",
        "What entered the curve.",
        lambda pool: None if pool.utilisation_percent is None else pool.utilisation_percent / 100,
    ),
)


def _pools(moment: Moment) -> Iterator[Metric]:
    pools = sorted(moment.decision.pools.items())
    for name, text, of in _POOL_GAUGES:
        yield _gauges(name, text, ("model_version",), [((id,), of(pool)) for id, pool in pools])
    states = [((id,), pool.state) for id, pool in pools]
    yield _states("tidegate_pool_state", "How the rate came about.", states, ("model_version",), PoolState)


def _breakers(moment: Moment) -> Iterator[Metric]:
    breakers = sorted(moment.decision.breakers.items())
    states = [((id,), made.state) for id, made in breakers]
    text = "What the breaker does with requests."
    yield _states("tidegate_breaker_state", text, states, ("model_version",), BreakerState)
    thresholds = [((id,), made.threshold_s) for id, made in breakers]
    text = "A first byte later than this is slow."
    yield _gauges("tidegate_breaker_threshold_seconds", text, ("model_version",), thresholds)


def _signals(moment: Moment, now_s: float) -> Iterator[Metric]:
    labels = ("model_version", "signal")
    loads = moment.observation.loads if moment.observation else {}
    readings = [
        ((pool.id, name), loads.get(pool.id, Load()).get(name))
        for pool in moment.policy.pools
        for name in SIGNALS
    ]
    values = [(at, reading.value) for at, reading in readings]
    yield _gauges("tidegate_signal_value", "In the signal's own unit.", labels, values)
    ages = [(at, reading.age_s(now_s)) for at, reading in readings]
    yield _gauges("tidegate_signal_age_seconds", "Since its newest sample.", labels, ages)
    absent = [(at, float(reading.value is None)) for at, reading in readings]
    yield _gauges("tidegate_signal_absent", "1 while no usable value exists.", labels, absent)


def _gauges(
    name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float | None]]
) -> Metric:
    """One gauge; a value that is not known has no series (never a zero)."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for at, value in values:
        if (known := number(value)) is not None:
            family.add_metric(at, known)
    return family


def _states(
    name: str,
    text: str,
    values: Iterable[tuple[tuple[str, ...], str]],
    labels: tuple[str, ...],
    states: Iterable[str],
) -> Metric:
    """One series for each possible state, 1 for the one in force."""
    label = name.rpartition("_")[2]
    family = GaugeMetricFamily(name, text, labels=(*labels, label))
    for at, now in values:
        for state in states:
            family.add_metric((*at, str(state)), float(state == now))
    return family


def _summed(family: GaugeMetricFamily, labels: list[KeyLabels], values: NDArray[np.float64]) -> Metric:
    """One series for each distinct label set, values of the same one added; nan adds nothing."""
    sums: dict[KeyLabels, float] = {}
    for at, value in zip(labels, values.tolist(), strict=True):
        if number(value) is not None:
            sums[at] = sums.get(at, 0.0) + value
    for at, total in sums.items():
        family.add_metric(at, total)
    return family
