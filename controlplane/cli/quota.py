"""`tidegate quota show | grant | reset`: the LLM-token quotas of a running control plane."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from controlplane.cli.admin_client import DEFAULT_URL, AdminClient
from controlplane.cli.options import AdminUrl, TokenFile, answered, read_token

quota = typer.Typer(help="Show and adjust LLM-token quotas.", no_args_is_help=True)

Tenant = Annotated[str, typer.Option(help="The tenant's id.")]
ModelVersion = Annotated[str, typer.Option(help="MODEL:VERSION.")]
Reason = Annotated[str, typer.Option(help="Why; kept with the changes.")]


class Period(StrEnum):
    """A calendar period."""

    DAILY = "daily"
    MONTHLY = "monthly"


@quota.command()
def show(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    model_version: Annotated[str | None, typer.Option(help="Only this MODEL:VERSION.")] = None,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Limits, usage and what is left, in the windows of now."""
    with answered():
        document = AdminClient(admin).get("/v1/quotas", tenant=tenant, model_version=model_version)
    if document["degraded"]:
        typer.echo(f"The store is away ({document['reason']}): usage is not known.", err=True)
    _print(document["quotas"])


@quota.command()
def grant(
    tokens: Annotated[int, typer.Argument(help="LLM tokens on top; below 0 takes away (after --).")],
    tenant: Tenant,
    model_version: ModelVersion,
    period: Annotated[Period, typer.Option(help="Which quota.")] = Period.DAILY,
    reason: Reason = "",
    admin: AdminUrl = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Add tokens to the current window of a quota; the next window has its usual limit again."""
    body = _body("grant", tenant, model_version, period, reason) | {"tokens": tokens}
    _adjust(body, admin, token_file)


@quota.command()
def reset(
    tenant: Tenant,
    model_version: ModelVersion,
    period: Annotated[Period, typer.Option(help="Which quota.")] = Period.DAILY,
    reason: Reason = "",
    admin: AdminUrl = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Forget what was used in the current window; requests in flight stay reserved."""
    _adjust(_body("reset", tenant, model_version, period, reason), admin, token_file)


def _body(action: str, tenant: str, model_version: str, period: Period, reason: str) -> dict[str, Any]:
    return {
        "action": action,
        "tenant": tenant,
        "model_version": model_version,
        "period": str(period),
        "reason": reason,
    }


def _adjust(body: dict[str, Any], admin: str, token_file: TokenFile) -> None:
    client = AdminClient(admin, token=read_token(token_file))
    with answered():
        _print(client.post("/v1/quotas", body)["quotas"])


def _print(rows: list[dict[str, Any]]) -> None:
    if not rows:
        typer.echo("no such quota")
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("tenant")
    table.add_column("model version")
    table.add_column("window")
    for name in ("limit", "used", "reserved", "left"):
        table.add_column(name, justify="right")
    table.add_column("ends (UTC)")
    for row in rows:
        table.add_row(*_cells(row))
    Console().print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    limit = row["limit_tokens"] + (row["granted_tokens"] or 0)
    ends = row["ends_at"]
    return [
        row["tenant"],
        row["model_version"],
        row["window"] or row["period"],
        *(
            _number(value)
            for value in (limit, *(row[f"{n}_tokens"] for n in ("used", "reserved", "remaining")))
        ),
        datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%d %H:%M") if ends else "",
    ]


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
