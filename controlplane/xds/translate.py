"""Policy and decision -> Snapshot: everything Envoy is sent, and nothing encoded twice.

A tick changes one resource, the limits script (and the runtime layer when the mode changes); a reload
changes what it names. The `Translator` remembers each resource with the inputs it came from and hands out
the same object as long as they are equal, so that who publishes can compare by identity and by version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import betterproto2
from google.protobuf.message import Message

from controlplane.model import resource as types
from controlplane.model.decision import Decision
from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Mode, Policy, PolicyService, Pool, SourceRef
from controlplane.model.resource import Resource, Snapshot
from controlplane.xds import codec, names
from controlplane.xds.cluster import cluster
from controlplane.xds.endpoints import endpoints, gateways
from controlplane.xds.extensions import jwt_filter
from controlplane.xds.listener import listener
from controlplane.xds.lua_breaker import breakers
from controlplane.xds.lua_code import LuaCode
from controlplane.xds.lua_identity import closed_script, identity_script
from controlplane.xds.lua_limits import failures, limits_script
from controlplane.xds.quota import policy_cluster
from controlplane.xds.routes import route_configuration
from controlplane.xds.runtime import runtime


def snapshot(
    policy: Policy, decision: Decision, members: Sequence[GatewayMember], *, code: LuaCode
) -> Snapshot:
    """One translation without a memory; a control plane keeps a `Translator`."""
    return Translator(code).snapshot(policy, decision, members)


class Translator:
    """Translates tick after tick. Not for use from several threads."""

    def __init__(self, code: LuaCode) -> None:
        self._code = code
        self._known: dict[tuple[str, str], tuple[tuple[object, ...], Resource]] = {}
        self._last = Snapshot()

    def snapshot(self, policy: Policy, decision: Decision, members: Sequence[GatewayMember]) -> Snapshot:
        """The resources of this moment; the same Snapshot object when nothing changed."""
        resources = {
            types.CLUSTER: self._clusters(policy),
            types.ENDPOINT: self._endpoints(policy.pools, tuple(sorted(members))),
            types.RUNTIME: self._runtime(policy),
            types.LISTENER: self._listener(policy),
            types.ROUTE: self._routes(policy),
            types.EXTENSION: self._extensions(policy, decision),
        }
        self._forget(resources)
        if not _same(resources, self._last.resources):
            self._last = Snapshot(resources=resources)
        return self._last

    def _clusters(self, policy: Policy) -> dict[str, Resource]:
        found = {
            pool.id: self._once(
                types.CLUSTER, pool.id, _cluster_inputs(pool), partial(_encoded, cluster, pool), pool.ref
            )
            for pool in policy.pools
        }
        if policy.has_quotas:
            name, inputs = names.POLICY_CLUSTER, _service_inputs(policy.policy_service)
            build = partial(_encoded, policy_cluster, policy.policy_service)
            found[name] = self._once(types.CLUSTER, name, inputs, build)
        return found

    def _endpoints(self, pools: Sequence[Pool], members: tuple[GatewayMember, ...]) -> dict[str, Resource]:
        fleet = names.GATEWAYS_CLUSTER
        found = {
            pool.id: self._once(
                types.ENDPOINT, pool.id, (pool.endpoints,), partial(_encoded, endpoints, pool), pool.ref
            )
            for pool in pools
            if not pool.dns
        }
        found[fleet] = self._once(types.ENDPOINT, fleet, (members,), partial(_encoded, gateways, members))
        return found

    def _runtime(self, policy: Policy) -> dict[str, Resource]:
        name, mode = names.RUNTIME_LAYER, policy.mode
        return {name: self._once(types.RUNTIME, name, (mode,), partial(_encoded, runtime, mode))}

    def _listener(self, policy: Policy) -> dict[str, Resource]:
        name, inputs = names.LISTENER_NAME, (policy.listener, policy.policy_service, closed_script())
        return {name: self._once(types.LISTENER, name, inputs, partial(_encoded, listener, *inputs))}

    def _routes(self, policy: Policy) -> dict[str, Resource]:
        name = names.ROUTE_CONFIG_NAME
        inputs = (
            policy.routes,
            policy.models,
            policy.cors_allow_origins,
            policy.listener.max_request_bytes,
        )
        build = partial(_encoded, route_configuration, *inputs)
        return {name: self._once(types.ROUTE, name, inputs, build, _first(policy))}

    def _extensions(self, policy: Policy, decision: Decision) -> dict[str, Resource]:
        code = self._code
        made: dict[str, tuple[tuple[object, ...], Callable[[], bytes]]] = {
            names.JWT_FILTER: ((policy.jwt,), partial(_encoded, jwt_filter, policy.jwt)),
            names.IDENTITY_FILTER: (
                (policy,),
                lambda: _script(names.IDENTITY_FILTER, identity_script(policy, code.identity)),
            ),
            names.LIMITS_FILTER: (
                (policy, *_limits_inputs(decision, policy.mode)),
                lambda: _script(names.LIMITS_FILTER, limits_script(policy, decision, code.limits)),
            ),
        }
        return {name: self._once(types.EXTENSION, name, *what) for name, what in made.items()}

    def _once(
        self,
        type_url: str,
        name: str,
        inputs: tuple[object, ...],
        build: Callable[[], bytes],
        ref: SourceRef | None = None,
    ) -> Resource:
        """The resource of `inputs`: remembered when they are equal, or when their bytes turn out to be."""
        known = self._known.get((type_url, name))
        if known is not None and known[0] == inputs:
            return known[1]
        made = Resource.of(name, build(), origin=_origin(ref))
        if known is not None and known[1] == made:
            made = known[1]
        self._known[type_url, name] = (inputs, made)
        return made

    def _forget(self, resources: Mapping[str, Mapping[str, Resource]]) -> None:
        """Keep no memory of pools that left."""
        gone = [key for key in self._known if key[1] not in resources[key[0]]]
        for key in gone:
            del self._known[key]


def _cluster_inputs(pool: Pool) -> tuple[object, ...]:
    """What a Cluster is made of; members only where they are part of it, rates never."""
    named = pool.endpoints if pool.dns else ()
    return (pool.id, pool.dns, pool.http2, pool.connect_timeout_s, pool.max_requests, named)


def _service_inputs(service: PolicyService) -> tuple[object, ...]:
    return (service.address, service.port)


def _limits_inputs(decision: Decision, mode: Mode) -> tuple[object, ...]:
    """The part of a decision that reaches Envoy; its reasons and its time do not."""
    told = tuple(failures(decision).items())
    rates, classes = decision.rate_per_s.tobytes(), decision.burst_s.tobytes()
    return (rates, classes, decision.gateways, told, breakers(decision, mode))


def _encoded(build: Callable[..., betterproto2.Message | Message], *inputs: object) -> bytes:
    return codec.encode(build(*inputs))


def _script(name: str, source: str) -> bytes:
    return codec.encode(codec.lua_filter(name, source))


def _origin(ref: SourceRef | None) -> str:
    return str(ref) if ref is not None and ref.file else ""


def _first(policy: Policy) -> SourceRef | None:
    return policy.routes[0].ref if policy.routes else None


def _same(new: Mapping[str, Mapping[str, Resource]], old: Mapping[str, Mapping[str, Resource]]) -> bool:
    return new.keys() == old.keys() and all(
        new[kind].keys() == old[kind].keys() and all(new[kind][name] is old[kind][name] for name in new[kind])
        for kind in new
    )


@lru_cache(maxsize=1024)
def gateways_version(members: tuple[GatewayMember, ...]) -> str:
    """The version of the fleet's own endpoints for these members."""
    return Resource.of(names.GATEWAYS_CLUSTER, codec.encode(gateways(members))).version
