"""Events of a running control plane in, Prometheus counters and histograms out.

Base units (seconds, ratios 0..1), `_total` for counters. Gauges that mirror the last tick are not set here: a
collector reads them when somebody scrapes (`collector.py`), so a tick with ten thousand keys pays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

TICK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0)
ACK_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 2.0)
XDS_TYPES = ("CDS", "EDS", "LDS", "RDS", "ECDS", "RTDS")


class Metrics:
    """What happened since the start. Every label has a small, fixed set of values."""

    def __init__(self, registry: CollectorRegistry, *, version: str) -> None:
        build = Gauge("tidegate_build_info", "1, labelled with the version.", ["version"], registry=registry)
        build.labels(version).set(1)
        ProcessCollector(registry=registry)
        self._ticks(registry)
        self._xds(registry)
        self._config(registry)

    def _ticks(self, registry: CollectorRegistry) -> None:
        self._tick_s = Histogram(
            "tidegate_tick_duration_seconds",
            "From the start of a tick to its snapshot being published.",
            buckets=TICK_BUCKETS_S,
            registry=registry,
        )
        self._tick_cpu_s = Counter("tidegate_tick_cpu_seconds", "CPU time spent in ticks.", registry=registry)
        self._tick_failures = Counter(
            "tidegate_tick_failures", "Ticks that failed; the last good decision stayed.", registry=registry
        )
        self._changed = Counter(
            "tidegate_limit_changes",
            "Limits that changed by more than the threshold.",
            ["kind"],
            registry=registry,
        )

    def _xds(self, registry: CollectorRegistry) -> None:
        self._pushes, self._acks, self._nacks = (
            Counter(f"tidegate_xds_{name}", text, ["type"], registry=registry)
            for name, text in (
                ("pushes", "Discovery responses sent, over all gateways."),
                ("acks", "Discovery responses accepted by a gateway."),
                ("nacks", "Discovery responses rejected by a gateway."),
            )
        )
        for counter in (self._pushes, self._acks, self._nacks):
            for type_name in XDS_TYPES:
                counter.labels(type_name)
        self._publish_to_ack_s = Histogram(
            "tidegate_xds_publish_to_ack_seconds",
            "From a snapshot being published to a gateway's ACK of a response made of it.",
            buckets=ACK_BUCKETS_S,
            registry=registry,
        )
        self._visible_to_ack_s = Histogram(
            "tidegate_signal_visible_to_ack_seconds",
            "From a new signal value being visible to the ACK of the limits that follow from it.",
            buckets=ACK_BUCKETS_S,
            registry=registry,
        )

    def _config(self, registry: CollectorRegistry) -> None:
        self._reloads = Counter(
            "tidegate_config_reloads", "Reads of the configuration.", ["outcome"], registry=registry
        )
        for outcome in ("applied", "unchanged", "rejected"):
            self._reloads.labels(outcome)

    def tick_done(self, *, duration_s: float, cpu_s: float) -> None:
        """A tick made its decision and its snapshot."""
        self._tick_s.observe(duration_s)
        self._tick_cpu_s.inc(max(0.0, cpu_s))

    def tick_failed(self) -> None:
        """A tick raised; the last good decision stays."""
        self._tick_failures.inc()

    def limits_changed(self, counts: Mapping[str, int]) -> None:
        """Changes of a tick by kind (`pool`, `key`)."""
        for kind, count in counts.items():
            self._changed.labels(kind).inc(count)

    def pushed(self, type_name: str, count: int = 1) -> None:
        """Responses of one type (short name: CDS .. RTDS) were sent."""
        self._pushes.labels(_known_type(type_name)).inc(count)

    def acked(self, type_name: str, *, publish_to_ack_s: float | None = None) -> None:
        """A gateway accepted a response."""
        self._acks.labels(_known_type(type_name)).inc()
        if publish_to_ack_s is not None:
            self._publish_to_ack_s.observe(publish_to_ack_s)

    def nacked(self, type_name: str) -> None:
        """A gateway rejected a response."""
        self._nacks.labels(_known_type(type_name)).inc()

    def visible_to_acked(self, seconds: float) -> None:
        """A signal's new value is enforced: from visible in its source to ACKed by Envoy."""
        self._visible_to_ack_s.observe(seconds)

    def config_read(self, outcome: str) -> None:
        """The configuration was read: `applied`, `unchanged` or `rejected`."""
        self._reloads.labels(outcome).inc()


def _known_type(type_name: str) -> str:
    return type_name if type_name in XDS_TYPES else "other"
