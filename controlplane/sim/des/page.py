"""Runs -> one self-contained HTML page: tables first, then the same charts for every model version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from controlplane.sim.des.chart import Chart, Series, figure, highest, number_text
from controlplane.sim.des.figures import Line, Row
from controlplane.sim.des.study import Run, Study
from controlplane.sim.des.summary import summaries

TENANTS_SHOWN = 7  # as lines of their own; the rest is one line

_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2128;--dim:#59636e;--line:#d9dee3;--card:#f6f8fa;
--c1:#0969da;--c2:#1a7f37;--c3:#cf222e;--c4:#8250df;--c5:#bc4c00;--c6:#0f7b8a;--c7:#9a6700;--c8:#6e7781}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--line:#30363d;--card:#161b22;
--c1:#58a6ff;--c2:#3fb950;--c3:#ff7b72;--c4:#bc8cff;--c5:#f0883e;--c6:#39c5cf;--c7:#d29922;--c8:#8b949e}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px;max-width:1240px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:19px;margin:36px 0 8px;border-bottom:1px solid var(--line)}
h3{font-size:15px;margin:16px 0 4px}p{margin:4px 0}.dim,small{color:var(--dim)}
.note{border-left:3px solid var(--c5);padding:2px 10px;margin:8px 0;background:var(--card)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;margin:8px 0;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:4px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--dim);font-weight:600}th:first-child,td:first-child,
.text td,.text th{text-align:left}
.bad{color:var(--c3)}.good{color:var(--c2)}
.grid2{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px}
@media(max-width:820px){.grid2{grid-template-columns:minmax(0,1fr)}}
figure{margin:0;padding:10px 12px;border:1px solid var(--line);border-radius:8px;background:var(--card)}
figcaption{min-height:48px}.legend{display:flex;flex-wrap:wrap;gap:0 14px;font-size:13px;color:var(--dim)}
.key i{display:inline-block;width:16px;height:0;border-top:3px solid;margin-right:5px;vertical-align:middle}
.key i.dashed{border-top-style:dashed}
svg{display:block;width:100%;height:auto}svg text{fill:var(--dim);font-size:12px}
.grid{stroke:var(--line);stroke-width:1}.event{stroke:var(--dim);stroke-width:1;stroke-dasharray:2 3}
polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}.hit{fill:transparent}
.hit:hover{fill:var(--fg);fill-opacity:.08}polyline.dashed{stroke-dasharray:6 4}
"""
_COLOURS = "".join(
    f"polyline.c{n}{{stroke:var(--c{n})}}.key i.c{n}{{border-color:var(--c{n})}}" for n in range(1, 9)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`shown` runs get charts, side by side if there are two; all get a line of the overview."""

    study: Study
    facts: Sequence[str]  # what was run, in a few words each
    shown: Sequence[Run]
    others: Sequence[Run] = ()


def page(made: Page) -> str:
    """The whole document."""
    title = f"tidegate simulate: {made.study.platform.scenario.title}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}{_COLOURS}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="dim">{escape(" · ".join(made.facts))}</p>',
        *(f'<p class="note">{escape(note)}</p>' for note in made.study.notes()),
        f'<p class="dim">{escape(_WORDS)}</p>',
        *(_pool(made, pool) for pool in made.study.platform.pods),
        "<h2>Tenants</h2>",
        *(_tenants(run, titled=len(made.shown) > 1) for run in made.shown),
        "<h2>Can this run be trusted?</h2>",
        _criteria([*made.shown, *made.others]),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text: bool = False) -> str:
    """Cells are HTML; numbers stand to the right unless it is a table of `text`."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    style = ' class="text"' if text else ""
    return (
        f'<div class="scroll"><table{style}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _overview(made: Page, pool: str) -> str:
    """Every run on a line."""
    header = (
        *("run", "offered", "admitted", "429", "gave up", "failed", "TTFT p50", "TTFT p99"),
        *("good / possible", "after the event", "cv"),
    )
    rows = [
        [
            escape(line.run),
            *(f"{n:,}" for n in (line.offered, line.admitted, line.limited, line.gave_up, line.failed)),
            _seconds(line.ttft_p50_s),
            _seconds(line.ttft_p99_s),
            _percent(line.served_ratio),
            _percent(line.after_event_ratio),
            number_text(line.cv),
        ]
        for line in summaries([*made.shown, *made.others], pool)
    ]
    return _table(header, rows)


_WORDS = (
    "Good: work (prompt + 3 x answer tokens) of requests whose first token and gap between tokens kept their "
    "objectives. Possible: the smaller of what was offered and what the pods that were up can serve. "
    "Cv: variation of the admitted rate in windows of 10 s, after the event (the dotted line). "
    "Rest the mouse on a chart for its numbers."
)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _pool(made: Page, pool: str) -> str:
    pods = made.study.platform.pods[pool]
    capacity = made.study.capacity_per_s[pool]
    served = f"{pods} pods, together about {capacity:.3g} requests/s"
    parts = [f"<h2>{escape(pool)} <small>{served}</small></h2>", _overview(made, pool)]
    columns = [(run, _charts(made.study, _line(run, pool))) for run in made.shown]
    if made.others:
        parts.append(f'<div class="grid2">{figure(_good(made, pool))}{figure(_admitted(made, pool))}</div>')
        parts.append(f"<h3>{escape(made.shown[0].name)}</h3>" if len(columns) == 1 else "")
    if len(columns) == 1:
        drawn = "".join(figure(chart) for chart in columns[0][1])
        parts.append(f'<div class="grid2">{drawn}</div>')
        return "\n".join(parts)
    parts.append('<div class="grid2">' + "".join(f"<h3>{escape(run.name)}</h3>" for run, _ in columns))
    for row in zip(*(charts for _, charts in columns), strict=True):
        top = max(chart.top or 0.0 for chart in row) or highest(row)
        parts += [figure(replace(chart, top=top)) for chart in row]
    return "\n".join([*parts, "</div>"])


def _line(run: Run, pool: str) -> Line:
    return next(line for line in run.lines if line.model_version == pool)


def _charts(study: Study, line: Line) -> list[Chart]:
    def chart(title: str, unit: str, *series: Series, top: float | None = None) -> Chart:
        return Chart(
            title=title,
            unit=unit,
            times_s=line.times_s,
            until_s=study.platform.seconds,
            series=series,
            event_s=study.platform.scenario.event_s,
            top=top,
        )

    slo_s = study.ttft_slo_s[line.model_version]
    capacity = [None if up is None else up * study.pod_capacity_per_s for up in line.pods_up]
    flat: list[float | None] = [slo_s] * len(line.times_s)
    return [
        chart(
            "Requests",
            "per second",
            Series(name="offered", values=line.offered_per_s, style="c8"),
            Series(name="admitted", values=line.admitted_per_s, style="c1"),
            Series(name="limited (429)", values=line.limited_per_s, style="c3"),
            Series(name="within objectives", values=line.good_per_s, style="c2"),
            Series(name="pods can serve", values=capacity, style="c7", dashed=True),
        ),
        chart("Admitted by tenant", "requests per second", *_by_tenant(line)),
        chart(
            "Limit of the model version",
            "requests per second",
            Series(name="rate", values=line.rate_per_s, style="c1"),
            Series(name="pods can serve", values=capacity, style="c7", dashed=True),
        ),
        chart("Factor", "of the base rate", Series(name="factor", values=line.factor, style="c4"), top=1.0),
        chart(
            "Utilisation",
            "per cent",
            Series(name="GPU counter", values=_times(line.gpu_util_ratio, 100), style="c5"),
            Series(name="KV cache", values=_times(line.kv_usage_ratio, 100), style="c6"),
            top=100.0,
        ),
        chart(
            "Time to first token",
            "seconds, by time of arrival",
            Series(name="p50", values=line.ttft_p50_s, style="c1"),
            Series(name="p99", values=line.ttft_p99_s, style="c3"),
            Series(name="objective", values=flat, style="c7", dashed=True),
        ),
    ]


def _times(values: Sequence[float | None], factor: float) -> list[float | None]:
    return [None if value is None else value * factor for value in values]


def _by_tenant(line: Line) -> list[Series]:
    """The largest tenants, each a line; all the others together."""
    order = sorted(line.tenants, key=lambda name: (-_sum(line.tenants[name]), name))
    first = order if len(order) <= TENANTS_SHOWN + 1 else order[:TENANTS_SHOWN]
    series = [
        Series(name=name, values=line.tenants[name], style=f"c{number}")
        for number, name in enumerate(first, 1)
    ]
    rest = order[len(first) :]
    if rest:
        sums: list[float | None] = [
            _sum(values) for values in zip(*(line.tenants[n] for n in rest), strict=True)
        ]
        series.append(Series(name=f"{len(rest)} others", values=sums, style="c8"))
    return series


def _sum(values: Sequence[float | None]) -> float:
    return sum(value for value in values if value is not None)


def _good(made: Page, pool: str) -> Chart:
    return _each_run(made, pool, "Within objectives, every run", lambda line: line.good_per_s)


def _admitted(made: Page, pool: str) -> Chart:
    return _each_run(made, pool, "Admitted, every run", lambda line: line.admitted_per_s)


def _each_run(made: Page, pool: str, title: str, values: Callable[[Line], list[float | None]]) -> Chart:
    styles = [*("c1", "c4")[: len(made.shown)], "c3", "c7", "c6"]
    runs = [*made.shown, *made.others]
    found = {run.name: _line(run, pool) for run in runs}
    return Chart(
        title=title,
        unit="requests per second",
        times_s=next(iter(found.values())).times_s,
        until_s=made.study.platform.seconds,
        series=[
            Series(name=name, values=values(line), style=style)
            for (name, line), style in zip(found.items(), styles, strict=False)
        ],
        event_s=made.study.platform.scenario.event_s,
    )


def _tenants(run: Run, *, titled: bool) -> str:
    header = (
        *("tenant", "model version", "offered", "admitted", "429", "403", "gave up", "failed", "TTFT p50"),
        *("TTFT p99", "within objectives", "good tokens/s"),
    )
    title = f"<h3>{escape(run.name)}</h3>" if titled else ""
    return title + _table(header, [_tenant_cells(row) for row in run.rows])


def _tenant_cells(row: Row) -> list[str]:
    return [
        escape(row.tenant),
        escape(row.model_version),
        f"{row.offered:,}",
        f"{row.admitted:,}",
        f"{row.limited:,}" if not row.would_limit else f"{row.would_limit:,} would be",
        f"{row.forbidden:,}",
        f"{row.gave_up:,}",
        f"{row.failed:,}",
        _seconds(row.ttft_p50_s),
        _seconds(row.ttft_p99_s),
        _percent(row.good_ratio),
        f"{row.good_tokens_per_s:,.0f}",
    ]


def _criteria(runs: Sequence[Run]) -> str:
    said: Mapping[bool, str] = {True: '<span class="good">ok</span>', False: '<b class="bad">FAIL</b>'}
    rows = [
        [
            escape(run.name),
            escape(c.id),
            escape(c.must),
            f"{_measured(c.measured)} {escape(c.unit)}",
            said[c.holds],
        ]
        for run in runs
        for c in run.criteria
    ]
    return _table(("run", "criterion", "must be", "measured", ""), rows, text=True)


def _measured(value: float | int | str | bool | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape(f"{value}")
