"""An Envoy and its control plane show each other certificates."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from field import Field
from policies import decision

from controlplane.serve.ads import TlsFiles as ServerTls
from controlplane.xds.bootstrap import TlsFiles

pytestmark = pytest.mark.envoy

_NOW = datetime.datetime.now(datetime.UTC)


class _Authority:
    """A CA, and the certificates it signs for 127.0.0.1."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca = folder / f"{name}.pem"
        certificate = self._signed(self._subject, self._key.public_key(), is_ca=True)
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """(certificate, key) files of `name`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key.public_key(), is_ca=False)
        files = (self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key")
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_ca: bool) -> x509.Certificate:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - datetime.timedelta(minutes=5))
            .not_valid_after(_NOW + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self._key, hashes.SHA256())
        )


@pytest.mark.parametrize("trusted", [True, False], ids=["known certificate", "another authority's"])
async def test_only_an_envoy_with_a_known_certificate_is_served(
    field_parts: Field, tmp_path: Path, trusted: bool
) -> None:
    field = field_parts
    authority, stranger = _Authority(tmp_path, "ours"), _Authority(tmp_path, "theirs")
    cert, key = authority.issue("server")
    await field.serve(ServerTls(cert=cert, key=key, ca=authority.ca))
    policy = field.policy()
    await field.publish(policy, decision(policy, 10.0))
    cert, key = (authority if trusted else stranger).issue("gw0")
    files = TlsFiles(cert=str(cert), key=str(key), ca=str(authority.ca))
    envoy = await field.add_envoy(wait=False, tls=files)
    if trusted:
        await field.until_listening()
        client = await field.client()
        assert (await client.send("acme")).status == 200
    else:
        while await envoy.stat("cluster.tidegate_xds.upstream_cx_total") == 0:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert await envoy.stat("cluster_manager.cds.update_success") == 0
        assert await envoy.stat("listener_manager.total_listeners_active") == 0
        assert not (await envoy.admin("/ready")).startswith("LIVE")
