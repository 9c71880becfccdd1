"""The Prometheus text format, 0.0.4: families and samples in, text out.

`prometheus_client` renders the same text, but from objects that take a lock for every observation; a
simulated pod observes a value per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.sim.stats import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family: gauges and counters carry `samples`, histograms `histogram` with `labels`."""

    name: str
    kind: str  # gauge | counter | histogram
    help: str
    samples: tuple[tuple[Labels, float | int], ...] = ()
    histogram: Histogram | None = None
    labels: Labels = ()


def text(
    families: Iterable[Family], *, hide: tuple[str, ...] = (), rename: Mapping[str, str] | None = None
) -> str:
    """The exposition of `families`, without those in `hide` and with the names in `rename` exchanged."""
    lines: list[str] = []
    for family in families:
        if family.name not in hide and (family.samples or family.histogram is not None):
            lines += _lines(family, (rename or {}).get(family.name, family.name))
    return "\n".join([*lines, ""])


def _lines(family: Family, name: str) -> list[str]:
    head = [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}"]
    if family.histogram is not None:
        return head + _histogram_lines(name, family.histogram, family.labels)
    return head + [f"{name}{_label_text(labels)} {_number(value)}" for labels, value in family.samples]


def _histogram_lines(name: str, histogram: Histogram, labels: Labels) -> list[str]:
    lines = []
    below = 0
    bounds = [*(repr(bound) for bound in histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        below += count
        lines.append(f"{name}_bucket{_label_text((*labels, ('le', bound)))} {float(below)}")
    suffix = _label_text(labels)
    return [*lines, f"{name}_count{suffix} {float(below)}", f"{name}_sum{suffix} {histogram.total!r}"]


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(labels)) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float | int) -> str:
    """Integers stay integers: DCGM's blank value has more digits than a float keeps."""
    return str(value) if isinstance(value, int) else repr(value).replace("nan", "NaN").replace("inf", "Inf")
