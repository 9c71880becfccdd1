"""The command `tidegate`. One file for each group of commands; each imports what it needs when it is loaded."""

from __future__ import annotations

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


def _register() -> None:
    from controlplane.cli.bootstrap import bootstrap
    from controlplane.cli.check import check, schema
    from controlplane.cli.demo import demo
    from controlplane.cli.explain import explain
    from controlplane.cli.serve import serve
    from controlplane.cli.signals import signals
    from controlplane.cli.switch import freeze, mode
    from controlplane.cli.top import top, xds

    for command in (demo, serve, bootstrap, check, schema, signals, top, explain, xds, freeze, mode):
        app.command()(command)


def main() -> None:
    """The entry point of the command."""
    _register()
    app()
