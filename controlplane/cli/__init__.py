"""The command `tidegate`: one file for each group of commands, imported only when it is called."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module

import typer

from controlplane import __version__

app = typer.Typer(
    name="tidegate",
    help="Adaptive traffic control plane for LLM serving on Envoy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidegate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and leave."
    ),
) -> None:
    del version


TRY, CONFIGURE, RUN, LOOK, SWITCH = "Try it", "Configure", "Run", "Look into it", "Switch it"

COMMANDS = {
    "demo": ("demo", TRY),
    "check": ("check", CONFIGURE),
    "schema": ("check", CONFIGURE),
    "signals": ("signals", CONFIGURE),
    "simulate": ("simulate", CONFIGURE),
    "serve": ("serve", RUN),
    "policy": ("policy", RUN),
    "bootstrap": ("bootstrap", RUN),
    "top": ("top", LOOK),
    "explain": ("explain", LOOK),
    "xds": ("top", LOOK),
    "freeze": ("switch", SWITCH),
    "mode": ("switch", SWITCH),
    "quota": ("quota", SWITCH),
}
"""Command -> the file of this room that has it, and the panel of the help it is in."""


def _register(names: Iterable[str]) -> None:
    for name in names:
        file, panel = COMMANDS[name]
        found = getattr(import_module(f"controlplane.cli.{file}"), name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(found)


def main() -> None:
    """The entry point of the command."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    _register([wanted] if wanted in COMMANDS else COMMANDS)
    app()
