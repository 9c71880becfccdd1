"""The cache and its streams, in bytes but without a network; the clock is a number."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field

import pytest

from controlplane.model.resource import CLUSTER, ENDPOINT, EXTENSION, Resource, Snapshot
from controlplane.pb import tidegate_discovery_pb2 as pb
from controlplane.serve.cache import Ack, Cache, ConnectedNode, Hooks, Push, Rejection, Stream
from controlplane.xds.exchange import ProtocolError, Variant


def snapshot(**clusters: str) -> Snapshot:
    return Snapshot(
        resources={
            CLUSTER: {
                name: Resource.of(name, text.encode(), origin="models.yaml:7")
                for name, text in clusters.items()
            }
        }
    )


@dataclass
class Plane:
    """A cache, its clock, and everything its hooks were told."""

    now_s: float = 0.0
    pushes: list[Push] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    nacks: list[Rejection] = field(default_factory=list)
    settled_s: list[float] = field(default_factory=list)
    gone: list[ConnectedNode] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = Cache(
            clock=lambda: self.now_s,
            hooks=Hooks(
                on_connect=self.connected,
                on_disconnect=self.gone.append,
                on_push=self.pushes.append,
                on_ack=self.acks.append,
                on_nack=self.nacks.append,
                on_settled=self.settled_s.append,
            ),
        )

    def connected(self, node: ConnectedNode) -> None:
        """To be overridden: what the application does when a client arrives."""

    def join(self, node_id: str = "gw-1", type_url: str = CLUSTER, **request: object) -> Stream:
        stream = self.cache.join(Variant.DELTA, "127.0.0.1:4711")
        message = pb.DeltaDiscoveryRequest(node=pb.Node(id=node_id), type_url=type_url, **request)  # type: ignore[arg-type]
        stream.receive(message.SerializeToString())
        return stream


def received(stream: Stream) -> list[pb.DeltaDiscoveryResponse]:
    """What was put into the outbox since the last call."""
    messages = [stream.outbox.get_nowait() for _ in range(stream.outbox.qsize())]
    return [pb.DeltaDiscoveryResponse.FromString(message) for message in messages]


def contents(response: pb.DeltaDiscoveryResponse) -> dict[str, bytes]:
    resources = [pb.Resource.FromString(element) for element in response.resources]
    return {resource.name: pb.Any.FromString(resource.resource).value for resource in resources}


def answer(stream: Stream, error: str | None = None) -> None:
    """ACK or NACK the oldest response in the outbox."""
    response = received(stream)[0]
    request = pb.DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
    if error is not None:
        request.error_detail.CopyFrom(pb.Status(code=3, message=error))
    stream.receive(request.SerializeToString())


def test_a_request_before_the_first_publication_waits_for_it() -> None:
    plane = Plane()
    stream = plane.join()
    assert not plane.cache.ready
    assert stream.outbox.empty()
    plane.cache.publish(snapshot(a="1"))
    assert [contents(response) for response in received(stream)] == [{"a": b"1"}]


def test_what_is_published_when_a_client_connects_is_what_it_gets_first() -> None:
    class Fleet(Plane):
        def connected(self, node: ConnectedNode) -> None:
            self.cache.publish(snapshot(members=str(len(self.cache.nodes))))

    plane = Fleet()
    first = plane.join("gw-1")
    assert [contents(response) for response in received(first)] == [{"members": b"1"}]
    second = plane.join("gw-2")
    assert [contents(response) for response in received(second)] == [{"members": b"2"}]


def test_the_connected_nodes_are_known_while_they_are_connected() -> None:
    plane = Plane(now_s=7.0)
    plane.cache.publish(snapshot())
    first, _ = plane.join("gw-1"), plane.join("gw-2")
    assert [(n.id, n.peer, n.connected_at_s) for n in plane.cache.nodes] == [
        ("gw-1", "127.0.0.1:4711", 7.0),
        ("gw-2", "127.0.0.1:4711", 7.0),
    ]
    plane.cache.leave(first)
    plane.cache.leave(first)
    assert [node.id for node in plane.cache.nodes] == ["gw-2"]
    assert [node.id for node in plane.gone] == ["gw-1"]


def test_one_content_is_encoded_once_for_all_streams() -> None:
    plane = Plane()
    streams = [plane.join(f"gw-{n}") for n in range(5)]
    plane.cache.publish(snapshot(a="1"))
    bodies = {
        message[: message.rfind(b"*")] for stream in streams for message in [stream.outbox.get_nowait()]
    }
    assert len(bodies) == 1
    assert len(plane.cache._bodies) == 1


def test_a_client_that_never_reads_keeps_one_response_and_holds_up_nobody() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="0"))
    slow, quick = plane.join("slow"), plane.join("quick")
    for n in range(1, 50):
        answer(quick)
        plane.cache.publish(snapshot(a=str(n)))
    assert slow.outbox.qsize() == 1
    assert [contents(response) for response in received(quick)] == [{"a": b"49"}]


def test_the_latency_of_an_ack_counts_from_the_publication() -> None:
    plane = Plane(now_s=10.0)
    plane.cache.publish(snapshot(a="1"))
    stream = plane.join()
    answer(stream)
    plane.now_s = 20.0
    plane.cache.publish(snapshot(a="2"))
    plane.now_s = 20.25
    answer(stream)
    assert [ack.latency_s for ack in plane.acks] == [0.0, 0.25]
    assert plane.settled_s == [0.0, 0.25]


def test_the_latency_of_a_late_client_does_not_count_from_an_old_publication() -> None:
    plane = Plane(now_s=10.0)
    plane.cache.publish(snapshot(a="1"))
    plane.now_s = 500.0
    stream = plane.join()
    plane.now_s = 500.5
    answer(stream)
    assert [ack.latency_s for ack in plane.acks] == [0.5]


def test_pushes_tell_their_size() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="1", b="2"))
    stream = plane.join()
    (push,) = plane.pushes
    assert (push.resources, push.removed, push.size_bytes) == (2, 0, len(stream.outbox.get_nowait()))


def test_a_rejected_version_is_replaced_for_old_and_new_clients() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="1"))
    old = plane.join("old")
    answer(old)
    plane.cache.publish(snapshot(a="bad"))
    answer(old, error="no")
    assert received(old) == []
    assert [contents(response) for response in received(plane.join("new"))] == [{"a": b"1"}]
    (rejection,) = plane.nacks
    assert (rejection.node.id, rejection.reason, rejection.suspects[0].origin) == (
        "old",
        "no",
        "models.yaml:7",
    )


def test_a_rejected_version_is_taken_back_from_those_it_is_on_its_way_to() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="1"))
    first, second = plane.join("1"), plane.join("2")
    answer(first)
    answer(second)
    plane.cache.publish(snapshot(a="bad"))
    answer(first, error="no")
    answer(second, error="no")
    assert received(second) == []
    assert len(plane.cache.status().quarantine) == 1


def test_a_rejected_version_without_a_good_one_is_left_out() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="bad", b="1"))
    stream = plane.join("1")
    answer(stream, error="no")
    answer(stream, error="no")
    answer(stream)
    assert [contents(response) for response in received(plane.join("2"))] == [{"b": b"1"}]


def test_a_restarted_plane_does_not_take_away_what_it_cannot_replace() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="bad"))
    stream = plane.join(initial_resource_versions={"a": "the version before"})
    answer(stream, error="no")
    assert received(stream) == []


def test_what_a_reconnecting_client_holds_is_known_to_be_good() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="1"))
    held = snapshot(a="1").of_type(CLUSTER)["a"].version
    stream = plane.join(initial_resource_versions={"a": held})
    plane.cache.publish(snapshot(a="bad"))
    answer(stream, error="no")
    assert [contents(response) for response in received(plane.join("new"))] == [{"a": b"1"}]


def test_a_client_that_closes_before_it_said_anything_was_never_connected() -> None:
    plane = Plane()
    plane.cache.leave(plane.cache.join(Variant.DELTA, "x"))
    assert plane.gone == []


def test_an_empty_type_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        Plane().join(type_url="")


def test_removals_come_by_the_tick_after_a_reconnect() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="1"))
    stream = plane.join(initial_resource_versions={"old": "1"})
    answer(stream)
    plane.now_s = 1.0
    plane.cache.tick()
    assert [list(response.removed_resources) for response in received(stream)] == [["old"]]


async def test_waiting_ends_when_every_client_acked() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="1"))
    first, second = plane.join("1"), plane.join("2")
    waiting = asyncio.create_task(plane.cache.wait_acked())
    answer(first)
    await asyncio.sleep(0)
    assert not waiting.done()
    answer(second)
    assert await waiting


async def test_waiting_ends_when_the_last_unsettled_client_leaves() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="1"))
    stream = plane.join("1")
    waiting = asyncio.create_task(plane.cache.wait_acked())
    await asyncio.sleep(0)
    plane.cache.leave(stream)
    assert await waiting


async def test_waiting_gives_up_in_time() -> None:
    plane = Plane()
    plane.cache.publish(snapshot(a="1"))
    plane.join("1")
    assert not await plane.cache.wait_acked(timeout_s=0.01)


def test_the_status_is_plain_data() -> None:
    plane = Plane(now_s=3.0)
    plane.cache.publish(snapshot(a="bad"))
    stream = plane.join()
    answer(stream, error="script load error")
    status = asdict(plane.cache.status())
    assert status["published"] == {CLUSTER: 1}
    assert status["quarantine"][0]["origin"] == "models.yaml:7"
    assert status["streams"][0]["node"]["id"] == "gw-1"
    assert status["streams"][0]["session"]["nacks"][0]["reason"] == "script load error"


def test_several_types_share_one_stream() -> None:
    plane = Plane()
    endpoint, extension = Resource.of("a", b"e"), Resource.of("lua", b"x")
    plane.cache.publish(Snapshot(resources={ENDPOINT: {"a": endpoint}, EXTENSION: {"lua": extension}}))
    stream = plane.join(type_url=ENDPOINT, resource_names_subscribe=["a"])
    request = pb.DeltaDiscoveryRequest(type_url=EXTENSION, resource_names_subscribe=["lua"])
    stream.receive(request.SerializeToString())
    answer(stream)
    assert [response.type_url for response in received(stream)] == [EXTENSION]
