"""`tidegate demo`: the whole product on this machine, with a live table and a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controlplane.cli.rows import limit_rows, pool_reasons
from controlplane.cli.table import limits_table
from controlplane.demo.processes import DidNotStart
from controlplane.demo.run import Progress, Stage, play, running_stage
from controlplane.demo.world import MODEL, PATH, REAL_MODEL, TENANTS, VERSIONS
from controlplane.envoy_binary import EnvoyNotFound
from controlplane.report import Report, write


def demo(
    seconds: Annotated[float, typer.Option(help="Length of the story; at least 30.", min=30, max=3600)] = 45,
    report: Annotated[Path | None, typer.Option(help="Write the verdict and all figures as JSON.")] = None,
    real_model: Annotated[
        bool, typer.Option("--real-model", help="Add a real language model (extra `real-model`).")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up afterwards, for curl.")] = False,
) -> None:
    """Start Envoy, model servers and control plane; replay a real trace; check what was enforced."""
    try:
        found = asyncio.run(_demo(seconds, real_model=real_model, keep=keep))
    except (DidNotStart, EnvoyNotFound, RuntimeError) as error:
        typer.echo(f"tidegate demo: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if report is not None:
        write(found, report)
    raise typer.Exit(found.exit_code)


async def _demo(seconds: float, *, real_model: bool, keep: bool) -> Report:
    console, progress = Console(), Progress()
    with _shown(console, progress):
        async with running_stage(progress, real_model=real_model) as stage:
            found = await play(stage, progress, seconds)
            progress.finished = True
            progress.update()
            _print_verdict(console, stage, found)
            if keep:
                _print_curls(console, stage, real_model=real_model)
                await _until_interrupted()
    return found


@contextmanager
def _shown(console: Console, progress: Progress) -> Iterator[None]:
    """The live table on a terminal; one line a phase elsewhere."""
    if not console.is_terminal:
        said: list[str] = []

        def say() -> None:
            if progress.say not in said[-1:]:
                said.append(progress.say)
                console.print(f"tidegate demo: {progress.say}")

        progress.changed = say
        yield
        return
    with Live(console=console, auto_refresh=False) as live:

        def refresh() -> None:
            if progress.finished:
                live.stop()
            else:
                live.update(_screen(console, progress), refresh=True)

        progress.changed = refresh
        yield


def _screen(console: Console, progress: Progress) -> RenderableType:
    parts: list[RenderableType] = [Text(progress.say, style="bold cyan")]
    if progress.decision is not None:
        decision = progress.decision
        parts.append(
            limits_table(limit_rows(decision, short=console.width < 110), pool_why=pool_reasons(decision))
        )
    return Group(*parts)


def _print_verdict(console: Console, stage: Stage, report: Report) -> None:
    table = Table(title=f"verdict (Envoy {stage.envoy_version})", title_justify="left", expand=False)
    for name in ("", "criterion", "must", "measured"):
        table.add_column(name, overflow="fold")
    for criterion in report.criteria:
        mark = Text("ok", style="green") if criterion.holds else Text("FAIL", style="bold red")
        measured = "not measured" if criterion.measured is None else f"{criterion.measured} {criterion.unit}"
        table.add_row(mark, criterion.id, criterion.must, measured)
    console.print(table)
    if report.passed:
        console.print("PASS: everything held", style="bold green")
    else:
        failed = [criterion.id for criterion in report.criteria if not criterion.holds]
        console.print(f"FAIL: {', '.join(failed)}", style="bold red")


def _print_curls(console: Console, stage: Stage, *, real_model: bool) -> None:
    key = TENANTS[0].api_key
    model = f"{REAL_MODEL}:135m" if real_model else f"{MODEL}:{VERSIONS[0]}"
    body = f'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'
    lines = [
        "",
        "The demo stays up; end it with Ctrl-C. Try:",
        f"  curl -N {stage.gateway_url}{PATH} -H 'authorization: Bearer {key}' \\",
        f"    -H 'content-type: application/json' -d '{body}'",
        f"  curl -i {stage.gateway_url}{PATH} -d '{{}}'          # no key: 401",
        f"  curl {stage.admin_url}/v1/decisions",
        f"  uv run tidegate top --admin {stage.admin_url}",
        f"  uv run tidegate explain {TENANTS[0].id} chat {MODEL}:{VERSIONS[0]} --admin {stage.admin_url}",
        f"  configuration to edit: {stage.directory}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


async def _until_interrupted() -> None:
    await asyncio.Event().wait()
