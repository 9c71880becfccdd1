"""Rows of numbers in, rich tables out. `tidegate top` and the demo show the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

_STATE_STYLES = {
    "live": "green",
    "held": "yellow",
    "decaying": "yellow",
    "contract": "yellow",
    "frozen": "cyan",
    "uninformative": "yellow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """One tenant on one model version. Rates are requests/s over the whole fleet; None: not known."""

    model_version: str
    tenant: str
    offered_per_s: float | None
    admitted_per_s: float | None
    limited_per_s: float | None
    rate_per_s: float | None
    burst_requests: float | None
    why: str
    would_limit: bool = False  # observe mode: `limited_per_s` counts what was let through


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """One model version and how its rate came about."""

    model_version: str
    state: str
    utilisation_percent: float | None
    factor: float | None
    rate_per_s: float | None
    age_s: float | None  # of the signal that drives the rate
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRow:
    """One connected Envoy and what it accepted."""

    node: str
    address: str
    protocol: str
    settled: bool
    waiting: int
    refused: int
    last_nack: str


def limits_table(
    rows: Sequence[LimitRow], *, title: str | None = None, pool_why: Mapping[str, str] | None = None
) -> Table:
    """Per model version, and under it per tenant: offered, admitted, limited, rate, burst, why.

    The line of a model version sums its tenants; `pool_why` says how its rate came about.
    """
    table = _table(title)
    names = [row.model_version for row in rows] + [f"  {row.tenant}" for row in rows]
    _add_name(table, "model version / tenant", names, at_most=24)
    limited = "would lim" if rows and all(row.would_limit for row in rows) else "limited"
    for name in ("offered", "admitted", limited, "rate/s", "burst"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    table.add_column("why", overflow="ellipsis", no_wrap=True, ratio=1)
    for model_version, group in groupby(rows, key=lambda row: row.model_version):
        tenants = tuple(group)
        total = _total(model_version, tenants, (pool_why or {}).get(model_version, ""))
        table.add_row(*_limit_cells(model_version, total), style="bold")
        for row in tenants:
            table.add_row(*_limit_cells(f"  {row.tenant}", row))
    return table


def _total(model_version: str, rows: Sequence[LimitRow], why: str) -> LimitRow:
    return LimitRow(
        model_version=model_version,
        tenant="",
        offered_per_s=sum_known(row.offered_per_s for row in rows),
        admitted_per_s=sum_known(row.admitted_per_s for row in rows),
        limited_per_s=sum_known(row.limited_per_s for row in rows),
        rate_per_s=sum_known(row.rate_per_s for row in rows),
        burst_requests=sum_known(row.burst_requests for row in rows),
        why=why,
    )


def _limit_cells(name: str, row: LimitRow) -> tuple[Text, ...]:
    refused = (row.limited_per_s or 0.0) >= 0.05
    return (
        Text(name),
        Text(rate(row.offered_per_s)),
        Text(rate(row.admitted_per_s)),
        Text(rate(row.limited_per_s), style="red" if refused else "dim"),
        Text(rate(row.rate_per_s)),
        Text(rate(row.burst_requests)),
        Text(row.why, style="dim"),
    )


def sum_known(values: Iterable[float | None]) -> float | None:
    """The sum; not known as soon as one is not."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def pools_table(rows: Sequence[PoolRow], *, title: str | None = None, why: bool = True) -> Table:
    """Per model version: state, utilisation, factor, rate, age of its signal, and why unless left out."""
    table = _table(title)
    _add_name(table, "model version", [row.model_version for row in rows], at_most=22 if why else 36)
    table.add_column("state", no_wrap=True, min_width=8)
    for name in ("util %", "factor", "rate/s", "age"):
        table.add_column(name, justify="right", no_wrap=True, min_width=5)
    table.add_column("why" if why else "", ratio=1)
    for row in rows:
        table.add_row(
            Text(row.model_version),
            Text(row.state, style=_STATE_STYLES.get(row.state, "")),
            rate(row.utilisation_percent),
            _plain(row.factor, 3),
            Text(rate(row.rate_per_s), style="bold"),
            age(row.age_s),
            Text(row.why if why else "", style="dim"),
        )
    return table


def reasons_below(rows: Sequence[PoolRow]) -> list[Text]:
    """Why the rates of model versions are what they are, each reason once: for tables without that column."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.why, []).append(row.model_version)
    return [Text(f"{', '.join(given)}: {why}", style="dim") for why, given in names.items()]


def gateways_table(rows: Sequence[GatewayRow], *, title: str | None = None) -> Table:
    """Per gateway: whether it has all that is published, and what it rejected last."""
    table = _table(title)
    _add_name(table, "gateway", [row.node for row in rows], at_most=20)
    _add_name(table, "address", [row.address for row in rows], at_most=18)
    table.add_column("xds", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("refused", justify="right", no_wrap=True)
    table.add_column("last NACK", ratio=1)
    for row in rows:
        state = (
            Text("ACKed", style="green") if row.settled else Text(f"waits for {row.waiting}", style="yellow")
        )
        refused = Text(str(row.refused), style="red" if row.refused else "dim")
        table.add_row(
            Text(row.node), Text(row.address), row.protocol, state, refused, Text(row.last_nack, style="red")
        )
    return table


def rate(value: float | None) -> str:
    """Three significant digits at most below 100, whole numbers above; a dash for what is not known."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.0095 else f"{value:.4f}"


def age(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `5 min`; a dash when there was no sample."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _plain(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _add_name(table: Table, header: str, names: Sequence[str], *, at_most: int) -> None:
    """A column of names: as wide as they are, up to `at_most` characters."""
    width = min(at_most, max(map(len, (header, *names))))
    table.add_column(header, overflow="ellipsis", no_wrap=True, min_width=width, max_width=width)


def _table(title: str | None) -> Table:
    return Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        expand=True,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
    )
