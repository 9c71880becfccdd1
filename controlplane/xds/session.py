"""One xDS stream without the stream: requests and snapshots in, responses out. Time is an argument, in
seconds.

All types of a stream share one order, make before break. Additions and changes go in SEND_ORDER, and a type
waits until the ones it may refer to are ACKed (or nobody asked for them); removals wait until nothing is
left to add and then go the opposite way, one type at a time. Two exceptions: endpoints never wait for their
clusters, because Envoy ACKs a cluster only once its endpoints have arrived; runtime keys refer to nothing,
so a kill switch never waits.

Refused: a version counter per stream instead of names. It cannot say what a client holds after a NACK.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.model.resource import CLUSTER, ENDPOINT, RUNTIME, SEND_ORDER, Resource, Snapshot
from controlplane.xds import limits
from controlplane.xds.channel import Channel
from controlplane.xds.exchange import Event, ProtocolError, Refused, Request, Response, Variant
from controlplane.xds.offer import Offer, Offers, offers

NACKS_KEPT = 20
_NOTHING = Offer()
_NEVER_WAIT = frozenset({CLUSTER, ENDPOINT, RUNTIME})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    """One resource as one client has it; None: no such version. `refused_version` is what it will not be
    sent."""

    name: str
    acked_version: str | None
    sent_version: str | None  # in flight
    refused_version: str | None
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nack:
    """One rejected response, with the words of the client. `found`: the response held one resource, the
    culprit."""

    at_s: float
    type_url: str
    names: tuple[str, ...]
    versions: tuple[str, ...]
    origins: tuple[str, ...]
    reason: str
    found: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeStatus:
    """One type on one stream; `subscribed` is ("*",) plus names."""

    type_url: str
    subscribed: tuple[str, ...]
    in_flight: str | None  # the nonce
    in_flight_since_s: float | None
    waiting: int  # resources still to be sent or removed
    resources: tuple[ResourceStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """One stream as it stands."""

    node_id: str
    variant: Variant
    settled: bool
    types: tuple[TypeStatus, ...]
    nacks: tuple[Nack, ...]


class Session:
    """The protocol of one stream.

    `patience_s`: how long an unanswered type holds back the types after it. `quiet_s`: no removal within
    this time of a type's first request, because a reconnecting client names its types one by one.
    """

    def __init__(self, variant: Variant, *, patience_s: float = 5.0, quiet_s: float = 0.5) -> None:
        self.node_id = ""
        self.nacks: deque[Nack] = deque(maxlen=NACKS_KEPT)
        self._variant = variant
        self._patience_s = patience_s
        self._quiet_s = quiet_s
        self._channels: dict[str, Channel] = {}  # in SEND_ORDER, then in order of arrival
        self.offers: Offers | None = None  # None: nothing was published yet
        self._opened_at_s = 0.0
        self._sent = 0
        self._events: list[Event] = []

    def request(self, request: Request, now_s: float) -> list[Response]:
        """Take in one message of the client; raises ProtocolError when the stream must end."""
        if not request.type_url:
            raise ProtocolError("type_url is empty; an aggregated stream cannot tell which type is meant")
        self.node_id = self.node_id or request.node_id
        events = self._channel(request.type_url, now_s).receive(request)
        limits.check_count(sum(channel.named for channel in self._channels.values()))
        self._events.extend(events)
        self.nacks.extend(_nack(event, now_s) for event in events if isinstance(event, Refused))
        return self._advance(now_s)

    def publish(
        self,
        snapshot: Snapshot,
        now_s: float,
        withheld: Mapping[str, frozenset[str]] | None = None,
    ) -> list[Response]:
        """Replace what is on offer. `withheld` (type -> names) exists, but no version of it is fit to be
        sent."""
        return self.offer(offers(snapshot, withheld or {}, self.offers), now_s)

    def offer(self, made: Offers, now_s: float) -> list[Response]:
        """`publish` of what was compared already, so that many streams share the work."""
        self.offers = made
        for type_url, channel in self._channels.items():
            channel.update(made.get(type_url, _NOTHING))
        return self._advance(now_s)

    def tick(self, now_s: float) -> list[Response]:
        """What became due by the passing of time alone."""
        return self._advance(now_s)

    def take_events(self) -> list[Event]:
        """What the client accepted and refused since the last call."""
        events, self._events = self._events, []
        return events

    @property
    def settled(self) -> bool:
        """Whether the client holds all it asked for and may have, and nothing else."""
        return self.offers is not None and not any(c.busy or c.todo.gone for c in self._channels.values())

    def unsettled_types(self) -> list[str]:
        """The types with something in flight or still to be sent."""
        return [type_url for type_url, c in self._channels.items() if c.busy or c.todo.gone]

    def status(self) -> SessionStatus:
        """Everything there is to show of this stream."""
        return SessionStatus(
            node_id=self.node_id,
            variant=self._variant,
            settled=self.settled,
            types=tuple(_type_status(channel) for channel in self._channels.values()),
            nacks=tuple(self.nacks),
        )

    def _channel(self, type_url: str, now_s: float) -> Channel:
        if type_url not in self._channels:
            if len(self._channels) >= limits.TYPES_MAX:
                raise ProtocolError(f"more than {limits.TYPES_MAX} types on one stream")
            channel = Channel(type_url, self._variant)
            if self.offers is not None:
                channel.update(self.offers.get(type_url, _NOTHING))
            self._channels[type_url] = channel
            self._channels = dict(sorted(self._channels.items(), key=lambda item: _rank(item[0])))
            self._opened_at_s = now_s
        return self._channels[type_url]

    def _advance(self, now_s: float) -> list[Response]:
        if self.offers is None:
            return []
        for channel in self._channels.values():
            self._events.extend(channel.adopt())
        return self._additions(now_s) + self._removals(now_s)

    def _additions(self, now_s: float) -> list[Response]:
        responses: list[Response] = []
        held_back = False
        for type_url, channel in self._channels.items():
            if not held_back or type_url in _NEVER_WAIT:
                response = channel.send(self._nonce(), now_s)
                responses.extend(self._sending(response))
                if response and type_url == CLUSTER:
                    self._warm(channel)
            held_back |= channel.busy and not self._overdue(channel, now_s)
        return responses

    def _warm(self, clusters: Channel) -> None:
        """An updated cluster waits for its endpoints anew, and Envoy does not ask for what it has already."""
        if clusters.flight is not None and ENDPOINT in self._channels:
            names = [resource.name for resource in clusters.flight.resources]
            self._channels[ENDPOINT].ask_again(names)

    def _removals(self, now_s: float) -> list[Response]:
        """Removals of one type; the next type's follow when these are ACKed."""
        quiet = now_s - self._opened_at_s >= self._quiet_s
        if not quiet or any(channel.busy for channel in self._channels.values()):
            return []
        for channel in reversed(self._channels.values()):
            if response := channel.remove(self._nonce(), now_s):
                return self._sending(response)
        return []

    def _overdue(self, channel: Channel, now_s: float) -> bool:
        return channel.flight is not None and now_s - channel.flight.sent_at_s >= self._patience_s

    def _nonce(self) -> str:
        return str(self._sent + 1)

    def _sending(self, response: Response | None) -> list[Response]:
        if response is None:
            return []
        self._sent += 1
        return [response]


def _rank(type_url: str) -> int:
    return SEND_ORDER.index(type_url) if type_url in SEND_ORDER else len(SEND_ORDER)


def _nack(refused: Refused, now_s: float) -> Nack:
    return Nack(
        at_s=now_s,
        type_url=refused.type_url,
        names=tuple(resource.name for resource in refused.suspects),
        versions=tuple(resource.version for resource in refused.suspects),
        origins=tuple(resource.origin for resource in refused.suspects),
        reason=refused.reason,
        found=len(refused.suspects) == 1,
    )


def _type_status(channel: Channel) -> TypeStatus:
    flight, subscription, todo = channel.flight, channel.subscription, channel.todo
    sent = {resource.name: resource for resource in flight.resources} if flight else {}
    names = sorted(channel.held.keys() | sent.keys() | channel.refused.keys())
    return TypeStatus(
        type_url=channel.type_url,
        subscribed=(("*",) if subscription.wildcard else ()) + tuple(sorted(subscription.names)),
        in_flight=flight.nonce if flight else None,
        in_flight_since_s=flight.sent_at_s if flight else None,
        waiting=len(todo.changed) + len(todo.absent) + len(todo.gone),
        resources=tuple(
            _resource_status(name, channel.held.get(name), sent.get(name), channel.refused.get(name))
            for name in names
        ),
    )


def _resource_status(
    name: str, held: Resource | None, sent: Resource | None, refused: str | None
) -> ResourceStatus:
    return ResourceStatus(
        name=name,
        acked_version=held.version if held else None,
        sent_version=sent.version if sent else None,
        refused_version=refused,
        origin=next((resource.origin for resource in (sent, held) if resource), ""),
    )
