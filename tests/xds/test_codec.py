"""The fast route and the complete route give the same bytes, and read back."""

from __future__ import annotations

from typing import Any

import betterproto2
import pytest
from envoy_data_plane.envoy.config.core.v3 import Address, DataSource, SocketAddress, TypedExtensionConfig
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua
from envoy_data_plane.envoy.service.runtime.v3 import Runtime
from envoy_data_plane.google.protobuf import Struct
from golden_cases import CASES
from policies import POOL

from controlplane.model import policy
from controlplane.model import resource as types
from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Mode
from controlplane.xds import codec
from controlplane.xds.endpoints import endpoints, gateways
from controlplane.xds.lua_code import LuaCode
from controlplane.xds.runtime import runtime
from controlplane.xds.translate import snapshot


def _assignment(name: str, *members: tuple[str, int]) -> ClusterLoadAssignment:
    return ClusterLoadAssignment(
        cluster_name=name,
        endpoints=[
            LocalityLbEndpoints(
                lb_endpoints=[
                    LbEndpoint(
                        endpoint=Endpoint(
                            address=Address(socket_address=SocketAddress(address=host, port_value=port))
                        )
                    )
                    for host, port in members
                ]
            )
        ],
    )


def _runtime(numerator: int) -> Runtime:
    fraction = {"denominator": "HUNDRED", "numerator": numerator}
    return Runtime(name="tidegate", layer=Struct.from_dict({"tidegate.enforced": fraction}))


def _script(name: str, source: str) -> TypedExtensionConfig:
    lua = Lua(default_source_code=DataSource(inline_string=source))
    return TypedExtensionConfig(name=name, typed_config=codec.pack(lua))


_TWO = policy.Pool(
    model="m",
    version="r1",
    endpoints=(policy.Endpoint(address="b", port=2), policy.Endpoint(address="a", port=1)),
)
_NONE = policy.Pool(model="m", version="r1", endpoints=())


@pytest.mark.parametrize(
    ("fast", "complete"),
    [
        (endpoints(POOL), _assignment("m:r1", ("127.0.0.1", 9001))),
        (endpoints(_TWO), _assignment("m:r1", ("a", 1), ("b", 2))),
        (endpoints(_NONE), _assignment("m:r1")),
        (
            gateways([GatewayMember(id="x", address="::1", port=7)]),
            _assignment("tidegate_gateways", ("::1", 7)),
        ),
        (runtime(Mode.ENFORCE), _runtime(100)),
        (runtime(Mode.OBSERVE), _runtime(0)),
        (codec.lua_filter("f", "print('ü')\n" * 1000), _script("f", "print('ü')\n" * 1000)),
        (codec.lua_filter("f", ""), _script("f", "")),
    ],
    ids=["one", "two", "no endpoint", "fleet", "enforce", "observe", "script", "empty script"],
)
def test_both_routes_give_the_same_bytes(fast: Any, complete: betterproto2.Message) -> None:
    assert codec.encode(fast) == codec.encode(complete)


@pytest.mark.parametrize("name", CASES)
def test_what_is_sent_reads_back_without_loss(name: str) -> None:
    case = CASES[name]()
    made = snapshot(case.policy, case.decision, case.members, code=LuaCode(identity="-- i", limits="-- l"))
    for kind in types.SEND_ORDER:
        for resource in made.of_type(kind).values():
            again = codec.parse(kind, resource.body)
            assert codec.encode(again) == resource.body
