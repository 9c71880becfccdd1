"""What Envoy is sent: named, versioned bytes, in the order xDS wants them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

_PREFIX = "type.googleapis.com/"
CLUSTER = _PREFIX + "envoy.config.cluster.v3.Cluster"
ENDPOINT = _PREFIX + "envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER = _PREFIX + "envoy.config.listener.v3.Listener"
ROUTE = _PREFIX + "envoy.config.route.v3.RouteConfiguration"
EXTENSION = _PREFIX + "envoy.config.core.v3.TypedExtensionConfig"
RUNTIME = _PREFIX + "envoy.service.runtime.v3.Runtime"

# Make before break: what others refer to goes first; removals go in the opposite order.
SEND_ORDER: tuple[str, ...] = (CLUSTER, ENDPOINT, RUNTIME, LISTENER, ROUTE, EXTENSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One xDS resource. `body` is the serialised message of its type, `version` the hash of `body`."""

    name: str
    body: bytes
    version: str
    origin: str = ""  # file:line behind it, for NACK reports

    @staticmethod
    def of(name: str, body: bytes, *, origin: str = "") -> Resource:
        """A resource whose version is the content hash of its bytes (16 hex digits)."""
        return Resource(name=name, body=body, version=hashlib.sha256(body).hexdigest()[:16], origin=origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All resources of one moment: type URL -> name -> Resource. A type missing here has none."""

    resources: Mapping[str, Mapping[str, Resource]] = field(default_factory=dict)

    def of_type(self, type_url: str) -> Mapping[str, Resource]:
        """The resources of `type_url` by name, empty when there are none."""
        return self.resources.get(type_url, {})
