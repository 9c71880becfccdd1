"""The transition table of one stream, delta and state-of-the-world, a few lines for each behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from controlplane.model.resource import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    Resource,
    Snapshot,
)
from controlplane.xds.exchange import Accepted, ProtocolError, Refused, Request, Response, Variant
from controlplane.xds.session import Session

BOTH = pytest.mark.parametrize("variant", list(Variant))
SHORT = {"cluster": CLUSTER, "endpoint": ENDPOINT, "runtime": RUNTIME, "listener": LISTENER}
SHORT |= {"route": ROUTE, "extension": EXTENSION}


def snapshot(**types: dict[str, str]) -> Snapshot:
    """`snapshot(cluster={"a": "1"})`: cluster `a` with content "1"."""
    return Snapshot(
        resources={
            SHORT[short]: {
                name: Resource.of(name, text.encode(), origin=f"{short}s.yaml:{i}")
                for i, (name, text) in enumerate(named.items(), 1)
            }
            for short, named in types.items()
        }
    )


def version(text: str) -> str:
    return Resource.of("", text.encode()).version


def shown(responses: Sequence[Response]) -> list[str]:
    """`cluster: a=1 b=2 -c` for each response."""
    long = {type_url: short for short, type_url in SHORT.items()}
    return [
        f"{long[r.type_url]}:"
        + "".join(f" {resource.name}={resource.body.decode()}" for resource in r.resources)
        + "".join(f" -{name}" for name in r.removed)
        for r in responses
    ]


class Client:
    """Speaks for one client, in either variant, at a time that the test sets."""

    def __init__(self, variant: Variant = Variant.DELTA, published: Snapshot | None = None) -> None:
        self.variant = variant
        self.session = Session(variant, patience_s=5.0, quiet_s=0.0)
        self.now_s = 100.0
        self.names: dict[str, list[str]] = {}
        self.last: dict[str, Response] = {}
        if published is not None:
            self.publish(published)

    def publish(self, published: Snapshot, **withheld: frozenset[str]) -> list[str]:
        kept_back = {SHORT[short]: names for short, names in withheld.items()}
        return self._note(self.session.publish(published, self.now_s, kept_back))

    def subscribe(self, short: str, *names: str, nonce: str = "", **more: object) -> list[str]:
        type_url = SHORT[short]
        self.names[type_url] = self.names.get(type_url, []) + list(names)
        request = Request(type_url=type_url, node_id="gw", nonce=nonce, subscribe=names)
        if self.variant is Variant.SOTW:
            request = replace(request, subscribe=(), names=tuple(self.names[type_url]))
        return self.send(replace(request, **more))  # type: ignore[arg-type]

    def answer(self, short: str, error: str | None = None) -> list[str]:
        type_url = SHORT[short]
        request = Request(type_url=type_url, nonce=self.last[type_url].nonce, error=error)
        if self.variant is Variant.SOTW:
            request = replace(request, names=tuple(self.names[type_url]))
        return self.send(request)

    def send(self, request: Request) -> list[str]:
        return self._note(self.session.request(request, self.now_s))

    def later(self, seconds: float) -> list[str]:
        self.now_s += seconds
        return self._note(self.session.tick(self.now_s))

    def _note(self, responses: list[Response]) -> list[str]:
        self.last.update((response.type_url, response) for response in responses)
        return shown(responses)


@BOTH
def test_nothing_is_answered_before_the_first_publication(variant: Variant) -> None:
    client = Client(variant)
    assert client.subscribe("cluster") == []
    assert client.publish(snapshot(cluster={"a": "1"})) == ["cluster: a=1"]


@BOTH
@pytest.mark.parametrize("names", [(), ("*",)], ids=["legacy", "explicit"])
def test_a_wildcard_gets_everything(variant: Variant, names: tuple[str, ...]) -> None:
    client = Client(variant, snapshot(cluster={"b": "2", "a": "1"}))
    assert client.subscribe("cluster", *names) == ["cluster: a=1 b=2"]


@BOTH
def test_an_empty_wildcard_is_answered_too_because_clients_wait_for_it(variant: Variant) -> None:
    client = Client(variant, snapshot())
    assert client.subscribe("cluster") == ["cluster:"]
    assert client.answer("cluster") == []


@BOTH
def test_an_empty_first_request_asks_for_nothing_where_no_legacy_wildcard_exists(variant: Variant) -> None:
    assert Client(variant, snapshot(endpoint={"a": "1"})).subscribe("endpoint") == []


@BOTH
def test_names_get_only_what_they_name(variant: Variant) -> None:
    client = Client(variant, snapshot(endpoint={"a": "1", "b": "2"}))
    assert client.subscribe("endpoint", "a") == ["endpoint: a=1"]


@BOTH
def test_an_ack_is_not_answered(variant: Variant) -> None:
    client = Client(variant, snapshot(endpoint={"a": "1"}))
    client.subscribe("endpoint", "a")
    assert client.answer("endpoint") == []
    assert client.session.settled


@BOTH
def test_only_what_changed_is_sent(variant: Variant) -> None:
    client = Client(variant, snapshot(endpoint={"a": "1", "b": "2"}))
    client.subscribe("endpoint", "a", "b")
    client.answer("endpoint")
    assert client.publish(snapshot(endpoint={"a": "1", "b": "3"})) == ["endpoint: b=3"]


def test_in_sotw_clusters_are_always_sent_whole() -> None:
    client = Client(Variant.SOTW, snapshot(cluster={"a": "1", "b": "2"}))
    client.subscribe("cluster")
    client.answer("cluster")
    assert client.publish(snapshot(cluster={"a": "1", "b": "3"})) == ["cluster: a=1 b=3"]


@BOTH
def test_equal_content_under_a_new_snapshot_is_not_sent(variant: Variant) -> None:
    client = Client(variant, snapshot(cluster={"a": "1"}))
    client.subscribe("cluster")
    client.answer("cluster")
    assert client.publish(snapshot(cluster={"a": "1"})) == []


@BOTH
def test_a_slow_client_has_one_response_in_flight_and_jumps_to_the_latest(variant: Variant) -> None:
    client = Client(variant, snapshot(endpoint={"a": "1"}))
    client.subscribe("endpoint", "a")
    assert [client.publish(snapshot(endpoint={"a": str(n)})) for n in range(2, 9)] == [[]] * 7
    assert client.answer("endpoint") == ["endpoint: a=8"]


@BOTH
def test_a_stale_nonce_neither_accepts_nor_rejects(variant: Variant) -> None:
    client = Client(variant, snapshot(endpoint={"a": "1"}))
    client.subscribe("endpoint", "a")
    client.send(Request(type_url=ENDPOINT, nonce="999", error="no", names=("a",)))
    assert client.session.take_events() == []
    assert not client.session.settled


@BOTH
def test_a_stale_nonce_still_changes_the_subscription(variant: Variant) -> None:
    client = Client(variant, snapshot(endpoint={"a": "1", "b": "2"}))
    client.subscribe("endpoint", "a")
    client.subscribe("endpoint", "b", nonce="999")
    assert client.answer("endpoint") == ["endpoint: b=2"]


@BOTH
def test_a_new_name_is_sent_alone(variant: Variant) -> None:
    client = Client(variant, snapshot(endpoint={"a": "1", "b": "2"}))
    client.subscribe("endpoint", "b")
    client.answer("endpoint")
    assert client.subscribe("endpoint", "a") == ["endpoint: a=1"]


def test_an_unknown_name_is_answered_as_removed_on_delta() -> None:
    client = Client(Variant.DELTA, snapshot(endpoint={"a": "1"}))
    assert client.subscribe("endpoint", "a", "zz") == ["endpoint: a=1 -zz"]
    assert client.answer("endpoint") == []
    assert client.publish(snapshot(endpoint={"a": "1"})) == []


@BOTH
def test_an_unknown_name_is_sent_when_it_appears_later(variant: Variant) -> None:
    client = Client(variant, snapshot())
    client.subscribe("endpoint", "a")
    if variant is Variant.DELTA:
        client.answer("endpoint")
    assert client.publish(snapshot(endpoint={"a": "1"})) == ["endpoint: a=1"]


def test_unsubscribing_an_unknown_name_is_ignored() -> None:
    client = Client(Variant.DELTA, snapshot(endpoint={"a": "1"}))
    assert client.send(Request(type_url=ENDPOINT, unsubscribe=("zz",))) == []


def test_an_unsubscribed_name_is_not_sent_any_more() -> None:
    client = Client(Variant.DELTA, snapshot(endpoint={"a": "1"}))
    client.subscribe("endpoint", "a")
    client.answer("endpoint")
    client.send(Request(type_url=ENDPOINT, unsubscribe=("a",)))
    assert client.publish(snapshot(endpoint={"a": "2"})) == []
    assert client.publish(snapshot()) == []


def test_a_name_left_out_of_the_list_is_not_sent_any_more_on_sotw() -> None:
    client = Client(Variant.SOTW, snapshot(endpoint={"a": "1", "b": "1"}))
    client.subscribe("endpoint", "a", "b")
    client.answer("endpoint")
    client.send(Request(type_url=ENDPOINT, nonce="1", names=("b",)))
    assert client.publish(snapshot(endpoint={"a": "2", "b": "1"})) == []


def test_subscribing_again_sends_again_on_delta() -> None:
    client = Client(Variant.DELTA, snapshot(endpoint={"a": "1"}))
    client.subscribe("endpoint", "a")
    client.answer("endpoint")
    assert client.subscribe("endpoint", "a") == ["endpoint: a=1"]


def test_leaving_and_coming_back_under_one_nonce_sends_again_on_sotw() -> None:
    client = Client(Variant.SOTW, snapshot(endpoint={"a": "1", "b": "1"}))
    client.subscribe("endpoint", "a", "b")
    client.answer("endpoint")
    assert client.send(Request(type_url=ENDPOINT, nonce="1", names=("b",))) == []
    assert client.send(Request(type_url=ENDPOINT, nonce="1", names=("a", "b"))) == ["endpoint: a=1"]


def test_the_same_list_under_an_answered_nonce_is_a_new_subscription_on_sotw_once() -> None:
    client = Client(Variant.SOTW, snapshot(endpoint={"a": "1"}))
    client.subscribe("endpoint", "a")
    client.answer("endpoint")
    assert client.answer("endpoint") == ["endpoint: a=1"]
    assert client.answer("endpoint") == []
    assert client.answer("endpoint") == []  # a client that answers twice causes no loop


def test_unsubscribed_and_subscribed_while_in_flight_sends_again() -> None:
    client = Client(Variant.DELTA, snapshot(endpoint={"a": "1"}))
    client.subscribe("endpoint", "a")
    client.send(Request(type_url=ENDPOINT, unsubscribe=("a",)))
    client.subscribe("endpoint", "a")
    assert client.answer("endpoint") == ["endpoint: a=1"]


def test_what_was_unsubscribed_while_in_flight_is_forgotten() -> None:
    client = Client(Variant.DELTA, snapshot(endpoint={"a": "1"}))
    client.subscribe("endpoint", "a")
    client.send(Request(type_url=ENDPOINT, unsubscribe=("a",)))
    assert client.answer("endpoint") == []
    assert client.publish(snapshot()) == []  # nothing is left to remove


@BOTH
def test_the_legacy_wildcard_and_added_names(variant: Variant) -> None:
    client = Client(variant, snapshot(cluster={"a": "1", "b": "1"}))
    client.subscribe("cluster")
    client.answer("cluster")
    client.subscribe("cluster", "a", nonce="1")
    client.answer("cluster")
    news = client.publish(snapshot(cluster={"a": "1", "b": "2"}))
    assert news == (
        ["cluster: b=2"] if variant is Variant.DELTA else []
    )  # in sotw the list ended the wildcard


def test_the_legacy_wildcard_never_returns_on_sotw() -> None:
    client = Client(Variant.SOTW, snapshot(cluster={"a": "1", "b": "1"}))
    client.subscribe("cluster", "a")
    client.answer("cluster")
    client.names[CLUSTER] = []
    assert client.answer("cluster") == []
    assert client.publish(snapshot(cluster={"a": "2", "b": "2"})) == []


def test_leaving_the_wildcard_keeps_the_names() -> None:
    client = Client(Variant.DELTA, snapshot(cluster={"a": "1", "b": "1"}))
    client.subscribe("cluster", "*", "a")
    client.answer("cluster")
    client.send(Request(type_url=CLUSTER, unsubscribe=("*",)))
    assert client.publish(snapshot(cluster={"a": "2", "b": "2"})) == ["cluster: a=2"]


@pytest.mark.parametrize(("left", "told"), [("a", "cluster: a=1"), ("zz", "cluster: -zz")])
def test_unsubscribing_a_name_under_a_wildcard_sends_or_removes_it(left: str, told: str) -> None:
    client = Client(Variant.DELTA, snapshot(cluster={"a": "1"}))
    client.subscribe("cluster", "*", left)
    client.answer("cluster")
    assert client.send(Request(type_url=CLUSTER, unsubscribe=(left,))) == [told]


def test_the_node_is_needed_only_in_the_first_message() -> None:
    client = Client(Variant.DELTA, snapshot())
    client.subscribe("cluster")
    client.send(Request(type_url=LISTENER))
    assert client.session.node_id == "gw"


@BOTH
def test_an_empty_type_ends_the_stream(variant: Variant) -> None:
    with pytest.raises(ProtocolError, match="type_url"):
        Client(variant, snapshot()).send(Request(type_url="", node_id="gw"))


def test_an_unknown_type_is_answered_as_having_nothing() -> None:
    session = Session(Variant.DELTA)
    session.publish(snapshot(), 0.0)
    (response,) = session.request(Request(type_url="type.googleapis.com/x.Y", subscribe=("a",)), 0.0)
    assert response.removed == ("a",)


# Reconnect


def test_a_reconnecting_delta_client_is_sent_nothing_it_has() -> None:
    client = Client(Variant.DELTA, snapshot(cluster={"a": "1"}, endpoint={"a": "1"}))
    held = {"a": version("1")}
    assert client.subscribe("cluster", initial_versions=held) == []
    assert client.subscribe("endpoint", "a", initial_versions=held) == []
    assert client.session.settled


def test_a_reconnecting_delta_client_is_sent_what_changed_and_told_what_is_gone() -> None:
    client = Client(Variant.DELTA, snapshot(cluster={"a": "2", "b": "1", "new": "1"}))
    held = {"a": version("1"), "b": version("1"), "old": version("1")}
    assert client.subscribe("cluster", initial_versions=held) == ["cluster: a=2 new=1"]
    assert client.answer("cluster") == ["cluster: -old"]


def test_what_a_reconnecting_client_has_already_counts_as_accepted() -> None:
    client = Client(Variant.DELTA, snapshot(cluster={"a": "1", "b": "1"}))
    client.subscribe("cluster", initial_versions={"a": version("1"), "b": version("0")})
    (event,) = client.session.take_events()
    assert isinstance(event, Accepted)
    assert [resource.body for resource in event.resources] == [b"1"]


def test_a_reconnecting_sotw_client_that_is_up_to_date_is_not_sent_its_clusters_again() -> None:
    before = Client(Variant.SOTW, snapshot(cluster={"a": "1"}))
    before.subscribe("cluster")
    after = Client(Variant.SOTW, snapshot(cluster={"a": "1"}))
    assert after.subscribe("cluster", version=before.last[CLUSTER].version) == []
    assert after.publish(snapshot(cluster={"a": "2"})) == ["cluster: a=2"]


def test_a_reconnecting_sotw_client_is_sent_named_resources_whatever_version_it_claims() -> None:
    before = Client(Variant.SOTW, snapshot(endpoint={"a": "1"}))
    before.subscribe("endpoint", "a")
    after = Client(Variant.SOTW, snapshot(endpoint={"a": "1"}))
    assert after.subscribe("endpoint", "a", version=before.last[ENDPOINT].version) == ["endpoint: a=1"]


def test_removals_wait_until_a_reconnecting_client_has_named_its_types() -> None:
    client = Client(Variant.DELTA, snapshot(extension={"lua": "2"}))
    client.session = Session(Variant.DELTA, quiet_s=0.5)
    client.publish(snapshot(extension={"lua": "2"}))
    assert client.subscribe("cluster", initial_versions={"old": "1"}) == []
    assert client.subscribe("extension", "lua", initial_versions={"lua": "1"}) == ["extension: lua=2"]
    assert client.answer("extension") == []
    assert client.later(0.5) == ["cluster: -old"]


# Order


def everything(text: str) -> Snapshot:
    return snapshot(**{short: {"x": text} for short in SHORT})


def connected(variant: Variant, published: Snapshot, *shorts: str) -> Client:
    """A client that has all of `published` in the types of `shorts`, each with the name x."""
    client = Client(variant, published)
    for short in shorts:
        if client.subscribe(short, *(() if short in ("cluster", "listener") else ("x",))):
            client.answer(short)
    assert client.session.settled
    return client


@BOTH
def test_later_types_wait_for_the_acks_of_earlier_ones(variant: Variant) -> None:
    client = connected(variant, everything("1"), *SHORT)
    assert client.publish(everything("2")) == ["cluster: x=2", "endpoint: x=2", "runtime: x=2"]
    assert client.answer("cluster") == []
    assert client.answer("runtime") == []
    assert client.answer("endpoint") == ["listener: x=2"]
    assert client.answer("listener") == ["route: x=2"]
    assert client.answer("route") == ["extension: x=2"]
    assert client.answer("extension") == []


@BOTH
def test_types_nobody_subscribed_to_hold_up_nothing(variant: Variant) -> None:
    client = connected(variant, everything("1"), "extension")
    assert client.publish(everything("2")) == ["extension: x=2"]


@BOTH
@pytest.mark.parametrize("short", ["extension", "runtime", "route", "endpoint"])
def test_a_change_of_one_type_goes_out_at_once(variant: Variant, short: str) -> None:
    client = connected(variant, everything("1"), *SHORT)
    changed = dict(everything("1").resources) | {
        SHORT[short]: snapshot(**{short: {"x": "2"}}).of_type(SHORT[short])
    }
    assert client.publish(Snapshot(resources=changed)) == [f"{short}: x=2"]


@BOTH
def test_endpoints_do_not_wait_for_the_cluster_that_waits_for_them(variant: Variant) -> None:
    client = Client(variant, snapshot(cluster={"x": "1"}, endpoint={"x": "1"}))
    client.subscribe("cluster")
    assert client.subscribe("endpoint", "x") == ["endpoint: x=1"]


@BOTH
def test_an_updated_cluster_is_sent_its_endpoints_again_because_it_waits_for_them(variant: Variant) -> None:
    client = connected(variant, everything("1"), "cluster", "endpoint")
    assert client.publish(snapshot(cluster={"x": "2"}, endpoint={"x": "1"})) == [
        "cluster: x=2",
        "endpoint: x=1",
    ]


@BOTH
def test_a_kill_switch_does_not_wait_for_a_slow_cluster(variant: Variant) -> None:
    client = connected(variant, everything("1"), *SHORT)
    client.publish(snapshot(**{short: {"x": "2" if short == "cluster" else "1"} for short in SHORT}))
    news = snapshot(**{short: {"x": "2" if short in ("cluster", "runtime") else "1"} for short in SHORT})
    assert client.publish(news) == ["runtime: x=2"]


@BOTH
def test_a_type_that_is_never_acked_holds_up_the_later_ones_only_for_a_while(variant: Variant) -> None:
    client = connected(variant, everything("1"), "cluster", "route", "extension")
    assert client.publish(everything("2")) == ["cluster: x=2"]
    assert client.later(4.9) == []
    assert client.later(0.2) == ["route: x=2"]


def test_removals_wait_for_the_types_that_may_refer_to_them_and_go_backwards() -> None:
    client = connected(Variant.DELTA, everything("1"), *SHORT)
    assert client.publish(snapshot(runtime={"x": "1"}, extension={"x": "2"})) == ["extension: x=2"]
    assert client.answer("extension") == ["route: -x"]
    assert client.answer("route") == ["listener: -x"]
    assert client.answer("listener") == ["endpoint: -x"]
    assert client.answer("endpoint") == ["cluster: -x"]
    assert client.answer("cluster") == []
    assert client.session.settled


def test_in_sotw_a_cluster_stays_in_the_set_until_its_removal_is_due() -> None:
    client = connected(
        Variant.SOTW, snapshot(cluster={"x": "1", "y": "1"}, route={"x": "1"}), "cluster", "route"
    )
    assert client.publish(snapshot(cluster={"x": "1", "z": "1"}, route={"x": "2"})) == [
        "cluster: x=1 y=1 z=1"
    ]
    assert client.answer("cluster") == ["route: x=2"]
    assert client.answer("route") == ["cluster: x=1 z=1"]


def test_what_returns_before_its_removal_is_never_removed() -> None:
    client = connected(Variant.DELTA, everything("1"), "cluster", "route")
    client.publish(snapshot(route={"x": "2"}))
    client.publish(snapshot(cluster={"x": "1"}, route={"x": "2"}))
    assert client.answer("route") == []


# Rejections


@BOTH
def test_a_rejected_resource_is_not_sent_again(variant: Variant) -> None:
    client = connected(variant, everything("1"), "extension")
    client.publish(snapshot(extension={"x": "bad"}))
    assert client.answer("extension", error="no") == []
    assert client.publish(snapshot(extension={"x": "bad"})) == []
    assert client.later(60) == []


@BOTH
def test_new_content_after_a_rejection_is_sent(variant: Variant) -> None:
    client = connected(variant, everything("1"), "extension")
    client.publish(snapshot(extension={"x": "bad"}))
    client.answer("extension", error="no")
    assert client.publish(snapshot(extension={"x": "good"})) == ["extension: x=good"]


@BOTH
def test_going_back_to_what_the_client_kept_sends_nothing(variant: Variant) -> None:
    client = connected(variant, everything("1"), "extension")
    client.publish(snapshot(extension={"x": "bad"}))
    client.answer("extension", error="no")
    assert client.publish(everything("1")) == []


@BOTH
def test_a_rejection_lets_later_types_go_on(variant: Variant) -> None:
    client = connected(variant, everything("1"), "route", "extension")
    assert client.publish(snapshot(route={"x": "bad"}, extension={"x": "2"})) == ["route: x=bad"]
    assert client.answer("route", error="no") == ["extension: x=2"]


def test_a_rejection_tells_who_what_where_and_why() -> None:
    client = connected(Variant.DELTA, everything("1"), "extension")
    client.publish(snapshot(extension={"x": "bad"}))
    client.session.take_events()
    client.answer("extension", error="script load error")
    (event,) = client.session.take_events()
    assert isinstance(event, Refused)
    assert [resource.body for resource in event.suspects] == [b"bad"]
    (nack,) = client.session.status().nacks
    assert (nack.names, nack.origins, nack.reason) == (("x",), ("extensions.yaml:1",), "script load error")


@pytest.mark.parametrize("error", ["", "salt 1 \n\n salt 2"], ids=["no text", "odd text"])
def test_a_rejection_is_known_by_its_presence_not_by_its_text(error: str) -> None:
    client = connected(Variant.DELTA, everything("1"), "extension")
    client.publish(snapshot(extension={"x": "bad"}))
    assert client.answer("extension", error=error) == []
    assert len(client.session.status().nacks) == 1


@BOTH
@pytest.mark.parametrize("culprits", [{0}, {7}, {3, 4}, {0, 7}, set(range(8))])
def test_a_rejected_batch_is_searched_and_the_innocent_live(variant: Variant, culprits: set[int]) -> None:
    client = Client(
        variant, snapshot(endpoint={f"e{n}": f"bad{n}" if n in culprits else "ok" for n in range(8)})
    )
    client.subscribe("endpoint", *(f"e{n}" for n in range(8)))
    steps = 0
    while not client.session.settled:
        steps += 1
        bad = any(b"bad" in resource.body for resource in client.last[ENDPOINT].resources)
        client.answer("endpoint", error="no" if bad else None)
    (channel,) = client.session.status().types
    assert {r.name for r in channel.resources if r.refused_version} == {f"e{n}" for n in culprits}
    assert {r.name for r in channel.resources if r.acked_version} == {
        f"e{n}" for n in set(range(8)) - culprits
    }
    assert steps <= len(culprits) * 4 + 1


def test_one_culprit_of_a_thousand_is_offered_few_times() -> None:
    names = [f"c{n:04}" for n in range(1000)]
    client = Client(
        Variant.DELTA, snapshot(cluster={name: "bad" if name == "c0700" else "ok" for name in names})
    )
    client.subscribe("cluster")
    offers = 0
    while not client.session.settled:
        bad = any(resource.body == b"bad" for resource in client.last[CLUSTER].resources)
        offers += bad
        client.answer("cluster", error="no" if bad else None)
    assert offers <= 11  # the first, and at most log2(1000) halves


def test_a_search_ends_when_another_stream_found_the_culprit() -> None:
    client = Client(Variant.DELTA, snapshot(cluster=dict.fromkeys("abcdefgh", "2")))
    client.subscribe("cluster")
    assert client.answer("cluster", error="no") == ["cluster: a=2 b=2 c=2 d=2"]
    good = dict.fromkeys("abcdefg", "2")
    client.publish(snapshot(cluster=good), cluster=frozenset("h"))
    assert client.answer("cluster") == ["cluster: e=2 f=2 g=2"]


def test_unknown_names_of_a_rejected_batch_are_told_again() -> None:
    client = Client(Variant.DELTA, snapshot(endpoint={"a": "1", "b": "1"}))
    assert client.subscribe("endpoint", "a", "b", "zz") == ["endpoint: a=1 b=1 -zz"]
    assert client.answer("endpoint", error="no") == ["endpoint: a=1 -zz"]


def test_a_rejected_removal_is_not_repeated() -> None:
    client = connected(Variant.DELTA, everything("1"), "extension")
    assert client.publish(snapshot()) == ["extension: -x"]
    assert client.answer("extension", error="no") == []
    assert client.session.settled


@BOTH
def test_what_is_withheld_stays_with_those_who_have_it(variant: Variant) -> None:
    client = connected(variant, snapshot(cluster={"x": "1", "y": "1"}), "cluster")
    assert client.publish(snapshot(cluster={"y": "1"}), cluster=frozenset("x")) == []
    assert client.session.settled


def test_what_is_withheld_does_not_exist_for_those_who_ask_for_it() -> None:
    client = Client(Variant.DELTA)
    client.publish(snapshot(), extension=frozenset("x"))
    assert client.subscribe("extension", "x") == ["extension: -x"]


def test_what_is_withheld_is_not_removed_from_a_client_that_asks_again() -> None:
    client = connected(Variant.DELTA, everything("1"), "extension")
    client.publish(snapshot(), extension=frozenset("x"))
    assert client.subscribe("extension", "x") == []


# Status


def test_the_status_shows_versions_sent_and_acked() -> None:
    client = connected(Variant.DELTA, everything("1"), "extension")
    client.publish(everything("2"))
    (extension,) = client.session.status().types
    (resource,) = extension.resources
    assert (resource.acked_version, resource.sent_version) == (version("1"), version("2"))
    assert (extension.subscribed, extension.in_flight, extension.in_flight_since_s) == (("x",), "2", 100.0)
    assert resource.origin == "extensions.yaml:1"
