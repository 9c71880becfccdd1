"""What passes between one xDS stream and its session: requests, responses, and what the session learned
from them.

The same words serve both variants of the protocol, delta and state-of-the-world; `delta.py` and `sotw.py`
turn them into bytes and back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controlplane.model.resource import Resource


class Variant(StrEnum):
    """Delta sends changes; state-of-the-world sends all clusters and listeners each time."""

    DELTA = "delta"
    SOTW = "sotw"


class ProtocolError(Exception):
    """The client sent what the protocol forbids; the stream must end with INVALID_ARGUMENT."""


class Forbidden(ProtocolError):
    """The client may not be who it says it is; the stream must end with PERMISSION_DENIED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One message of the client. `names` belongs to state-of-the-world, the three after it to delta."""

    type_url: str
    node_id: str = ""  # often only in the first message of a stream
    nonce: str = ""  # of the response this accepts or, with `error`, rejects
    error: str | None = None  # the client's words; None: no complaint
    names: tuple[str, ...] = ()
    version: str = ""  # state-of-the-world: the last version accepted
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = field(default_factory=dict)  # what a reconnecting client holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One message to the client. `nonce` is unique within its stream only, so the rest can be shared."""

    type_url: str
    nonce: str
    version: str
    resources: tuple[Resource, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The client ACKed these resources, or showed at its reconnect (nonce "") that it had them already."""

    type_url: str
    nonce: str
    resources: tuple[Resource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The client NACKed a response. One suspect is the culprit; several will be offered again in halves."""

    type_url: str
    nonce: str
    suspects: tuple[Resource, ...]
    reason: str  # for people; it carries random salts, so nothing is ever decided on it


Event = Accepted | Refused


def version_of(resources: Iterable[Resource], removed: Iterable[str] = ()) -> str:
    """A hash (16 hex digits) of names and versions: equal sets have equal versions in every process."""
    lines = [f"{resource.name}\0{resource.version}\n" for resource in resources]
    lines.extend(f"{name}\0\n" for name in removed)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
