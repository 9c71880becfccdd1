"""The scripts in LuaJIT, as Envoy runs them, against the hand-made handle of lua/spec/handle.lua."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lupa import luajit21

from controlplane.assets import read_asset
from controlplane.model.decision import Decision
from controlplane.model.policy import (
    Endpoint,
    Gateways,
    Key,
    Listener,
    Model,
    Policy,
    Pool,
    Priority,
    Route,
    SignalPolicy,
    Tenant,
    WindowLimit,
)
from controlplane.xds.lua_code import lua_code
from controlplane.xds.lua_identity import identity_script
from controlplane.xds.lua_limits import limits_script

Headers = Sequence[tuple[str, str]]
CODE = lua_code(read_asset)


class Script:
    """One filter's script in a virtual machine of its own."""

    def __init__(self, text: str) -> None:
        self.lua = luajit21.LuaRuntime(unpack_returned_tuples=True, encoding="latin-1")
        self.spec = self.lua.execute(read_asset("lua/spec/handle.lua"))
        self.lua.globals().pairs = self.spec.pairs
        self.lua.execute(text)
        self.world = self.spec.world()

    def stream(
        self,
        *,
        route: str | None = "chat",
        headers: Headers = (),
        trailers: Headers | None = None,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Stream:
        request = {
            "route": route,
            "headers": [list(entry) for entry in headers],
            "trailers": None if trailers is None else [list(entry) for entry in trailers],
            "metadata": metadata,
        }
        return Stream(self, self.spec.stream(self.world, self._table(request)))

    def counters(self) -> dict[str, int]:
        return dict(self.world.counters)

    def histograms(self) -> dict[str, list[float]]:
        return {name: list(values.values()) for name, values in self.world.histograms.items()}

    def _table(self, value: object) -> Any:
        if isinstance(value, Mapping):
            return self.lua.table_from(
                {key: self._table(entry) for key, entry in value.items() if entry is not None}
            )
        if isinstance(value, list):
            return self.lua.table_from([self._table(entry) for entry in value])
        return value


class Stream:
    """One request and its answer."""

    def __init__(self, script: Script, stream: Any) -> None:
        self._script = script
        self._stream = stream

    def request(self) -> Stream:
        self._stream.on_request(self._script.lua.globals().envoy_on_request)
        return self

    def respond(
        self, headers: Headers = ((":status", "200"),), chunks: Sequence[tuple[int, str]] = ()
    ) -> Stream:
        table = self._script._table
        self._stream.on_response(
            self._script.lua.globals().envoy_on_response,
            table([list(entry) for entry in headers]),
            table([list(chunk) for chunk in chunks]),
        )
        return self

    @property
    def refusal(self) -> dict[str, str] | None:
        """Headers of the answer the script gave itself."""
        return None if self._stream.answer is None else dict(self._stream.answer.headers)

    @property
    def refusal_body(self) -> str:
        return str(self._stream.answer.body)

    @property
    def upstream(self) -> list[tuple[str, str]]:
        """The request's headers after the script."""
        return _pairs(self._stream.request)

    @property
    def upstream_trailers(self) -> list[tuple[str, str]]:
        return _pairs(self._stream.trailers)

    @property
    def response(self) -> dict[str, str]:
        return dict(_pairs(self._stream.response))

    @property
    def body(self) -> str | None:
        body: str | None = self._stream.body
        return body

    @property
    def metadata(self) -> dict[str, Any]:
        found = self._stream.metadata.namespaces["tg"]
        return {} if found is None else dict(found)

    @property
    def pieces(self) -> int:
        """How many pieces of the body the script looked at."""
        return int(self._stream.pieces or 0)

    @property
    def errors(self) -> list[str]:
        return list(self._stream.errors.values())

    @property
    def cleared(self) -> int:
        return int(self._stream.cleared)


def _pairs(header_map: Any) -> list[tuple[str, str]]:
    return [(entry[1], entry[2]) for entry in header_map.entries.values()]


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def pool(model: str, version: str) -> Pool:
    return Pool(model=model, version=version, endpoints=(Endpoint(address="127.0.0.1", port=1),))


def policy_of(
    *,
    routes: Sequence[Route] | None = None,
    tenants: Sequence[Tenant] | None = None,
    windows: Sequence[WindowLimit] = (),
    key_windows: Mapping[str, tuple[str, ...]] | None = None,
    default_tenant: str | None = None,
    gateways_max: int = 1,
    **more: Any,
) -> Policy:
    """Two models, the first with two versions; every tenant may use every model on every charged route."""
    pools = (pool("llama", "r1"), pool("llama", "r2"), pool("mini", "2024.06"))
    models = (
        Model(name="llama", versions=("r1", "r2"), default_version="r2"),
        Model(name="mini", versions=("2024.06",), default_version="2024.06"),
    )
    every = tuple(model.name for model in models)
    routes = tuple(routes if routes is not None else [Route(id="chat", pattern="/v1/chat", models=every)])
    tenants = tuple(
        tenants
        if tenants is not None
        else [
            Tenant(
                id="acme", priority=Priority.HIGH, key_digests=(digest("sk-acme"),), jwt_values=("acme-inc",)
            ),
            Tenant(id="beta", key_digests=(digest("sk-beta"), digest("sk-beta-2"))),
        ]
    )
    keys = [
        Key(
            route=route.id,
            tenant=tenant.id,
            pool=entry.id,
            priority=tenant.priority,
            weight=1.0,
            guarantee_per_s=0.0,
            ceiling_per_s=None,
            pin_per_s=None,
            windows=(key_windows or {}).get(tenant.id, ()),
        )
        for route in routes
        for tenant in tenants
        for entry in pools
        if not route.free
        and entry.model in route.models
        and (tenant.models is None or entry.model in tenant.models or entry.id in tenant.models)
    ]
    return Policy(
        listener=Listener(),
        gateways=Gateways(max_count=gateways_max),
        signals=SignalPolicy(),
        models=models,
        pools=pools,
        routes=routes,
        tenants=tenants,
        keys=tuple(sorted(keys, key=lambda key: key.id)),
        windows=tuple(windows),
        default_tenant=default_tenant,
        **more,
    )


def decision_of(
    policy: Policy,
    rates: Mapping[str, float] | None = None,
    *,
    burst_s: Mapping[str, float] | None = None,
    gateways: int = 1,
    pools: Mapping[str, Any] | None = None,
) -> Decision:
    """10 requests/s and a burst of 1 s for each key, but for those in `rates` and `burst_s` (by Key.id)."""
    rate = np.array([(rates or {}).get(key.id, 10.0) for key in policy.keys])
    return Decision(
        now_s=0.0,
        pools=pools or {},
        rate_per_s=rate,
        demand_per_s=rate,
        fair_per_s=rate,
        reason=np.zeros(len(rate), dtype=np.int8),
        burst_s=np.array([(burst_s or {}).get(key.id, 1.0) for key in policy.keys]),
        gateways=gateways,
    )


def identity(policy: Policy | None = None, **more: Any) -> Script:
    """The identity filter of `policy`; keyword arguments make one."""
    return Script(identity_script(policy or policy_of(**more), CODE.identity))


def limits(policy: Policy | None = None, decision: Decision | None = None, **more: Any) -> Script:
    """The limits filter of `policy` and `decision`."""
    made = policy or policy_of(**more)
    return Script(limits_script(made, decision or decision_of(made), CODE.limits))
