"""Who waits for what: the snapshot that is published, and the streams of the Envoys that follow it.

Everything here runs on one event loop and never awaits between reading a state and changing it. A
publication is handed to every stream's session at once; what a session answers is encoded once per distinct
content and put into that stream's outbox, which the protocol bounds to a response per type: a slow reader
holds up nobody.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType

from controlplane.model.resource import Resource, Snapshot
from controlplane.xds import delta, limits, sotw
from controlplane.xds.exchange import (
    Accepted,
    Event,
    Forbidden,
    ProtocolError,
    Refused,
    Response,
    Variant,
    version_of,
)
from controlplane.xds.offer import Offers, offers
from controlplane.xds.quarantine import Quarantine, Quarantined, View
from controlplane.xds.session import Session, SessionStatus

BODIES_KEPT = 32
OFFERS_KEPT = 32
_WIRE: Mapping[Variant, ModuleType] = {Variant.DELTA: delta, Variant.SOTW: sotw}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedNode:
    """One client with an open stream. `peer` is its address as gRPC gives it; times are the injected
    clock's."""

    id: str
    peer: str
    variant: Variant
    connected_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """One response put on its way."""

    node: ConnectedNode
    type_url: str
    resources: int
    removed: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """One response accepted. `latency_s` counts from the publication (or the client's request, when
    later)."""

    node: ConnectedNode
    type_url: str
    resources: int
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One response rejected. With one suspect it is the culprit; `reason` is the client's text, for people
    only."""

    node: ConnectedNode
    type_url: str
    suspects: tuple[Resource, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a reconnecting client says it holds (delta only): version by resource name."""

    node: ConnectedNode
    type_url: str
    versions: Mapping[str, str]


def _ignore(_: object) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Called synchronously, in order. `on_connect` runs before the client's first answer: what it
    publishes is what the new client gets. `on_held` runs before the request that says so is answered.
    `on_settled` gets the seconds from the first difference between what is wanted and what a client has
    until no client differs.
    """

    on_connect: Callable[[ConnectedNode], None] = _ignore
    on_disconnect: Callable[[ConnectedNode], None] = _ignore
    on_held: Callable[[Held], None] = _ignore
    on_push: Callable[[Push], None] = _ignore
    on_ack: Callable[[Ack], None] = _ignore
    on_nack: Callable[[Rejection], None] = _ignore
    on_settled: Callable[[float], None] = _ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """One connected client and its session."""

    node: ConnectedNode
    session: SessionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatus:
    """All there is to show; `dataclasses.asdict` turns it into JSON."""

    published: Mapping[str, int]  # type URL -> resources
    published_at_s: float | None
    streams: tuple[StreamStatus, ...]
    quarantine: tuple[Quarantined, ...]


class Stream:
    """One open stream: bytes in by `receive`, bytes out of `outbox`.

    `certified` are the node ids its client's certificate speaks for; None: any.
    """

    def __init__(
        self, cache: Cache, variant: Variant, peer: str, certified: frozenset[str] | None = None
    ) -> None:
        self.node: ConnectedNode | None = None  # unknown until the first message
        self.session = Session(variant)
        self.outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.variant = variant
        self.peer = peer
        self.certified = certified
        self.waiting_since_s: dict[str, float] = {}  # type -> when it last began to differ from the client's
        self._cache = cache

    def receive(self, message: bytes) -> None:
        """Take in one message of the client; raises ProtocolError when the stream must end."""
        self._cache.receive(self, message)


class Cache:
    """The published snapshot and its followers."""

    def __init__(self, *, clock: Callable[[], float], hooks: Hooks | None = None) -> None:
        self._clock = clock
        self._hooks = hooks or Hooks()
        self._quarantine = Quarantine()
        self._published: Snapshot | None = None
        self._published_at_s = 0.0
        self._streams: dict[Stream, None] = {}  # in order of arrival
        self._unsettled: set[Stream] = set()
        self._was_settled = True
        self._unsettled_since_s = 0.0
        self._waiters: list[asyncio.Future[None]] = []
        self._bodies: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
        self._offers: OrderedDict[int, tuple[View, Offers]] = OrderedDict()  # by the identity of the view

    # For the application

    def publish(self, snapshot: Snapshot) -> None:
        """Make `snapshot` what every client shall have. Nothing is sent where nothing changed."""
        now_s = self._clock()
        if self._published is None:
            self._unsettled_since_s = now_s
        self._published, self._published_at_s = snapshot, now_s
        self._quarantine.publish(snapshot)
        self._offer(now_s)
        if self.settled:  # nobody wanted what changed
            self._quarantine.forget()

    @property
    def ready(self) -> bool:
        """Whether anything was published yet; before that, requests wait."""
        return self._published is not None

    @property
    def nodes(self) -> tuple[ConnectedNode, ...]:
        """The connected clients in order of arrival."""
        return tuple(stream.node for stream in self._streams if stream.node is not None)

    @property
    def settled(self) -> bool:
        """Whether every connected client has all it asked for of what is published (quarantine aside)."""
        return self.ready and not self._unsettled

    async def wait_acked(self, timeout_s: float | None = None) -> bool:
        """Wait until `settled`; False when that takes longer than `timeout_s`."""
        if self.settled:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True

    def status(self) -> CacheStatus:
        """Streams, versions, what is in flight, what was rejected and why."""
        published = self._published.resources if self._published else {}
        return CacheStatus(
            published={type_url: len(resources) for type_url, resources in published.items()},
            published_at_s=self._published_at_s if self._published else None,
            streams=tuple(
                StreamStatus(node=stream.node, session=stream.session.status())
                for stream in self._streams
                if stream.node is not None
            ),
            quarantine=self._quarantine.entries(),
        )

    # For the transport

    def join(self, variant: Variant, peer: str, certified: frozenset[str] | None = None) -> Stream:
        """A new stream; nothing is known of its client yet, but the ids its certificate speaks for."""
        stream = Stream(self, variant, peer, certified)
        self._streams[stream] = None
        return stream

    def leave(self, stream: Stream) -> None:
        """The stream is closed, by whichever side."""
        if stream not in self._streams:
            return
        del self._streams[stream]
        self._unsettled.discard(stream)
        if stream.node is not None:
            self._hooks.on_disconnect(stream.node)
            self._check_settled(self._clock())

    def receive(self, stream: Stream, message: bytes) -> None:
        """One message of `stream`'s client; raises ProtocolError when the stream must end."""
        if stream.outbox.qsize() > limits.UNREAD_MAX:
            raise ProtocolError("answers to responses that were not read")
        request = _WIRE[stream.variant].read(message)
        now_s = self._clock()
        if stream.certified is not None and (request.node_id or stream.node is None):
            _check_identity(request.node_id, stream.certified)
        if stream.node is None:
            self._arrive(stream, request.node_id, now_s)
        if request.initial_versions and stream.node is not None:
            self._hooks.on_held(
                Held(node=stream.node, type_url=request.type_url, versions=request.initial_versions)
            )
        responses = stream.session.request(request, now_s)
        events = stream.session.take_events()
        changed = self._accepted(stream, events, now_s)
        self._send(stream, responses, now_s)
        refusals = [self._refused(stream, event, now_s) for event in events if isinstance(event, Refused)]
        if changed or any(refusals):
            self._offer(now_s)
        self._check_settled(now_s)

    def tick(self) -> None:
        """What became due by the passing of time alone. Call it a few times per second."""
        now_s = self._clock()
        for stream in tuple(self._unsettled):
            self._send(stream, stream.session.tick(now_s), now_s)
        self._check_settled(now_s)

    def _arrive(self, stream: Stream, node_id: str, now_s: float) -> None:
        node = ConnectedNode(id=node_id, peer=stream.peer, variant=stream.variant, connected_at_s=now_s)
        stream.node = node
        self._hooks.on_connect(node)
        if self._published is not None:
            self._send(stream, stream.session.offer(self._offers_for(stream, node_id), now_s), now_s)

    def _offer(self, now_s: float) -> None:
        changed = False
        for stream in tuple(self._streams):
            if stream.node is not None:
                made = self._offers_for(stream, stream.node.id)
                self._send(stream, stream.session.offer(made, now_s), now_s)
                changed |= self._accepted(stream, stream.session.take_events(), now_s)
        if changed:  # a quarantine ended, which can happen to each entry once
            self._offer(now_s)
        self._check_settled(now_s)

    def _offers_for(self, stream: Stream, node_id: str) -> Offers:
        """What `stream` may be sent; made once for all streams with the same view, which are nearly all."""
        view = self._quarantine.view(node_id)
        _, made = self._offers.get(id(view), (None, None))
        if made is None:
            made = offers(view.snapshot, view.withheld, stream.session.offers)
            self._offers[id(view)] = (view, made)  # with the view, lest its identity passes to another
            if len(self._offers) > OFFERS_KEPT:
                self._offers.popitem(last=False)
        return made

    def _accepted(self, stream: Stream, events: Iterable[Event], now_s: float) -> bool:
        """Take note of what was accepted; True when that changes what others may be sent."""
        changed = False
        for event in events:
            if not isinstance(event, Accepted):
                continue
            changed |= self._quarantine.accept(event.type_url, event.resources)
            if event.nonce and stream.node is not None:
                since_s = stream.waiting_since_s.pop(event.type_url, now_s)
                self._hooks.on_ack(
                    Ack(
                        node=stream.node,
                        type_url=event.type_url,
                        resources=len(event.resources),
                        latency_s=now_s - since_s,
                    )
                )
        return changed

    def _refused(self, stream: Stream, event: Refused, now_s: float) -> bool:
        assert stream.node is not None
        self._hooks.on_nack(
            Rejection(node=stream.node, type_url=event.type_url, suspects=event.suspects, reason=event.reason)
        )
        if len(event.suspects) != 1:
            return False
        (culprit,) = event.suspects
        return self._quarantine.refuse(event.type_url, culprit, event.reason, stream.node.id, now_s)

    def _send(self, stream: Stream, responses: Iterable[Response], now_s: float) -> None:
        for response in responses:
            message = self._encode(stream.variant, response)
            stream.outbox.put_nowait(message)
            if stream.node is not None:
                self._hooks.on_push(
                    Push(
                        node=stream.node,
                        type_url=response.type_url,
                        resources=len(response.resources),
                        removed=len(response.removed),
                        size_bytes=len(message),
                    )
                )
        self._note_waiting(stream, now_s)

    def _note_waiting(self, stream: Stream, now_s: float) -> None:
        """Remember since when each type differs from what the client has, and whether any does."""
        waiting = set(stream.session.unsettled_types())
        since_s = stream.waiting_since_s
        stream.waiting_since_s = {type_url: since_s.get(type_url, now_s) for type_url in waiting}
        if stream.session.settled:
            self._unsettled.discard(stream)
        elif stream in self._streams:
            self._unsettled.add(stream)

    def _check_settled(self, now_s: float) -> None:
        was_settled, self._was_settled = self._was_settled, self.settled
        if not self.settled:
            self._unsettled_since_s = now_s if was_settled else self._unsettled_since_s
            return
        if not was_settled:
            self._quarantine.forget()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        if not was_settled:
            self._hooks.on_settled(now_s - self._unsettled_since_s)

    def _encode(self, variant: Variant, response: Response) -> bytes:
        """The bytes of `response`; all but its nonce are made once and shared by all streams."""
        delta_only = variant is Variant.DELTA  # whose version is made of just this
        content = "" if delta_only else version_of(response.resources, response.removed)
        key = (variant, response.type_url, response.version, content)
        body = self._bodies.pop(key, None)
        if body is None:
            body = _WIRE[variant].body(response)
        self._bodies[key] = body
        if len(self._bodies) > BODIES_KEPT:
            self._bodies.popitem(last=False)
        nonce: bytes = _WIRE[variant].nonce(response)
        return body + nonce


def _check_identity(node_id: str, certified: frozenset[str]) -> None:
    if node_id not in certified:
        shown = ", ".join(sorted(certified)) or "nobody"
        raise Forbidden(f"node.id {node_id!r} is not in the client's certificate, which speaks for {shown}")
