"""An Envoy and its control plane show each other certificates: whose count, and what a rotation changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from certificates import Authority, Pair
from field import Field
from policies import decision
from real_envoy import RealEnvoy

from controlplane.serve.ads import TlsFiles as ServerTls
from controlplane.xds.bootstrap import TlsFiles

pytestmark = pytest.mark.envoy


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return _authority(tmp_path, "ours")


def _authority(folder: Path, name: str) -> Authority:
    (folder / name).mkdir()
    return Authority(folder / name, name)


def _shown(own: Pair, authority: Authority) -> TlsFiles:
    return TlsFiles(cert=str(own.cert), key=str(own.key), ca=str(authority.ca))


async def _serve(field: Field, authority: Authority) -> Pair:
    """A control plane with certificates, and with something to serve."""
    own = authority.issue("localhost")
    await field.serve(ServerTls(cert=own.cert, key=own.key, ca=authority.ca))
    policy = field.policy()
    await field.publish(policy, decision(policy, 10.0))
    return own


async def _stays_empty(envoy: RealEnvoy) -> None:
    """It connects, and gets no configuration."""
    while await envoy.stat("cluster.tidegate_xds.upstream_cx_total") == 0:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    assert await envoy.stat("cluster_manager.cds.update_success") == 0
    assert await envoy.stat("listener_manager.total_listeners_active") == 0
    assert not (await envoy.admin("/ready")).startswith("LIVE")


async def test_an_envoy_with_its_own_certificate_is_served(field_parts: Field, authority: Authority) -> None:
    await _serve(field_parts, authority)
    await field_parts.add_envoy(tls=_shown(authority.issue("gw0"), authority))
    client = await field_parts.client()
    assert (await client.send("acme")).status == 200


@pytest.mark.parametrize("whose", ["another authority's", "another node's", "an expired one"])
async def test_an_envoy_with_another_certificate_is_not(
    field_parts: Field, authority: Authority, tmp_path: Path, whose: str
) -> None:
    await _serve(field_parts, authority)
    own = {
        "another authority's": lambda: _authority(tmp_path, "theirs").issue("gw0"),
        "another node's": lambda: authority.issue("gw9"),
        "an expired one": lambda: authority.issue("gw0", expired=True),
    }[whose]()
    await _stays_empty(await field_parts.add_envoy(wait=False, tls=_shown(own, authority)))


async def test_a_rotated_server_certificate_is_noticed_by_nobody(
    field_parts: Field, authority: Authority
) -> None:
    field = field_parts
    in_use = await _serve(field, authority)
    first = await field.add_envoy(tls=_shown(authority.issue("gw0"), authority))
    client = await field.client()
    _rotate(in_use, authority)

    policy = field.policy()
    await field.publish(policy, decision(policy, 20.0))  # on the stream that was open
    assert (await client.send("acme")).status == 200
    assert await first.stat("cluster.tidegate_xds.upstream_cx_total") == 1

    await field.add_envoy(tls=_shown(authority.issue("gw1"), authority))  # a connection that sees the new one
    await field.restart(policy, decision(policy, 20.0))  # and everybody again
    assert (await client.send("acme")).status == 200
    assert await first.stat("cluster.tidegate_xds.ssl.fail_verify_san") == 0
    assert await first.stat("cluster.tidegate_xds.ssl.fail_verify_error") == 0


def _rotate(in_use: Pair, authority: Authority) -> None:
    """Another certificate of the same authority in the same files."""
    before = in_use.cert.read_bytes()
    authority.issue("localhost")
    assert in_use.cert.read_bytes() != before
