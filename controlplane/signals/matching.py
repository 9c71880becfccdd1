"""Rows of a Prometheus -> the targets of each pool. Pure.

How a series finds its pool (`signals.prometheus.match`), first rule that applies: 1. labels     its model
label is the pool's and its version label (`version`, `model_version`) the pool's version; 2. endpoints  its
`pod` (and `namespace`, where the endpoint names one) is that of an endpoint, 3. endpoints  its `instance`
is `address:port` of an endpoint or of its metrics_url; 4. labels     its model label is the pool's, and no
other version of that model is configured. `auto` tries all four, `labels` 1 and 4, `endpoints` 2 and 3. A
gateway's series name their pool themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from controlplane.model.policy import Endpoint, Pool
from controlplane.model.poolstat import pool_id
from controlplane.signals.catalogue import Engine
from controlplane.signals.text import Sample

_INTERVALS_FRESH = 2.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of the first query: its last sample."""

    name: str
    sample: Sample

    @property
    def time_s(self) -> float:
        """When it was sampled."""
        return self.sample.time_s or 0.0


@dataclass(slots=True)
class Matched:
    """The series of one pool by target, and the labels that select them."""

    targets: dict[str, list[Series]] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)


def series_of(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Series], float | None]:
    """The last sample of each row, and the typical interval between samples (s; None when no row has two)."""
    found: list[Series] = []
    gaps_s: list[float] = []
    for row in rows:
        values = row.get("values") or []
        if not values:
            continue
        labels = {str(label): str(value) for label, value in row["metric"].items()}
        name = labels.pop("__name__", "")
        time_s, value = float(values[-1][0]), float(values[-1][1])
        found.append(Series(name=name, sample=Sample(labels, value, time_s)))
        if len(values) > 1:
            gaps_s.append(time_s - float(values[-2][0]))
    return found, median(gaps_s) if gaps_s else None


def fresh_s(interval_s: float | None, lookback_s: float) -> float:
    """How old the last sample of a living target can be: two scrapes."""
    return lookback_s if interval_s is None else min(lookback_s, _INTERVALS_FRESH * interval_s)


class Matcher:
    """Finds the pool of a series. Built once per policy."""

    def __init__(self, pools: Sequence[Pool], engines: Mapping[str, Engine], match: str) -> None:
        """`engines` are those of the pools, by name; `match` is auto, labels or endpoints."""
        self._pools = {pool.id: pool for pool in pools}
        self._versions = Counter(pool.model_label or pool.model for pool in self._pools.values())
        self._engines = engines
        self._names = {name: engine_names(engine) for name, engine in engines.items()}
        self._engines_of = {
            name: ",".join(sorted(engine for engine, own in self._names.items() if name in own))
            for names in self._names.values()
            for name in names
        }
        telling = {"namespace", "pod", "instance"}
        for engine in engines.values():
            telling.update(engine.model_labels, engine.version_labels)
        self._telling = sorted(telling)
        self._by_labels = match in ("auto", "labels")
        self._by_endpoints = match in ("auto", "endpoints")
        self._pods: dict[str, list[tuple[str | None, str]]] = {}
        self._instances: dict[str, list[str]] = {}
        for pool in pools:
            for endpoint in pool.endpoints:
                if endpoint.pod:
                    self._pods.setdefault(endpoint.pod, []).append((endpoint.namespace or None, pool.id))
                for instance in instances(endpoint):
                    self._instances.setdefault(instance, []).append(pool.id)

    def match(self, series: Iterable[Series]) -> dict[str, Matched]:
        """The engines' series of every pool. A pool keeps only what its best rule found."""
        best: dict[str, tuple[int, Matched]] = {}
        known: dict[tuple[str | None, ...], list[tuple[int, str, tuple[str, ...]]]] = {}
        for each in series:
            mark = (
                self._engines_of.get(each.name),
                *(each.sample.labels.get(name) for name in self._telling),
            )
            if mark not in known:
                known[mark] = list(self._matches(each))
            for rule, pool, labels in known[mark]:
                kept = best.get(pool)
                if kept is None or rule < kept[0]:
                    kept = best[pool] = (rule, Matched())
                if rule == kept[0]:
                    kept[1].targets.setdefault(target_of(each.sample.labels), []).append(each)
                    kept[1].labels.update(labels)
        return {pool: best[pool][1] if pool in best else Matched() for pool in self._pools}

    def _matches(self, series: Series) -> Iterable[tuple[int, str, tuple[str, ...]]]:
        """(rule, pool, labels that select it) of every pool that `series` belongs to."""
        labels = series.sample.labels
        for pool in self._pools.values():
            engine = self._engines[pool.engine]
            if series.name not in self._names[engine.name]:
                continue
            found = self._rule(labels, pool, engine)
            if found is not None:
                yield found[0], pool.id, found[1]

    def _rule(
        self, labels: Mapping[str, str], pool: Pool, engine: Engine
    ) -> tuple[int, tuple[str, ...]] | None:
        model = _label(labels, engine.model_labels)
        version = _label(labels, engine.version_labels)
        named = model is not None and labels[model] == (pool.model_label or pool.model)
        own = () if model is None else (model,)
        if self._by_labels and named and version is not None and labels[version] == pool.version:
            return 1, (*own, version)
        if self._by_endpoints:
            pod, namespace = labels.get("pod", ""), labels.get("namespace", "")
            homes = [home for home, id in self._pods.get(pod, ()) if id == pool.id]
            if any(home in (None, namespace) for home in homes):
                return 2, (*own, "namespace", "pod")
            if pool.id in self._instances.get(labels.get("instance", ""), ()):
                return 3, (*own, "instance")
        if self._by_labels and named and self._only_version(pool):
            return 4, own
        return None

    def _only_version(self, pool: Pool) -> bool:
        return self._versions[pool.model_label or pool.model] == 1


def match_gateways(series: Iterable[Series], engine: Engine, pools: Sequence[Pool]) -> dict[str, Matched]:
    """The gateways' series of every pool: they carry its name."""
    found = {pool.id: Matched() for pool in pools}
    names = engine_names(engine)
    for each in series:
        label = _label(each.sample.labels, engine.model_labels)
        if label is None or each.name not in names:
            continue
        text = each.sample.labels[label]
        matched = found.get(text if ":" in text else pool_id(text) or "")
        if matched is not None:
            matched.targets.setdefault(target_of(each.sample.labels), []).append(each)
            matched.labels.add(label)
    return found


def engine_names(engine: Engine) -> frozenset[str]:
    """Every name under which a series of `engine` can come in the first query."""
    names = set(engine.sample_names)
    names.update(f"{name.removesuffix('_bucket')}_count" for name in engine.sample_names)
    return frozenset(names)


def target_of(labels: Mapping[str, str]) -> str:
    """What tells one scraped process from another: its pod, else its instance."""
    if labels.get("pod"):
        return f"{labels.get('namespace', '')}/{labels['pod']}".lstrip("/")
    return labels.get("instance", "")


def instances(endpoint: Endpoint) -> tuple[str, ...]:
    """The values of `instance` that mean this endpoint."""
    scraped = urlsplit(endpoint.metrics_url or "").netloc.rpartition("@")[2]
    return tuple(dict.fromkeys(each for each in (f"{endpoint.address}:{endpoint.port}", scraped) if each))


def _label(labels: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The first of `names` that is a non-empty label."""
    return next((name for name in names if labels.get(name)), None)
