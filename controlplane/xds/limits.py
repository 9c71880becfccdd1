"""What a client may send. Whatever it does, one stream costs a bounded amount of memory.

The bounds are far above what any Envoy needs, and constants: nobody has to tune them. Without them a client
could name a million resources or types, each of which the control plane would remember for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.xds.exchange import ProtocolError, Request

MESSAGE_BYTES_MAX = 8 * 1024 * 1024  # about 100,000 names with versions at a reconnect
NAMES_MAX = 100_000  # names and held versions of all types on one stream
TYPES_MAX = 32
TEXT_BYTES_MAX = 512  # a name, a version, a nonce, a type URL
NODE_ID_BYTES_MAX = 256
REASON_CHARS_KEPT = 4096  # of a client's complaint
UNREAD_MAX = 2 * TYPES_MAX  # an honest client has one response of each type to read


def check_count(count: int) -> None:
    """Raises ProtocolError when one request or stream names too much."""
    if count > NAMES_MAX:
        raise ProtocolError(f"{count} resource names; at most {NAMES_MAX} on one stream")


def check(request: Request) -> None:
    """Raises ProtocolError when a text of `request` is longer than it may be."""
    if len(request.node_id.encode()) > NODE_ID_BYTES_MAX:
        raise ProtocolError(f"node.id is longer than {NODE_ID_BYTES_MAX} bytes")
    if not request.node_id.isprintable():
        raise ProtocolError("node.id holds characters that cannot be printed")
    _check_texts("type_url", [request.type_url])
    _check_texts("response_nonce or version_info", [request.nonce, request.version])
    for names in (request.names, request.subscribe, request.unsubscribe, request.initial_versions):
        _check_texts("a resource name", names)
    _check_texts("a version in initial_resource_versions", request.initial_versions.values())


def shortened(reason: str) -> str:
    """As much of a client's complaint as is remembered."""
    return reason if len(reason) <= REASON_CHARS_KEPT else reason[:REASON_CHARS_KEPT] + " ..."


def _check_texts(what: str, texts: Iterable[str]) -> None:
    # Counting characters first: a text of few of them needs no encoding to be known as short.
    if any(4 * len(text) > TEXT_BYTES_MAX and len(text.encode()) > TEXT_BYTES_MAX for text in texts):
        raise ProtocolError(f"{what} is longer than {TEXT_BYTES_MAX} bytes")
