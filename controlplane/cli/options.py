"""What commands that talk to a running control plane have in common: its address, and how they fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.admin_client import UNREACHABLE_EXIT_CODE, Refused, Unreachable

AdminUrl = Annotated[
    str, typer.Option("--admin", envvar="TIDEGATE_ADMIN", help="Address of the control plane's admin API.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(envvar="TIDEGATE_ADMIN_TOKEN_FILE", help="File with the token of admin.token_file."),
]


@contextmanager
def answered() -> Iterator[None]:
    """Exit 2 when no control plane answers, 1 when it refuses, each with a sentence on stderr."""
    try:
        yield
    except Unreachable as error:
        typer.echo(f"{error}\nIs it running (tidegate serve)? Give its address with --admin URL.", err=True)
        raise typer.Exit(UNREACHABLE_EXIT_CODE) from None
    except Refused as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def read_token(path: Path | None) -> str | None:
    """The token in `path`; exits 1 when the file cannot be read."""
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        typer.echo(f"{path}: {error}", err=True)
        raise typer.Exit(1) from None
