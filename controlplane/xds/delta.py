"""The delta variant as bytes: DeltaDiscoveryRequest -> Request, Response -> DeltaDiscoveryResponse."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from controlplane.model.resource import Resource
from controlplane.pb import tidegate_discovery_pb2 as pb
from controlplane.xds import limits
from controlplane.xds.exchange import ProtocolError, Request, Response


def read(message: bytes) -> Request:
    """The request in `message`; raises ProtocolError when it is not one."""
    try:
        parsed = pb.DeltaDiscoveryRequest.FromString(message)
    except DecodeError as error:
        raise ProtocolError("not a DeltaDiscoveryRequest") from error
    limits.check_count(
        len(parsed.resource_names_subscribe)
        + len(parsed.resource_names_unsubscribe)
        + len(parsed.initial_resource_versions)
    )
    request = Request(
        type_url=parsed.type_url,
        node_id=parsed.node.id,
        nonce=parsed.response_nonce,
        error=limits.shortened(parsed.error_detail.message) if parsed.HasField("error_detail") else None,
        subscribe=tuple(parsed.resource_names_subscribe),
        unsubscribe=tuple(parsed.resource_names_unsubscribe),
        initial_versions=dict(parsed.initial_resource_versions),
    )
    limits.check(request)
    return request


def body(response: Response) -> bytes:
    """The serialised response without its nonce: the part that many streams can share."""
    return pb.DeltaDiscoveryResponse(
        system_version_info=response.version,
        resources=[_element(response.type_url, resource) for resource in response.resources],
        type_url=response.type_url,
        removed_resources=response.removed,
    ).SerializeToString()


def nonce(response: Response) -> bytes:
    """The nonce field, to be appended to `body`."""
    return pb.DeltaDiscoveryResponse(nonce=response.nonce).SerializeToString()


def _element(type_url: str, resource: Resource) -> bytes:
    wrapped = pb.Any(type_url=type_url, value=resource.body).SerializeToString()
    return pb.Resource(version=resource.version, resource=wrapped, name=resource.name).SerializeToString()
