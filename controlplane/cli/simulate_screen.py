"""What `tidegate simulate` prints: tenants, rates over time, runs beside each other, criteria. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.cli.table import rate
from controlplane.sim.des.chart import clock
from controlplane.sim.des.figures import Line
from controlplane.sim.des.study import Run, Study
from controlplane.sim.des.summary import summaries

_MOMENTS = 10  # lines of a table over time


def screen(study: Study, shown: Sequence[Run], others: Sequence[Run]) -> RenderableType:
    """All tables of a study."""
    runs = [*shown, *others]
    parts: list[RenderableType] = [Text(study.platform.scenario.title, style="bold cyan")]
    parts += [Text(f"note: {note}", style="yellow") for note in study.notes()]
    for run in shown:
        parts += [Text(), _tenants(run)]
        parts += [part for line in run.lines for part in (Text(), _over_time(run, line))]
    if len(runs) > 1:
        parts += [part for pool in study.platform.pods for part in (Text(), _runs(runs, pool))]
    return Group(*parts, Text(), *_criteria(runs))


def _tenants(run: Run) -> Table:
    table = _table(f"{run.name}: tenants (requests; TTFT in s)", "model version / tenant")
    forbidden = any(row.forbidden for row in run.rows)
    names = ("offered", "admitted", "429", "lost", "p50", "p99", "good %")
    _add_numbers(table, (*names[:3], "403", *names[3:]) if forbidden else names)
    last = ""
    for row in run.rows:
        if row.model_version != last:
            table.add_row(Text(row.model_version, style="bold"))
            last = row.model_version
        refused = f"({row.would_limit})" if row.would_limit else str(row.limited)
        table.add_row(
            Text(f"  {row.tenant}"),
            *(str(row.offered), str(row.admitted), refused),
            *([str(row.forbidden)] if forbidden else []),
            str(row.gave_up + row.failed),
            *(_number(row.ttft_p50_s), _number(row.ttft_p99_s), _percent(row.good_ratio)),
        )
    return table


def _over_time(run: Run, line: Line) -> Table:
    """About ten moments: each row is the mean of what lies between it and the next one."""
    table = _table(f"{run.name}: {line.model_version} over time (requests/s)", "from")
    _add_numbers(table, ("offered", "admitted", "429", "rate/s", "factor", "GPU %", "KV %", "p99 s"))
    size = max(1, -(-len(line.times_s) // _MOMENTS))
    for start in range(0, len(line.times_s), size):
        part = slice(start, start + size)
        worst = [value for value in line.ttft_p99_s[part] if value is not None]
        table.add_row(
            clock(start * line.bin_s),
            *(rate(_mean(v[part])) for v in (line.offered_per_s, line.admitted_per_s, line.limited_per_s)),
            rate(_mean(line.rate_per_s[part])),
            _number(_mean(line.factor[part])),
            _percent(_mean(line.gpu_util_ratio[part])),
            _percent(_mean(line.kv_usage_ratio[part])),
            _number(max(worst, default=None)),
        )
    return table


def _runs(runs: Sequence[Run], pool: str) -> Table:
    title = f"{pool}: side by side (good: work within objectives / possible)"
    table = _table(title, "run")
    _add_numbers(table, ("admitted", "429", "lost", "p50", "p99", "good %", "after %", "cv"))
    for line in summaries(runs, pool):
        table.add_row(
            Text(line.run),
            *(str(n) for n in (line.admitted, line.limited, line.gave_up + line.failed)),
            *(_number(line.ttft_p50_s), _number(line.ttft_p99_s)),
            *(_percent(line.served_ratio), _percent(line.after_event_ratio), _number(line.cv)),
        )
    return table


def _criteria(runs: Sequence[Run]) -> list[Text]:
    """One line when everything holds, else what does not."""
    failed = [(run, criterion) for run in runs for criterion in run.criteria if not criterion.holds]
    if not failed:
        names = ", ".join(criterion.id for criterion in runs[0].criteria)
        return [Text(f"the run adds up: {names}", style="green")]
    return [
        Text(f"FAIL {run.name}: {c.id} must be {c.must}, is {c.measured} {c.unit}", style="bold red")
        for run, c in failed
    ]


def _table(title: str, first: str) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
    )
    table.add_column(first, overflow="ellipsis", no_wrap=True, max_width=24)
    return table


def _add_numbers(table: Table, names: Sequence[str]) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, min_width=max(5, len(name)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.1f}"
