"""What the policy service did -> Prometheus counters; what it knows of quotas -> gauges at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.policy.quota import Account, Balance
from controlplane.policy.store import Settled

OUTCOMES = ("admitted", "refused", "would_refuse", "no_quota", "unavailable")
ANSWER_BUCKETS_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
SERIES = 2000


class PolicyMetrics:
    """Counters of one process. No label takes a value that a client can make up."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._decisions = Counter(
            "tidegate_policy_decisions", "Requests judged against quotas.", ["outcome"], registry=registry
        )
        self._settled = Counter(
            "tidegate_policy_settlements",
            "Ended requests, by what was known of them.",
            ["outcome"],
            registry=registry,
        )
        self._malformed = Counter(
            "tidegate_policy_malformed",
            "Calls that lack a field or are not ours; they pass.",
            registry=registry,
        )
        self._failures = Counter(
            "tidegate_policy_store_failures",
            "Questions the store did not answer in time.",
            registry=registry,
        )
        self._lost = Counter(
            "tidegate_policy_lost_settlements",
            "Settlements given up while the store was away; their reservations are charged.",
            registry=registry,
        )
        self._tokens = Counter(
            "tidegate_quota_charged_tokens", "LLM tokens of settled requests.", registry=registry
        )
        self._answer_s = Histogram(
            "tidegate_policy_answer_seconds",
            "From a call to its answer.",
            buckets=ANSWER_BUCKETS_S,
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._decisions.labels(outcome)
        for settled in Settled:
            self._settled.labels(settled)

    def decided(self, outcome: str) -> None:
        """One of OUTCOMES."""
        self._decisions.labels(outcome).inc()

    def settled(self, outcome: Settled, tokens: int) -> None:
        """A request ended."""
        self._settled.labels(outcome).inc()
        if outcome not in (Settled.REFUSED, Settled.DUPLICATE):
            self._tokens.inc(tokens)

    def malformed(self) -> None:
        """A call said nothing usable."""
        self._malformed.inc()

    def store_failed(self) -> None:
        """The store did not answer."""
        self._failures.inc()

    def settlement_lost(self) -> None:
        """Too many wait for the store."""
        self._lost.inc()

    def answered(self, seconds: float) -> None:
        """How long a call took."""
        self._answer_s.observe(seconds)


class QuotaCollector(Collector):
    """Gauges of quotas: limits as configured, usage as this process heard of it last.

    `known` gives every account and its last balances (empty: not heard of), `degraded` whether the store is
    away, `now_s` the time. At most `series` quotas have series of their own.
    """

    def __init__(
        self,
        known: Callable[[], Mapping[Account, tuple[Balance, ...]]],
        degraded: Callable[[], bool],
        now_s: Callable[[], float],
        *,
        series: int = SERIES,
    ) -> None:
        self._known = known
        self._degraded = degraded
        self._now_s = now_s
        self._series = series

    def collect(self) -> Iterator[Metric]:
        degraded = GaugeMetricFamily(
            "tidegate_policy_degraded", "1 while the store is away and this process counts alone."
        )
        degraded.add_metric([], float(self._degraded()))
        yield degraded
        labels = ["tenant", "model_version", "period"]
        limit, used, reserved = (
            GaugeMetricFamily(f"tidegate_quota_{name}_tokens", text, labels=labels)
            for name, text in (
                ("limit", "LLM tokens of a period, grants included."),
                ("used", "Settled usage in the window of now."),
                ("reserved", "Reserved by requests in flight."),
            )
        )
        known = sorted(self._known().items(), key=lambda item: item[0].id)
        lines = [(account, line, balances) for account, balances in known for line in account.lines]
        now_s = self._now_s()
        for account, line, balances in lines[: self._series]:
            names = [account.tenant, account.pool, line.period]
            current = [b for b in balances if b.line.period == line.period and b.window.end_s > now_s]
            limit.add_metric(names, line.limit_tokens + sum(balance.granted_tokens for balance in current))
            for balance in current:
                used.add_metric(names, balance.used_tokens)
                reserved.add_metric(names, balance.reserved_tokens)
        yield from (limit, used, reserved)
        without = GaugeMetricFamily("tidegate_quotas_without_series", "Quotas above the cap on series.")
        without.add_metric([], max(0, len(lines) - self._series))
        yield without
