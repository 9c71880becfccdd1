"""The state-of-the-world variant as bytes: DiscoveryRequest -> Request, Response -> DiscoveryResponse."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from controlplane.pb import tidegate_discovery_pb2 as pb
from controlplane.xds import limits
from controlplane.xds.exchange import ProtocolError, Request, Response


def read(message: bytes) -> Request:
    """The request in `message`; raises ProtocolError when it is not one."""
    try:
        parsed = pb.DiscoveryRequest.FromString(message)
    except DecodeError as error:
        raise ProtocolError("not a DiscoveryRequest") from error
    limits.check_count(len(parsed.resource_names))
    request = Request(
        type_url=parsed.type_url,
        node_id=parsed.node.id,
        nonce=parsed.response_nonce,
        error=limits.shortened(parsed.error_detail.message) if parsed.HasField("error_detail") else None,
        names=tuple(parsed.resource_names),
        version=parsed.version_info,
    )
    limits.check(request)
    return request


def body(response: Response) -> bytes:
    """The serialised response without its nonce: the part that many streams can share."""
    return pb.DiscoveryResponse(
        version_info=response.version,
        resources=[
            pb.Any(type_url=response.type_url, value=resource.body).SerializeToString()
            for resource in response.resources
        ],
        type_url=response.type_url,
    ).SerializeToString()


def nonce(response: Response) -> bytes:
    """The nonce field, to be appended to `body`."""
    return pb.DiscoveryResponse(nonce=response.nonce).SerializeToString()
