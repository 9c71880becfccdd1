"""`tidegate serve`: a control plane for Envoys that anybody started."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer


def serve(
    config: Annotated[Path, typer.Option(metavar="DIR", help="Directory with tidegate.yaml and tenants/.")],
    admin_port: Annotated[int | None, typer.Option(help="Above admin.port of the configuration.")] = None,
    xds_port: Annotated[int | None, typer.Option(help="Above xds.port of the configuration.")] = None,
    policy_port: Annotated[int | None, typer.Option(help="Above policy.port of the configuration.")] = None,
) -> None:
    """Run the control plane: read signals, decide limits, push them to every connected Envoy."""
    leave_when_told()
    from controlplane.app.run import ConfigRefused, Ports, Sockets
    from controlplane.app.run import serve as run

    def on_ready(sockets: Sockets) -> None:
        quotas = f", quotas on port {sockets.policy_port}" if sockets.policy_port else ""
        typer.echo(f"tidegate: admin API {sockets.admin_url}, xDS {sockets.xds_address}{quotas}", err=True)

    try:
        ports = Ports(admin_port=admin_port, xds_port=xds_port, policy_port=policy_port)
        asyncio.run(run(config, ports, on_ready=on_ready))
    except ConfigRefused as refused:
        typer.echo(str(refused), err=True)
        typer.echo(
            f"{config}: no usable configuration; tidegate check {config} lists every problem", err=True
        )
        raise typer.Exit(1) from None
    except (OSError, RuntimeError) as error:
        typer.echo(f"tidegate serve: {error}", err=True)
        raise typer.Exit(1) from None


def leave_when_told() -> None:
    """SIGTERM and SIGINT end this process with status 0, also before there is an event loop to stop."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)
