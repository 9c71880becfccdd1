"""`tidegate policy`: the policy service alone, in any number of processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer


def policy(
    config: Annotated[Path, typer.Option(metavar="DIR", help="Directory with tidegate.yaml and tenants/.")],
    port: Annotated[int | None, typer.Option(help="Above policy.port of the configuration.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of /metrics, /healthz and /readyz. Default: none.")
    ] = None,
    metrics_address: Annotated[str, typer.Option(help="Address of that port.")] = "127.0.0.1",
) -> None:
    """Answer gateways that ask about quotas. Several processes share a port and, in Redis, the counts."""
    from controlplane.app.alone import Listening, MetricsSocket, serve_policy
    from controlplane.app.run import ConfigRefused

    def on_ready(listening: Listening) -> None:
        quotas = f"quotas on port {listening.port}" if listening.port else "no tenant has a quota yet"
        metrics = f", metrics {listening.metrics_url}" if listening.metrics_url else ""
        typer.echo(f"tidegate policy: {quotas}{metrics}", err=True)

    metrics = None if metrics_port is None else MetricsSocket(address=metrics_address, port=metrics_port)
    try:
        asyncio.run(serve_policy(config, port=port, metrics=metrics, on_ready=on_ready))
    except ConfigRefused as refused:
        typer.echo(str(refused), err=True)
        raise typer.Exit(1) from None
    except (OSError, RuntimeError) as error:
        typer.echo(f"tidegate policy: {error}", err=True)
        raise typer.Exit(1) from None
