"""What a client may send, at the edge of each bound and beyond it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controlplane.model.resource import CLUSTER, ENDPOINT, Resource, Snapshot
from controlplane.pb import tidegate_discovery_pb2 as pb
from controlplane.xds import delta, limits, sotw
from controlplane.xds.exchange import ProtocolError, Request, Variant
from controlplane.xds.limits import NAMES_MAX, NODE_ID_BYTES_MAX, TEXT_BYTES_MAX, TYPES_MAX
from controlplane.xds.quarantine import NODES_KEPT, Quarantine
from controlplane.xds.session import Session


@pytest.mark.parametrize(
    ("request_with", "most"),
    [
        (lambda n: Request(type_url=CLUSTER, node_id="n" * n), NODE_ID_BYTES_MAX),
        (lambda n: Request(type_url="t" * n), TEXT_BYTES_MAX),
        (lambda n: Request(type_url=CLUSTER, nonce="n" * n), TEXT_BYTES_MAX),
        (lambda n: Request(type_url=CLUSTER, version="v" * n), TEXT_BYTES_MAX),
        (lambda n: Request(type_url=CLUSTER, names=("a" * n,)), TEXT_BYTES_MAX),
        (lambda n: Request(type_url=CLUSTER, subscribe=("ok", "a" * n)), TEXT_BYTES_MAX),
        (lambda n: Request(type_url=CLUSTER, unsubscribe=("a" * n,)), TEXT_BYTES_MAX),
        (lambda n: Request(type_url=CLUSTER, initial_versions={"a" * n: "1"}), TEXT_BYTES_MAX),
        (lambda n: Request(type_url=CLUSTER, initial_versions={"a": "1" * n}), TEXT_BYTES_MAX),
    ],
    ids=["node", "type", "nonce", "version", "names", "subscribe", "unsubscribe", "held", "held-version"],
)
def test_a_text_has_a_greatest_length(request_with: Callable[[int], Request], most: int) -> None:
    limits.check(request_with(most))
    with pytest.raises(ProtocolError, match=str(most)):
        limits.check(request_with(most + 1))


def test_lengths_count_bytes() -> None:
    with pytest.raises(ProtocolError):
        limits.check(Request(type_url=CLUSTER, names=("ü" * (TEXT_BYTES_MAX // 2 + 1),)))


@pytest.mark.parametrize("node_id", ["gw\n1", "gw\x1b[31m", "\0", "gw\u202e1"])
def test_a_node_id_can_be_printed(node_id: str) -> None:
    with pytest.raises(ProtocolError, match="printed"):
        limits.check(Request(type_url=CLUSTER, node_id=node_id))


def test_one_request_names_so_much_and_no_more() -> None:
    names = [str(n) for n in range(NAMES_MAX + 1)]
    at_most = pb.DiscoveryRequest(type_url=ENDPOINT, resource_names=names[:-1])
    assert len(sotw.read(at_most.SerializeToString()).names) == NAMES_MAX
    for message in (
        pb.DeltaDiscoveryRequest(type_url=ENDPOINT, resource_names_subscribe=names),
        pb.DeltaDiscoveryRequest(type_url=ENDPOINT, resource_names_unsubscribe=names),
        pb.DeltaDiscoveryRequest(type_url=ENDPOINT, initial_resource_versions=dict.fromkeys(names, "1")),
    ):
        with pytest.raises(ProtocolError, match=str(NAMES_MAX)):
            delta.read(message.SerializeToString())
    with pytest.raises(ProtocolError, match=str(NAMES_MAX)):
        sotw.read(pb.DiscoveryRequest(type_url=ENDPOINT, resource_names=names).SerializeToString())


def test_a_stream_does_not_gather_a_million_names_by_and_by() -> None:
    session = Session(Variant.DELTA)
    portion = NAMES_MAX // 4
    requests = [
        Request(type_url=ENDPOINT, subscribe=tuple(map(str, range(start, start + portion))))
        for start in range(0, 1_000_000, portion)
    ]
    for request in requests[:4]:
        session.request(request, 0.0)
    with pytest.raises(ProtocolError, match="names"):
        session.request(requests[4], 0.0)


def test_names_that_were_let_go_do_not_count() -> None:
    session = Session(Variant.DELTA)
    portion = tuple(map(str, range(NAMES_MAX // 2)))
    for _ in range(5):
        session.request(Request(type_url=ENDPOINT, subscribe=portion), 0.0)
        session.request(Request(type_url=ENDPOINT, unsubscribe=portion), 0.0)


def test_what_a_client_says_it_holds_counts_too() -> None:
    session = Session(Variant.DELTA)
    held = {str(n): "1" for n in range(NAMES_MAX // 2 + 1)}
    session.request(Request(type_url=CLUSTER, subscribe=("*",), initial_versions=held), 0.0)
    with pytest.raises(ProtocolError):
        session.request(Request(type_url=ENDPOINT, subscribe=("*",), initial_versions=held), 0.0)


def test_a_stream_knows_so_many_types() -> None:
    session = Session(Variant.DELTA)
    for number in range(TYPES_MAX):
        session.request(Request(type_url=f"type {number}"), 0.0)
    session.request(Request(type_url="type 0"), 0.0)
    with pytest.raises(ProtocolError, match="types"):
        session.request(Request(type_url="one more"), 0.0)


def test_a_long_complaint_is_cut() -> None:
    request = pb.DeltaDiscoveryRequest(type_url=CLUSTER, error_detail=pb.Status(message="x" * 1_000_000))
    error = delta.read(request.SerializeToString()).error
    assert error is not None
    assert len(error) < 5000


def test_refusals_of_invented_nodes_are_not_gathered_for_ever() -> None:
    quarantine = Quarantine()
    resource = Resource.of("a", b"1")
    quarantine.publish(Snapshot(resources={CLUSTER: {"a": resource}}))
    quarantine.accept(CLUSTER, [resource])
    for number in range(NODES_KEPT + 10):
        quarantine.refuse(CLUSTER, resource, "no", f"node-{number}", 0.0)
    assert len(quarantine.entries()) == NODES_KEPT
