"""`tidegate freeze` and `tidegate mode`: the two switches of a running control plane."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from controlplane.cli.admin_client import DEFAULT_URL, AdminClient
from controlplane.cli.options import AdminUrl, TokenFile, answered, read_token
from controlplane.model.policy import Mode

Reason = Annotated[str, typer.Option(help="Why; shown to others and kept with the changes.")]


class OnOff(StrEnum):
    """A switch."""

    ON = "on"
    OFF = "off"


def freeze(
    state: Annotated[OnOff, typer.Argument(metavar="on|off")],
    reason: Reason = "",
    admin: AdminUrl = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Hold every rate where it is (on), or let the control plane go on (off)."""
    _switch("/v1/freeze", {"on": state is OnOff.ON, "reason": reason}, admin, token_file)


def mode(
    wanted: Annotated[Mode, typer.Argument(metavar="enforce|observe")],
    reason: Reason = "",
    admin: AdminUrl = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Refuse what is over its limit (enforce), or only count it (observe)."""
    _switch("/v1/mode", {"mode": str(wanted), "reason": reason}, admin, token_file)


def _switch(path: str, body: dict[str, Any], admin: str, token_file: TokenFile) -> None:
    client = AdminClient(admin, token=read_token(token_file))
    with answered():
        now = client.post(path, body)
    typer.echo(f"mode {now['mode']}, {'frozen' if now['frozen'] else 'not frozen'} (set by {now['by']})")
