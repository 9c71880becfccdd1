"""`tidegate explain`: why one limit is what it is, in lines a person can follow."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from controlplane.cli.admin_client import DEFAULT_URL, AdminClient
from controlplane.cli.options import AdminUrl, answered
from controlplane.cli.table import rate


def explain(
    tenant: Annotated[str, typer.Argument(metavar="TENANT")],
    route: Annotated[str, typer.Argument(metavar="ROUTE", help="Its id, or its path pattern.")],
    model_version: Annotated[
        str, typer.Argument(metavar="MODEL:VERSION", help="A bare MODEL means its default version.")
    ],
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Say why a tenant has the limit it has, from the signal down to the bucket."""
    with answered():
        document = AdminClient(admin).get(
            "/v1/explain", tenant=tenant, route=route, model_version=model_version
        )
    typer.echo("\n".join(explained(document, _columns())))


def _columns() -> int | None:
    """The width of the terminal; None when there is none, so that a line stays a line for grep."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def explained(document: Mapping[str, Any], columns: int | None = None) -> list[str]:
    """The document of `/v1/explain` as lines, reasons wrapped to `columns`."""
    key = document["key"]
    return [
        f"{key['tenant']} on {key['route']} with {key['model_version']}:"
        f" {rate(key['rate_per_s'])} requests/s, {rate(key['burst_requests'])} at once",
        "",
        *_aligned(document["lines"], columns),
        *_traffic(key),
    ]


def _aligned(lines: Sequence[Mapping[str, Any]], columns: int | None) -> list[str]:
    """Label, value, reason in columns; a line without a number is a sentence behind its label."""
    width = max((len(line["label"]) for line in lines), default=0)
    value_width = max((len(_value(line)) for line in lines), default=0)
    found = []
    for line in lines:
        told = f"  {line['label']:<{width}}  "
        if line["value"] is not None or line["unit"]:
            told += f"{_value(line):>{value_width}}  "
        found += _wrapped(told, line["reason"], columns)
    return found


def _wrapped(told: str, reason: str, columns: int | None) -> list[str]:
    """`told` and then `reason`, broken between words so that it stays in its own column."""
    if columns is None or columns < len(told) + 20:
        return [f"{told}{reason}".rstrip()]
    pieces = textwrap.wrap(reason, columns - len(told), break_long_words=False, break_on_hyphens=False)
    indent = " " * len(told)
    return [told.rstrip()] if not pieces else [told + pieces[0], *(indent + piece for piece in pieces[1:])]


def _value(line: Mapping[str, Any]) -> str:
    value = line["value"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else str(value)
    return f"{value:.4g} {line['unit']}".strip()


def _traffic(key: Mapping[str, Any]) -> list[str]:
    if key["offered_per_s"] is None:
        return ["", "No gateway reports what is offered, admitted and limited."]
    counts = ", ".join(
        f"{name.replace('_', ' ')} {rate(key[f'{name}_per_s'])}/s"
        for name in ("offered", "admitted", "limited", "would_limit", "shed")
        if name not in ("would_limit", "shed") or key.get(f"{name}_per_s")
    )
    return ["", f"Now: {counts}"]
