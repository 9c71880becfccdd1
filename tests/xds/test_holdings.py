"""One table for all clients that hold the same, and a table of its own for one that does not."""

from __future__ import annotations

from controlplane.model.resource import CLUSTER, Resource, Snapshot
from controlplane.xds.exchange import Request, Variant
from controlplane.xds.holdings import Holdings
from controlplane.xds.offer import offers
from controlplane.xds.session import Session


def resources(**texts: str) -> dict[str, Resource]:
    return {name: Resource.of(name, text.encode()) for name, text in texts.items()}


def test_a_shared_table_is_copied_before_it_changes() -> None:
    shared = resources(a="1")
    holdings = Holdings()
    holdings.share(shared)
    assert holdings.table is shared
    holdings.changeable()["b"] = shared["a"]
    assert set(holdings.table) == {"a", "b"}
    assert set(shared) == {"a"}


def test_a_table_of_its_own_is_not_copied() -> None:
    own = resources(a="1")
    holdings = Holdings()
    holdings.replace(own)
    assert holdings.changeable() is own


def settled(snapshot: Snapshot, *names: str) -> Session:
    """A client that accepted all it asked for: everything, or `names`."""
    session = Session(Variant.DELTA)
    session.offer(offers(snapshot, {}), 0.0)
    for response in session.request(Request(type_url=CLUSTER, subscribe=names), 0.0):
        session.request(Request(type_url=CLUSTER, nonce=response.nonce), 0.0)
    assert session.settled
    return session


def table(session: Session) -> object:
    (channel,) = session._channels.values()
    return channel.held


def test_clients_that_hold_everything_share_the_published_table() -> None:
    published = Snapshot(resources={CLUSTER: resources(a="1", b="2")})
    first, second = settled(published), settled(published)
    assert table(first) is table(second) is published.of_type(CLUSTER)


def test_a_client_that_holds_a_part_has_its_own() -> None:
    published = Snapshot(resources={CLUSTER: resources(a="1", b="2")})
    assert table(settled(published, "a")) == {"a": published.of_type(CLUSTER)["a"]}


def test_clients_that_followed_a_change_share_again() -> None:
    before, after = (Snapshot(resources={CLUSTER: resources(a="1", b=text)}) for text in "23")
    sessions = [settled(before), settled(before)]
    first = sessions[0].offers
    made = offers(after, {}, first)
    for session in sessions:
        for response in session.offer(made, 1.0):
            session.request(Request(type_url=CLUSTER, nonce=response.nonce), 1.0)
    assert table(sessions[0]) is table(sessions[1]) is after.of_type(CLUSTER)
    assert before.of_type(CLUSTER)["b"].body == b"2"
