"""Who is in a pool, or in the fleet of gateways -> ClusterLoadAssignment.

Hot: endpoints come and go with the pods, so these are official protobuf messages. Sorted, so that the order
in which members were found never changes the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Pool
from controlplane.pb import tidegate_resources_pb2 as pb
from controlplane.xds.names import GATEWAYS_CLUSTER


def endpoints(pool: Pool) -> pb.ClusterLoadAssignment:
    """The members of `pool`."""
    return _assignment(pool.id, ((member.address, member.port) for member in pool.endpoints))


def gateways(members: Sequence[GatewayMember]) -> pb.ClusterLoadAssignment:
    """The Envoys that share every limit: Envoy divides by their number; none means the full rate each."""
    return _assignment(GATEWAYS_CLUSTER, ((member.address, member.port) for member in members))


def _assignment(name: str, members: Iterable[tuple[str, int]]) -> pb.ClusterLoadAssignment:
    message = pb.ClusterLoadAssignment(cluster_name=name)
    locality = message.endpoints.add()
    for address, port in sorted(set(members)):
        socket = locality.lb_endpoints.add().endpoint.address.socket_address
        socket.address = address
        socket.port_value = port
    return message
