"""One type on one stream: what the client holds, what it was just sent, and what it still has to be sent.

At most one response is in flight; while it is, newer snapshots only replace the offer, so that a slow
client costs one response and jumps to the latest state when it answers.

A NACK of several resources starts a search: halves of the rejected batch are offered until the culprit is
alone (a batch of n costs about log2 n more responses). The culprit's version is not offered again on this
stream; the rest of the batch then goes out in one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.model.resource import CLUSTER, LISTENER, Resource
from controlplane.xds.exchange import Accepted, Event, Refused, Request, Response, Variant, version_of
from controlplane.xds.holdings import Holdings
from controlplane.xds.offer import Offer
from controlplane.xds.subscription import Change, Subscription

# Only these have the legacy wildcard; in state-of-the-world only these are sent whole, so that leaving one
# out means its removal.
WHOLE_TYPES = frozenset({CLUSTER, LISTENER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Todo:
    """What separates the client from the offer. `absent` it asked for and must be told of, `gone` it still
    holds."""

    changed: tuple[Resource, ...] = ()
    absent: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Flight:
    """A response that was sent and not yet answered. `dropped` are names the client unsubscribed
    meanwhile."""

    nonce: str
    sent_at_s: float
    resources: tuple[Resource, ...]
    asked: frozenset[str] = frozenset()
    absent: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    dropped: set[str] = field(default_factory=set)


class Channel:
    """The state of one type on one stream. The session decides when it may send."""

    def __init__(self, type_url: str, variant: Variant) -> None:
        self.type_url = type_url
        self.subscription = Subscription(legacy=type_url in WHOLE_TYPES)
        self._holdings = Holdings()
        self.flight: Flight | None = None
        self.refused: dict[str, str] = {}  # name -> the version this client rejected, while it is on offer
        self._variant = variant
        self._whole = variant is Variant.SOTW and type_url in WHOLE_TYPES
        self._offer = Offer()
        self._asked: set[str] = set()  # to be sent whatever the client holds
        self._owed = False  # an answer is due even when it is empty
        self._search: dict[str, str] = {}  # name -> version of a rejected batch that hides a culprit
        self._told = 0  # names in the client's first request that it said it holds
        self._claimed = ""  # state-of-the-world: the version a reconnecting client says it accepted
        self._adopted = False
        self._last_nonce = ""
        self._repeated = False
        self._todo: Todo | None = None  # None: to be compared anew
        self._stale: set[str] | None = None  # only these names may differ from the offer; None: any

    def _touch(self, names: Iterable[str]) -> None:
        """What the client holds, wants or may be sent of `names` is about to change."""
        self._todo = None
        if self._stale is not None:
            self._stale.update(names)

    def _touch_all(self) -> None:
        self._todo = self._stale = None

    # What the client says

    @property
    def held(self) -> Mapping[str, Resource]:
        """What the client accepted, by name; a body is empty where only it knows the bytes."""
        return self._holdings.table

    @property
    def named(self) -> int:
        """How many names the client has us remember: those it subscribed to, and those it said it holds."""
        return len(self.subscription.names) + self._told

    def receive(self, request: Request) -> list[Event]:
        """Take in a request: the answer to the flight if it is one, then the change of subscription in any
        case."""
        first = not self.subscription.opened
        if first:
            self._open(request)
        answers = not first and self.flight is not None and request.nonce == self.flight.nonce
        repeats = not first and self.flight is None and request.nonce == self._last_nonce != ""
        events = self._settle(request.error) if answers else []
        change = self._subscribe(request, returning=first and bool(request.initial_versions))
        if repeats and self._variant is Variant.SOTW and change == Change() and request.error is None:
            self._repeat()
        return events

    def _repeat(self) -> None:
        """The same list under a nonce that was answered already is no ACK: the client began to watch anew.
        Once for each offer, lest a client that answers twice goes round in circles with us."""
        if not self._repeated:
            self._repeated = True
            self._asked |= self.subscription.names
            self._touch(self.subscription.names)

    def _open(self, request: Request) -> None:
        self._claimed, self._told = request.version, len(request.initial_versions)
        self._holdings.replace(
            {
                name: Resource(name=name, body=b"", version=version)
                for name, version in request.initial_versions.items()
            }
        )

    def _subscribe(self, request: Request, *, returning: bool) -> Change:
        wildcard, first = self.subscription.wildcard, not self.subscription.opened
        if self._variant is Variant.SOTW:
            change = self.subscription.replace(request.names)
        else:
            change = self.subscription.change(request.subscribe, request.unsubscribe)
        covers = self.subscription.covers
        if first or wildcard != self.subscription.wildcard:
            self._touch_all()
            self._holdings.replace({name: held for name, held in self.held.items() if covers(name)})
        else:
            self._touch(change.asked | change.dropped)
            for name in change.dropped & self.held.keys():
                del self._holdings.changeable()[name]
        # What a reconnecting client says it holds is not asked for; later, to name a thing is to ask for it
        # again.
        self._asked |= change.asked - self.held.keys() if returning else change.asked
        self._asked = {name for name in self._asked if covers(name)}
        self._owed |= (change.everything and not returning) or (self._whole and bool(change.asked))
        if self.flight is not None:
            unwanted = {resource.name for resource in self.flight.resources if not covers(resource.name)}
            self.flight.dropped |= change.dropped | unwanted
        return change

    def _settle(self, error: str | None) -> list[Event]:
        flight, self.flight = self.flight, None
        assert flight is not None
        if error is None or not flight.resources:
            self._accept(flight)
        else:
            self._refuse(flight)
        if error is None:
            return [Accepted(type_url=self.type_url, nonce=flight.nonce, resources=flight.resources)]
        return [
            Refused(type_url=self.type_url, nonce=flight.nonce, suspects=flight.resources, reason=error),
        ]

    def _accept(self, flight: Flight) -> None:
        self._touch((*(resource.name for resource in flight.resources), *flight.absent, *flight.gone))
        held = self._holdings.changeable()
        for resource in flight.resources:
            if self.subscription.covers(resource.name) and resource.name not in flight.dropped:
                held[resource.name] = resource
        # Also when the client complained: there is nothing to send it instead.
        for name in (*flight.absent, *flight.gone):
            held.pop(name, None)
        self._share()

    def _share(self) -> None:
        """A client with a wildcard and nothing left to be sent holds what is on offer, if it is as much."""
        offered = self._offer.resources
        equal = self.subscription.wildcard and len(self.held) == len(offered) and not self.refused
        if equal and self.todo == Todo():
            self._holdings.share(offered)

    def _refuse(self, flight: Flight) -> None:
        self._touch((*(resource.name for resource in flight.resources), *flight.absent))
        again = set(flight.absent)
        if len(flight.resources) == 1:
            (culprit,) = flight.resources
            self.refused[culprit.name] = culprit.version
            self._search = {}
        else:
            self._search = {resource.name: resource.version for resource in flight.resources}
            again |= flight.asked
        self._asked |= {name for name in again if self.subscription.covers(name)}

    def ask_again(self, names: Iterable[str]) -> None:
        """Send what the client holds of `names` once more, because it is about to wait for it."""
        again = self.held.keys() & set(names)
        self._asked |= again
        self._touch(again)

    # What is on offer

    def update(self, offer: Offer) -> None:
        """Replace the offer. Costs nothing when it is the same object as before, and otherwise little when it
        follows the one before."""
        if offer is self._offer:
            return
        if offer.follows(self._offer):
            self._touch(offer.news)
        else:
            self._touch_all()
        self._offer, self._repeated = offer, False
        self.refused = {
            name: version
            for name, version in self.refused.items()
            if name in offer.resources and offer.resources[name].version == version
        }

    def adopt(self) -> list[Event]:
        """Compare a reconnecting client with the first offer; what it has already counts as accepted."""
        if self._adopted:
            return []
        self._adopted = True
        self._touch_all()
        offered = {n: r for n, r in self._offer.resources.items() if self.subscription.covers(n)}
        # Only for a wildcard: the version of a list says nothing of names that left it and came back
        # meanwhile.
        everything = self._whole and self.subscription.wildcard
        if everything and self._claimed and self._claimed == _version(offered):
            self._holdings.replace(dict(offered))
            self._owed, self._asked = False, set()
        same = {n: r for n, r in offered.items() if n in self.held and self.held[n].version == r.version}
        self._holdings.changeable().update(same)
        self._share()
        return [Accepted(type_url=self.type_url, nonce="", resources=tuple(same.values()))] if same else []

    @property
    def todo(self) -> Todo:
        """What separates the client from the offer, each part sorted by name."""
        if self._todo is None:
            self._todo = self._compare()
        return self._todo

    @property
    def busy(self) -> bool:
        """Whether something is to be added or changed, or is in flight: later types wait for it."""
        return self.flight is not None or self._owed or bool(self.todo.changed or self.todo.absent)

    def _compare(self) -> Todo:
        offered, stale = self._offer.resources, self._stale
        changed = [offered[name] for name in self._candidates() if self._is_news(offered[name])]
        absent: list[str] = []
        if self._variant is Variant.DELTA:
            absent = [
                n for n in self._asked if not self._usable(n) and not (n in self.held and self._withheld(n))
            ]
        told = set(absent)
        held = self.held if stale is None else stale & self.held.keys()
        gone = [n for n in held if not self._usable(n) and not self._withheld(n) and n not in told]
        self._stale = {*(resource.name for resource in changed), *absent, *gone}
        return Todo(
            changed=tuple(sorted(changed, key=_name)), absent=tuple(sorted(absent)), gone=tuple(sorted(gone))
        )

    def _candidates(self) -> Iterable[str]:
        """Names on offer that the client wants and may not have."""
        offered, subscription = self._offer.resources, self.subscription
        if self._stale is not None:
            return [name for name in self._stale if name in offered and subscription.covers(name)]
        return offered if subscription.wildcard else subscription.names & offered.keys()

    def _is_news(self, resource: Resource) -> bool:
        if not self._usable(resource.name):
            return False
        held = self.held.get(resource.name)
        return held is None or held.version != resource.version or resource.name in self._asked

    def _usable(self, name: str) -> bool:
        offered = self._offer.resources.get(name)
        return offered is not None and self.refused.get(name) != offered.version

    def _withheld(self, name: str) -> bool:
        return name in self._offer.withheld or name in self._offer.resources

    # What is sent

    def send(self, nonce: str, now_s: float) -> Response | None:
        """The next additions and changes, or None when there is nothing or the last answer is outstanding."""
        if self.flight is not None or not self.busy:
            return None
        batch = self._next_batch()
        asked = frozenset(self._asked & {resource.name for resource in batch})
        absent = self.todo.absent
        self._asked -= asked | set(absent)
        self._owed = False
        return self._fly(Flight(nonce=nonce, sent_at_s=now_s, resources=batch, asked=asked, absent=absent))

    def remove(self, nonce: str, now_s: float) -> Response | None:
        """The removals, or None when there is nothing to say (most state-of-the-world types cannot say
        it)."""
        gone = self.todo.gone
        if self.flight is not None or not gone:
            return None
        if self._variant is Variant.SOTW and not self._whole:
            self._touch(gone)
            for name in gone:
                del self._holdings.changeable()[name]
            return None
        return self._fly(Flight(nonce=nonce, sent_at_s=now_s, resources=(), gone=gone))

    def _next_batch(self) -> tuple[Resource, ...]:
        offered = self._offer.resources
        if any(n not in offered or offered[n].version != version for n, version in self._search.items()):
            self._search = {}  # the offer moved on: most likely the culprit was found on another stream
        suspects = tuple(r for r in self.todo.changed if r.name in self._search)
        if not suspects:
            self._search = {}
            return self.todo.changed
        return suspects[: (len(suspects) + 1) // 2]

    def _fly(self, flight: Flight) -> Response:
        self.flight, self._last_nonce, self._todo = flight, flight.nonce, None
        removed = tuple(sorted((*flight.absent, *flight.gone)))
        if self._variant is Variant.DELTA:
            version = version_of(flight.resources, removed)
            return Response(
                type_url=self.type_url,
                nonce=flight.nonce,
                version=version,
                resources=flight.resources,
                removed=removed,
            )
        state = {name: resource for name, resource in self.held.items() if name not in flight.gone}
        state.update((resource.name, resource) for resource in flight.resources)
        resources = tuple(sorted(state.values(), key=_name)) if self._whole else flight.resources
        return Response(
            type_url=self.type_url, nonce=flight.nonce, version=_version(state), resources=resources
        )


def _name(resource: Resource) -> str:
    return resource.name


def _version(resources: Mapping[str, Resource]) -> str:
    return version_of(sorted(resources.values(), key=_name))
