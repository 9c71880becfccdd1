"""What the demo shows on a terminal: the live table, the verdict, and lines to try. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.cli.rows import limit_rows, pool_reasons
from controlplane.cli.table import limits_table
from controlplane.demo.run import Stage
from controlplane.demo.world import MODEL, PATH, REAL_MODEL, REAL_VERSION, ROUTE, TENANTS, VERSIONS
from controlplane.report import Criterion, Report

SHORT_BELOW_COLUMNS = 110


def screen(say: str, decision: Mapping[str, Any] | None, width: int) -> RenderableType:
    """What happens now, and the limits of the newest `/v1/decisions`, for `width` columns."""
    headline = Text.assemble((say, "bold cyan"), ("" if decision is None else "  (requests/s)", "dim"))
    if decision is None:
        return headline
    rows = limit_rows(decision, short=width < SHORT_BELOW_COLUMNS)
    return Group(headline, limits_table(rows, pool_why=pool_reasons(decision)))


def verdict(envoy_version: str, report: Report) -> RenderableType:
    """Every criterion on a line, then what follows from them."""
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
        pad_edge=False,
        title=f"verdict (Envoy {envoy_version})",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("", min_width=3)
    for name in ("criterion", "must", "measured"):
        table.add_column(name, overflow="fold")
    for criterion in report.criteria:
        mark = Text("ok", style="green") if criterion.holds else Text("FAIL", style="bold red")
        table.add_row(mark, criterion.id, criterion.must, _measured(criterion))
    return Group(Text(), table, *_failed_keys(report), _conclusion(report))


def _measured(criterion: Criterion) -> str:
    measured = criterion.measured
    if measured is None:
        return "not measured"
    return f"{measured:g} {criterion.unit}" if isinstance(measured, float) else f"{measured} {criterion.unit}"


def _failed_keys(report: Report) -> list[Text]:
    """The keys that were not limited as they should have been: what to look at first."""
    return [
        Text(
            f"{row['phase']}: {row['key']} admitted {row['enforced_per_s']:.2f}/s"
            f" instead of {row['expected_per_s']:.2f}/s",
            style="red",
        )
        for row in report.details.get("phases", ())
        if not row["holds"]
    ]


def _conclusion(report: Report) -> Text:
    if report.passed:
        return Text("PASS: everything held", style="bold green")
    failed = [criterion.id for criterion in report.criteria if not criterion.holds]
    return Text(f"FAIL: {', '.join(failed)}", style="bold red")


def answer(report: Report) -> RenderableType:
    """What the real model said, when it was asked."""
    real = report.details.get("real_model")
    if not real:
        return Group()
    told = real["text"].strip() or "(nothing)"
    return Text(f"{REAL_MODEL} was asked: {real['question']} It said: {told}", style="italic")


def things_to_try(stage: Stage, tidegate: str) -> list[str]:
    """Lines to paste into another terminal, in the folder the demo was started in."""
    key, pool = TENANTS[0].api_key, f"{MODEL}:{VERSIONS[0]}"
    model = f"{REAL_MODEL}:{REAL_VERSION}" if stage.real_model else pool
    return [
        "",
        "The demo stays up; end it with Ctrl-C. A streamed answer:",
        f"  curl -N {stage.gateway_url}{PATH} \\",
        f"    -H 'authorization: Bearer {key}' \\",
        "    -H 'content-type: application/json' \\",
        f'    -d \'{{"model": "{model}", "stream": true,',
        '         "messages": [{"role": "user", "content": "What is the tide?"}]}\'',
        "Without a key, a 401:",
        f"  curl -i {stage.gateway_url}{PATH} -d '{{}}'",
        "What is in force, and why:",
        f"  export TIDEGATE_ADMIN={stage.admin_url}",
        f"  {tidegate} top",
        f"  {tidegate} explain {TENANTS[0].id} {ROUTE} {pool}",
        "  curl $TIDEGATE_ADMIN/v1/decisions",
        f"Its configuration, reloaded when you edit it: {stage.directory}",
    ]
