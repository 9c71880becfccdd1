"""The hand-written subset of the discovery messages is byte for byte what the official messages are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.service.discovery import v3 as official
from envoy_data_plane.google.protobuf import Any
from envoy_data_plane.google.rpc import Status

from controlplane.model.resource import ENDPOINT, Resource
from controlplane.xds import delta, sotw
from controlplane.xds.exchange import ProtocolError, Request, Response

ROOT = Path(__file__).resolve().parents[2]

A = Resource.of("a", bytes(ClusterLoadAssignment(cluster_name="a")))
B = Resource.of("ü", bytes(ClusterLoadAssignment(cluster_name="ü" * 200)))
RESPONSE = Response(type_url=ENDPOINT, nonce="7", version="v1", resources=(A, B), removed=("c", "d"))


def packed(resource: Resource) -> Any:
    return Any(type_url=ENDPOINT, value=resource.body)


def test_a_delta_response_reads_as_the_official_message_and_writes_the_same_bytes() -> None:
    written = delta.body(RESPONSE) + delta.nonce(RESPONSE)
    expected = official.DeltaDiscoveryResponse(
        system_version_info="v1",
        resources=[official.Resource(name=r.name, version=r.version, resource=packed(r)) for r in (A, B)],
        type_url=ENDPOINT,
        removed_resources=["c", "d"],
        nonce="7",
    )
    assert official.DeltaDiscoveryResponse.parse(written) == expected
    assert sorted(written) == sorted(bytes(expected))  # the nonce goes last, so that the rest can be shared


def test_a_sotw_response_reads_as_the_official_message_and_writes_the_same_bytes() -> None:
    written = sotw.body(RESPONSE) + sotw.nonce(RESPONSE)
    expected = official.DiscoveryResponse(
        version_info="v1", resources=[packed(A), packed(B)], type_url=ENDPOINT, nonce="7"
    )
    assert written == bytes(expected)


def test_a_response_without_resources_is_official_too() -> None:
    empty = Response(type_url=ENDPOINT, nonce="1", version="v")
    written = delta.body(empty) + delta.nonce(empty)
    assert written == bytes(
        official.DeltaDiscoveryResponse(system_version_info="v", type_url=ENDPOINT, nonce="1")
    )


@pytest.mark.parametrize("error", [None, "", "salt"])
def test_an_official_delta_request_is_understood(error: str | None) -> None:
    message = official.DeltaDiscoveryRequest(
        node=Node(id="gw-1", cluster="edge", user_agent_name="envoy"),
        type_url=ENDPOINT,
        resource_names_subscribe=["a", "*"],
        resource_names_unsubscribe=["b"],
        initial_resource_versions={"a": "1"},
        response_nonce="7",
        error_detail=None if error is None else Status(code=3, message=error),
    )
    assert delta.read(bytes(message)) == Request(
        type_url=ENDPOINT,
        node_id="gw-1",
        nonce="7",
        error=error,
        subscribe=("a", "*"),
        unsubscribe=("b",),
        initial_versions={"a": "1"},
    )


@pytest.mark.parametrize("error", [None, "", "salt"])
def test_an_official_sotw_request_is_understood(error: str | None) -> None:
    message = official.DiscoveryRequest(
        version_info="v1",
        node=Node(id="gw-1"),
        resource_names=["a"],
        type_url=ENDPOINT,
        response_nonce="7",
        error_detail=None if error is None else Status(code=3, message=error),
    )
    assert sotw.read(bytes(message)) == Request(
        type_url=ENDPOINT, node_id="gw-1", nonce="7", error=error, names=("a",), version="v1"
    )


@pytest.mark.parametrize("wire", [delta, sotw], ids=["delta", "sotw"])
@pytest.mark.parametrize("junk", [b"\xff", b"\x0a\xff", b"\x12\x02\xff\xff"])
def test_what_is_no_request_is_a_protocol_error(wire: object, junk: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a"):
        wire.read(junk)  # type: ignore[attr-defined]


def test_the_committed_modules_are_what_the_protos_compile_to() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "tools" / "proto", "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
