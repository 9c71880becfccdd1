"""Whatever happens in whatever order, a client ends with the latest good snapshot, in order and without
loops.

The reference client is small and honest: it keeps what it accepts, rejects a response that contains a bad
resource, and may answer late. Session and quarantine must bring it to the wanted state whatever the
sequence of publications, subscriptions, late answers, reconnects and restarts of the client.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controlplane.model.resource import CLUSTER, ENDPOINT, EXTENSION, RUNTIME, SEND_ORDER, Resource, Snapshot
from controlplane.xds.exchange import Accepted, Refused, Request, Response, Variant
from controlplane.xds.quarantine import Quarantine
from controlplane.xds.session import Session

TYPES = (CLUSTER, ENDPOINT, RUNTIME, EXTENSION)
NAMES = ("a", "b", "c", "d")
CONTENT = ("1", "2", "3", "bad1", "bad2")
contents = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(CONTENT))


def bad(resource: Resource) -> bool:
    return resource.body.startswith(b"bad")


class ReferenceClient:
    """What a client of one stream knows. `held` survives a reconnect, not a restart."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.held: dict[str, dict[str, Resource]] = {type_url: {} for type_url in TYPES}
        self.names: dict[str, set[str]] = {}
        self.nonce: dict[str, str] = {}
        self.inbox: list[Response] = []

    def open(self, type_url: str, names: set[str]) -> Request:
        self.names[type_url] = names
        request = Request(type_url=type_url, node_id="gw")
        if self.variant is Variant.SOTW:
            return replace(request, names=tuple(sorted(names)))
        held = {name: resource.version for name, resource in self.held[type_url].items()}
        return replace(request, subscribe=tuple(sorted(names)), initial_versions=held)

    def resubscribe(self, type_url: str, names: set[str]) -> Request:
        before, self.names[type_url] = self.names[type_url], names
        for name in before - names:
            self.held[type_url].pop(name, None)
        if self.variant is Variant.SOTW:
            nonce = self.nonce.get(type_url, "")
            return Request(type_url=type_url, nonce=nonce, names=tuple(sorted(names)))
        return Request(
            type_url=type_url,
            subscribe=tuple(sorted(names - before)),
            unsubscribe=tuple(sorted(before - names)),
        )

    def answer(self, response: Response) -> Request:
        type_url = response.type_url
        error = "salt" if any(bad(resource) for resource in response.resources) else None
        self.nonce[type_url] = response.nonce
        if error is None:
            self._apply(response)
        request = Request(type_url=type_url, nonce=response.nonce, error=error)
        if self.variant is Variant.SOTW:
            return replace(request, names=tuple(sorted(self.names[type_url])))
        return request

    def _apply(self, response: Response) -> None:
        held = self.held[response.type_url]
        if self.variant is Variant.SOTW and response.type_url == CLUSTER:
            held.clear()
        wanted = self.names[response.type_url]
        for resource in response.resources:
            if response.type_url == CLUSTER or resource.name in wanted:
                held[resource.name] = resource
        for name in response.removed:
            held.pop(name, None)


class Streams(RuleBasedStateMachine):
    """One client, one session after another, and the quarantine that outlives them."""

    variant = Variant.DELTA

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.quarantine = Quarantine()
        self.client = ReferenceClient(self.variant)
        self.session = Session(self.variant)
        self.published: Snapshot | None = None
        self.offers: dict[
            tuple[str, str, str], int
        ] = {}  # bad (type, name, version) -> times sent on this stream

    # What happens

    @rule(clusters=contents, endpoints=contents, runtime=contents, extensions=contents)
    def publish(self, **named: dict[str, str]) -> None:
        texts = dict(zip(TYPES, named.values(), strict=True))
        self.published = Snapshot(
            resources={
                type_url: {name: Resource.of(name, f"{text}{name}".encode()) for name, text in chosen.items()}
                for type_url, chosen in texts.items()
            }
        )
        self.as_published = {type_url: dict(named) for type_url, named in self.published.resources.items()}
        self.quarantine.publish(self.published)
        self.offers.clear()
        self._offer()

    @rule(type_url=st.sampled_from(TYPES), names=st.sets(st.sampled_from(NAMES)))
    def subscribe(self, type_url: str, names: set[str]) -> None:
        if type_url == CLUSTER:
            names = set()
        if type_url not in self.client.names:
            self._request(self.client.open(type_url, names))
        elif type_url != CLUSTER:
            self._request(self.client.resubscribe(type_url, names))

    @precondition(lambda self: self.client.inbox)
    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0]))
    def answer(self, seconds: float) -> None:
        self.now_s += seconds
        self._request(self.client.answer(self.client.inbox.pop(0)))

    @rule(nonce=st.sampled_from(["", "0", "777"]))
    def stale_nack(self, nonce: str) -> None:
        for type_url, names in list(self.client.names.items())[:1]:
            request = Request(type_url=type_url, nonce=nonce, error="stale")
            self._request(
                replace(request, names=tuple(sorted(names))) if self.variant is Variant.SOTW else request
            )

    @rule(restarted=st.booleans())
    def reconnect(self, restarted: bool) -> None:
        names, client = self.client.names, ReferenceClient(self.variant)
        if not restarted:
            client.held = self.client.held
        self.client, self.session = client, Session(self.variant)
        self.offers.clear()
        if self.published is not None:
            self._offer()
        for type_url in names if not restarted else ():
            self._request(self.client.open(type_url, names[type_url]))

    @rule()
    def time_passes(self) -> None:
        self.now_s += 1.0
        self._receive(self.session.tick(self.now_s))

    # What must hold

    @invariant()
    def one_response_per_type_is_in_flight(self) -> None:
        waiting = [response.type_url for response in self.client.inbox]
        assert len(waiting) == len(set(waiting))

    @invariant()
    def what_is_published_is_changed_by_nobody(self) -> None:
        if self.published is not None:
            assert self.published.resources == self.as_published

    @invariant()
    def no_difference_is_overlooked(self) -> None:
        """Only names that were touched are compared; comparing everything must find the same."""
        for channel in self.session._channels.values():
            thorough = copy(channel)
            thorough._touch_all()
            assert thorough.todo == channel.todo

    @invariant()
    def a_bad_version_is_offered_only_while_its_batch_is_searched(self) -> None:
        assert all(times <= 4 for times in self.offers.values())  # in batches of at most 4 names

    def teardown(self) -> None:
        """Let everything be answered: the client must arrive, soon, at the latest good snapshot."""
        if self.published is None:
            return
        for _ in range(300):
            if not self.client.inbox:
                self.now_s += 1.0
                self._receive(self.session.tick(self.now_s))
            if not self.client.inbox:
                break
            self._request(self.client.answer(self.client.inbox.pop(0)))
        assert not self.client.inbox
        assert self.session.settled
        view = self.quarantine.view("gw")
        for type_url, names in self.client.names.items():
            offered = view.snapshot.of_type(type_url)
            wanted = {n: r for n, r in offered.items() if type_url == CLUSTER or n in names}
            kept = view.withheld.get(type_url, frozenset())
            held = {
                n: r
                for n, r in self.client.held[type_url].items()
                # Most types cannot express a removal in state-of-the-world; what is withheld may be kept.
                if n in offered or (n not in kept and (self.variant is Variant.DELTA or type_url == CLUSTER))
            }
            assert {n: r.body for n, r in held.items()} == {n: r.body for n, r in wanted.items()}
            assert not any(bad(resource) for resource in held.values())

    # How bytes move

    def _request(self, request: Request) -> None:
        self._receive(self.session.request(request, self.now_s))
        changed = False
        for event in self.session.take_events():
            if isinstance(event, Accepted):
                self.quarantine.accept(event.type_url, event.resources)
            elif isinstance(event, Refused) and len(event.suspects) == 1:
                assert bad(event.suspects[0])
                changed |= self.quarantine.refuse(event.type_url, event.suspects[0], "salt", "gw", self.now_s)
        if changed:
            self._offer()

    def _offer(self) -> None:
        view = self.quarantine.view("gw")
        self._receive(self.session.publish(view.snapshot, self.now_s, view.withheld))

    def _receive(self, responses: list[Response]) -> None:
        ranks = [SEND_ORDER.index(response.type_url) for response in responses]
        assert ranks == sorted(ranks)
        for response in responses:
            self._check_order(response)
            for resource in response.resources:
                if bad(resource):
                    key = (response.type_url, resource.name, resource.version)
                    self.offers[key] = self.offers.get(key, 0) + 1
        self.client.inbox += responses

    def _check_order(self, response: Response) -> None:
        """An extension is never sent beside an unanswered cluster, endpoint or runtime response."""
        if response.type_url == EXTENSION and response.resources:
            flying = {status.type_url for status in self.session.status().types if status.in_flight}
            overdue = any(
                status.in_flight_since_s is not None and self.now_s - status.in_flight_since_s >= 5.0
                for status in self.session.status().types
            )
            assert flying == {EXTENSION} or overdue


class StreamsSotw(Streams):
    variant = Variant.SOTW


Streams.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
StreamsSotw.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestDelta = Streams.TestCase
TestSotw = StreamsSotw.TestCase
