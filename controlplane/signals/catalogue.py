"""catalogue.yaml (and the operator's own file) -> which metric means which signal, by engine.

Metric names change between releases of a model server, units between servers; so names are data. Every
signal has an ordered list of candidates: the first one a page exposes is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from controlplane.signals.catalogue_file import CatalogueError, CatalogueFile, parse

_SHIPPED = Path(__file__).with_name("catalogue.yaml")

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_CONVERSIONS: Mapping[tuple[str, str], float] = {
    ("ratio", "percent"): 100.0,
    ("percent", "ratio"): 0.01,
    **{(a, b): _SECONDS[a] / _SECONDS[b] for a in _SECONDS for b in _SECONDS},
    **{(unit, unit): 1.0 for unit in ("ratio", "percent", "count", "per_s")},
}


class Kind(StrEnum):
    """What a metric is, and so what becomes of it."""

    GAUGE = "gauge"  # its last value
    COUNTER = "counter"  # its rate per second
    HISTOGRAM = "histogram"  # its 95th percentile
    RATIO = "ratio"  # the increase of one counter over that of others


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What a reading means: its unit, the range it can have, and how endpoints join into a pool."""

    name: str
    unit: str
    low: float
    high: float
    across: str = "mean"  # mean | sum | max
    optional: bool = False

    @property
    def limits(self) -> str:
        """The range for people: `0..100 percent`."""
        return f"{self.low:g}..{self.high:g} {self.unit}"

    def admit(self, value: float) -> float | None:
        """`value` within the range, None when it cannot be true (NaN, infinite, outside by more than
        rounding).
        """
        slack = 1e-9 * max(1.0, abs(self.high))
        inside = self.low - slack <= value <= self.high + slack
        return min(max(value, self.low), self.high) if inside else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One metric that may carry a signal. `scale` converts its unit to the signal's."""

    metric: str
    kind: Kind
    scale: float = 1.0
    within: str = "mean"
    across: str | None = None  # None: as the signal says
    where: Mapping[str, str] = field(default_factory=dict)
    of: tuple[str, ...] = ()
    minus: tuple[str, ...] = ()
    recorded: str | None = None

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names of the samples this metric is made of, the one that proves it is exposed first."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.metric}_bucket",)
        return (self.metric, *self.of, *self.minus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One kind of server: the labels that tell its models apart, and its candidates by signal."""

    name: str
    model_labels: tuple[str, ...] = ()
    version_labels: tuple[str, ...] = ()
    replica_labels: tuple[str, ...] = ()
    signals: Mapping[str, tuple[Candidate, ...]] = field(default_factory=dict)

    @property
    def sample_names(self) -> frozenset[str]:
        """Every sample name of this engine's candidates."""
        groups = (each.sample_names for candidates in self.signals.values() for each in candidates)
        return frozenset(name for names in groups for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Every signal and every engine."""

    signals: Mapping[str, Signal]
    engines: Mapping[str, Engine]

    def engine(self, name: str) -> Engine:
        """The engine called `name`; one without any metric when the catalogue does not know it."""
        return self.engines.get(name) or Engine(name=name)


def load_catalogue(extension: str | Path | None = None) -> Catalogue:
    """The shipped catalogue, extended by the file `extension`; raises CatalogueError with every mistake."""
    catalogue = _extend(Catalogue(signals={}, engines={}), parse(_SHIPPED))
    return catalogue if extension is None else _extend(catalogue, parse(Path(extension)))


def _extend(base: Catalogue, file: CatalogueFile) -> Catalogue:
    """`base` with the settings of `file` instead of its own, and with the candidates of `file` before its
    own.
    """
    signals = dict(base.signals)
    for name, spec in file.signals.items():
        low, high = spec.range
        optional = spec.optional
        signals[name] = Signal(
            name=name, unit=spec.unit, low=low, high=high, across=spec.across, optional=optional
        )
    mistakes: list[str] = []
    engines = dict(base.engines)
    for name in file.engines:
        engines[name] = _engine(base.engine(name), name, file, signals, mistakes)
    if mistakes:
        raise CatalogueError("\n".join(mistakes))
    return Catalogue(signals=signals, engines=engines)


def _engine(
    base: Engine, name: str, file: CatalogueFile, signals: Mapping[str, Signal], mistakes: list[str]
) -> Engine:
    spec = file.engines[name]
    merged = dict(base.signals)
    for signal, metrics in spec.signals.items():
        own = []
        for index, metric in enumerate(metrics):
            wanted = signals[signal].unit
            measured = "per_s" if metric.kind == "counter" and metric.unit == "count" else metric.unit
            scale = _CONVERSIONS.get((measured, wanted))
            if scale is None:
                where = file.where("engines", name, "signals", signal, index, "unit")
                mistakes.append(
                    f"{where}: {metric.metric} is in {metric.unit}, which does not convert to {wanted}"
                )
                continue
            own.append(
                Candidate(
                    metric=metric.metric,
                    kind=Kind(metric.kind),
                    scale=scale,
                    within=metric.within,
                    across=metric.across,
                    where=dict(metric.where),
                    of=tuple(metric.of),
                    minus=tuple(metric.minus),
                    recorded=metric.recorded,
                )
            )
        kept = tuple(old for old in merged.get(signal, ()) if old.metric not in {new.metric for new in own})
        merged[signal] = (*own, *kept)
    return replace(
        base,
        name=name,
        model_labels=_or(spec.model_labels, base.model_labels),
        version_labels=_or(spec.version_labels, base.version_labels),
        replica_labels=_or(spec.replica_labels, base.replica_labels),
        signals=merged,
    )


def _or(own: list[str] | None, base: tuple[str, ...]) -> tuple[str, ...]:
    return base if own is None else tuple(own)
