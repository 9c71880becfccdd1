"""`tidegate top` and `tidegate xds`: a running control plane as tables, live or once."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from controlplane.cli.admin_client import DEFAULT_URL, AdminClient, Refused, Unreachable
from controlplane.cli.options import AdminUrl, answered
from controlplane.cli.rows import gateway_rows, limit_rows, pool_reasons, pool_rows
from controlplane.cli.table import PoolRow, gateways_table, limits_table, pools_table, reasons_below

KEYS_AT_MOST = 2000
SHORT_BELOW_COLUMNS = 110
MIN_INTERVAL_S = 0.2


def top(
    admin: AdminUrl = DEFAULT_URL,
    once: Annotated[bool, typer.Option("--once", help="Print the tables once and leave.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=MIN_INTERVAL_S)] = 1.0,
    tenant: Annotated[str, typer.Option(help="Only this tenant.")] = "",
    model_version: Annotated[str, typer.Option(help="Only this MODEL or MODEL:VERSION.")] = "",
    rows: Annotated[int, typer.Option(help="Lines of limits at most; 0: as many as fit.", min=0)] = 0,
) -> None:
    """Show limits, model versions and gateways of a running control plane."""
    client, console = AdminClient(admin), Console()
    only = {"tenant": tenant, "model_version": model_version}
    if once:
        with answered():
            console.print(screen(client, console.width, rows_at_most=rows or KEYS_AT_MOST, **only))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                height = rows or max(5, console.height // 2)
                live.update(_screen_or_error(client, console.width, height, only), refresh=True)
                time.sleep(interval)
        except KeyboardInterrupt:
            return


def _screen_or_error(client: AdminClient, width: int, rows: int, only: dict[str, str]) -> RenderableType:
    """A live table outlives a control plane that restarts."""
    try:
        return screen(client, width, rows_at_most=rows, **only)
    except (Unreachable, Refused) as error:
        return Text(str(error), style="red")


def screen(
    client: AdminClient, width: int, *, rows_at_most: int, tenant: str = "", model_version: str = ""
) -> RenderableType:
    """Everything at one moment; raises Unreachable or Refused."""
    decisions = client.get("/v1/decisions", tenant=tenant, model_version=model_version, limit=KEYS_AT_MOST)
    limits = limit_rows(decisions, short=width < SHORT_BELOW_COLUMNS)
    hidden = max(0, len(limits) - rows_at_most)
    below = _hidden(hidden, decisions["total"] - len(decisions["keys"]))
    return Group(
        _headline(client.url, decisions),
        *_pools(pool_rows(decisions, _signals(client)), wide=width >= SHORT_BELOW_COLUMNS),
        Text(),
        limits_table(limits[:rows_at_most], title="limits (requests/s)", pool_why=pool_reasons(decisions)),
        *([Text(below, style="dim")] if below else []),
        Text(),
        gateways_table(gateway_rows(client.get("/v1/xds")), title="gateways"),
    )


def _pools(rows: list[PoolRow], *, wide: bool) -> list[RenderableType]:
    table = pools_table(rows, title="model versions", why=wide)
    return [table] if wide else [table, *reasons_below(rows)]


def _signals(client: AdminClient) -> dict[str, Any] | None:
    try:
        return client.get("/v1/signals")
    except Refused:
        return None  # nothing measured yet


def _headline(url: str, decisions: dict[str, Any]) -> Text:
    line = Text.assemble(("Tidegate ", "bold"), (url, "dim"), f"  mode {decisions['mode']}")
    if decisions["mode"] == "observe":
        line.append("  nothing is enforced", style="yellow")
    if decisions["frozen"]:
        line.append("  FROZEN", style="cyan bold")
    return line.append(f"  gateways {decisions['gateways']}\n")


def _hidden(rows: int, keys: int) -> str:
    parts = [f"{rows} more lines"] if rows else []
    parts += [f"{keys} more keys (use --tenant or --model-version)"] if keys else []
    return "... " + ", ".join(parts) if parts else ""


def xds(admin: AdminUrl = DEFAULT_URL) -> None:
    """Show which gateways are connected, what they accepted, and what they rejected."""
    with answered():
        document = AdminClient(admin).get("/v1/xds")
    console = Console()
    published = ", ".join(f"{name} {count}" for name, count in document["published"].items())
    console.print(f"published: {published or 'nothing yet'}\n", highlight=False)
    console.print(gateways_table(gateway_rows(document), title=f"gateways: {len(document['gateways'])}"))
    for entry in document["quarantined"]:
        console.print(
            f"\nquarantined: {entry['type']} {entry['name']} (from {entry['origin'] or 'generated'}),"
            f" rejected by {entry['node']}:\n  {entry['reason']}",
            style="red",
            markup=False,
            highlight=False,
        )
