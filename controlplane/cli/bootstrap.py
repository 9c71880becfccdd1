"""`tidegate bootstrap`: the YAML with which anybody starts an Envoy that follows this control plane."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from controlplane.cli.yaml_text import yaml_text
from controlplane.config import load
from controlplane.model.policy import ServerPolicy
from controlplane.xds.bootstrap import Gateway, TlsFiles
from controlplane.xds.bootstrap import bootstrap as envoy_bootstrap

_ANY = {"0.0.0.0", "::"}


def bootstrap(
    config: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory with tidegate.yaml: where the control plane listens."),
    ] = None,
    xds: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The control plane, seen from Envoy.")
    ] = None,
    node_id: Annotated[
        str | None, typer.Option(help="Distinct for each Envoy; default: the host name.")
    ] = None,
    admin_address: Annotated[
        str, typer.Option(help="Where Envoy's own admin interface listens.")
    ] = "127.0.0.1",
    admin_port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0: any.")] = 9901,
    tls_cert: Annotated[Path | None, typer.Option(help="mTLS: this Envoy's certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="mTLS: its key.")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="mTLS: the CA of the control plane.")] = None,
    sotw: Annotated[bool, typer.Option("--sotw", help="State-of-the-world xDS instead of delta.")] = False,
) -> None:
    """Print an Envoy bootstrap. Start Envoy with it: envoy -c FILE."""
    server = _server(config)
    host, port = _address(xds) if xds else (server.xds_address, server.xds_port)
    tls = _tls(tls_cert, tls_key, tls_ca)
    if not xds and host in _ANY:
        _fail(f"the control plane listens on every address ({host}): say --xds HOST:PORT")
    if tls is None and server.xds_cert_file:
        _fail("this control plane wants TLS: give --tls-cert, --tls-key and --tls-ca")
    if tls is None and not _is_loopback(host):
        typer.echo(f"warning: plain text to {host}; use --tls-cert, --tls-key and --tls-ca", err=True)
    gateway = Gateway(
        node_id=node_id or socket.gethostname(),
        xds_host=host,
        xds_port=port,
        admin_address=admin_address,
        admin_port=admin_port,
        tls=tls,
        sotw=sotw,
    )
    typer.echo(yaml_text(envoy_bootstrap(gateway)), nl=False)


def _server(config: Path | None) -> ServerPolicy:
    if config is None:
        return ServerPolicy()
    policy = load(config).policy
    if policy is None:
        _fail(f"{config}: no usable configuration; tidegate check {config} lists every problem")
    return policy.server


def _address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        _fail(f"--xds {text}: expected HOST:PORT")
    return host, int(port)


def _tls(cert: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        _fail("mTLS needs all of --tls-cert, --tls-key and --tls-ca")
    return TlsFiles(cert=str(cert.absolute()), key=str(key.absolute()), ca=str(ca.absolute()))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)
