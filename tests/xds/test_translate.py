"""A translation is exact, the same for equal inputs, and does nothing twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from golden_cases import CASES
from hypothesis import given
from hypothesis import strategies as st
from policies import POOL, decision, policy, tenant

from controlplane.model import resource as types
from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Endpoint, Gateways, Mode, Policy, Route, SourceRef
from controlplane.model.resource import Snapshot
from controlplane.xds import names
from controlplane.xds.lua_code import LuaCode
from controlplane.xds.translate import Translator, snapshot

CODE = LuaCode(identity="-- identity\n", limits="-- limits\n")
GATEWAY = GatewayMember(id="gw0")


def changed(before: Snapshot, after: Snapshot) -> set[tuple[str, str]]:
    """(kind, name) of what came, went or changed; kinds by their last word."""
    found = {}
    for kind in types.SEND_ORDER:
        old, new = before.of_type(kind), after.of_type(kind)
        found |= {
            (kind.rpartition(".")[2], name): None
            for name in old.keys() | new.keys()
            if old.get(name) != new.get(name)
        }
    return set(found)


@pytest.mark.parametrize("name", CASES)
def test_equal_inputs_give_equal_bytes(name: str) -> None:
    first, second = CASES[name](), CASES[name]()
    assert snapshot(first.policy, first.decision, first.members, code=CODE) == snapshot(
        second.policy, second.decision, second.members, code=CODE
    )


def test_nothing_changed_is_the_same_object() -> None:
    translator, made = Translator(CODE), policy()
    first = translator.snapshot(made, decision(made, 10.0), [GATEWAY])
    assert translator.snapshot(policy(), decision(made, 10.0), [GATEWAY]) is first


def test_a_tick_changes_the_limits_script_alone() -> None:
    translator, made = Translator(CODE), policy()
    first = translator.snapshot(made, decision(made, 10.0), [GATEWAY])
    second = translator.snapshot(made, decision(made, 11.0), [GATEWAY])
    assert changed(first, second) == {("TypedExtensionConfig", names.LIMITS_FILTER)}
    for kind in types.SEND_ORDER:
        for name, resource in first.of_type(kind).items():
            if name != names.LIMITS_FILTER:
                assert second.of_type(kind)[name] is resource


_LIMITS = ("TypedExtensionConfig", names.LIMITS_FILTER)
_IDENTITY = ("TypedExtensionConfig", names.IDENTITY_FILTER)
_ROUTES = ("RouteConfiguration", names.ROUTE_CONFIG_NAME)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (policy(["acme", "zeta"]), {_LIMITS, _IDENTITY}),
        (policy([tenant("acme", jwt_values=("x",))]), {_IDENTITY}),
        (policy(mode=Mode.OBSERVE), {("Runtime", "tidegate")}),
        (policy(cors_allow_origins=("https://a",)), {_ROUTES}),
        (policy(routes=(Route(id="c", pattern="/c", models=("m",)),)), {_ROUTES, _LIMITS, _IDENTITY}),
        (policy(pools=(replace(POOL, max_requests=5),)), {("Cluster", "m:r1")}),
        (
            policy(pools=(replace(POOL, endpoints=(Endpoint(address="127.0.0.1", port=9),)),)),
            {("ClusterLoadAssignment", "m:r1")},
        ),
        (
            policy(pools=(POOL, replace(POOL, version="r2"))),
            {("Cluster", "m:r2"), ("ClusterLoadAssignment", "m:r2"), _LIMITS},
        ),
        (policy(gateways=Gateways(max_count=9)), set()),
        (policy(listener=replace(policy().listener, port=81)), {("Listener", "tidegate")}),
    ],
    ids=["tenant", "claim", "mode", "cors", "route", "threshold", "endpoint", "version", "fleet", "port"],
)
def test_a_change_of_the_policy_changes_what_it_names(after: Policy, expected: set[tuple[str, str]]) -> None:
    before, translator = policy(), Translator(CODE)
    first = translator.snapshot(before, decision(before, 10.0), [GATEWAY])
    second = translator.snapshot(after, decision(after, 10.0), [GATEWAY])
    assert changed(first, second) == expected


def test_only_the_number_of_a_moved_line_changed_so_nothing_is_sent_again() -> None:
    translator = Translator(CODE)
    lines = [policy(pools=(replace(POOL, ref=SourceRef(file="t.yaml", line=n)),)) for n in (3, 4)]
    first, second = (translator.snapshot(each, decision(each, 10.0), [GATEWAY]) for each in lines)
    old, new = (each.of_type(types.CLUSTER)["m:r1"] for each in (first, second))
    assert old.version == new.version


def test_the_fleet_is_an_endpoint_list_whatever_its_order() -> None:
    made = policy()
    members = [GatewayMember(id=f"gw{n}", address=f"10.0.0.{n}") for n in range(3)]
    translator = Translator(CODE)
    first = translator.snapshot(made, decision(made, 10.0), members)
    assert translator.snapshot(made, decision(made, 10.0), members[::-1]) is first


def test_a_pool_that_left_leaves_no_memory() -> None:
    translator = Translator(CODE)
    for number in range(20):
        made = policy(pools=(replace(POOL, version=f"r{number}"),))
        last = translator.snapshot(made, decision(made, 10.0), [GATEWAY])
    assert len(translator._known) == sum(len(found) for found in last.resources.values())


@given(
    rates=st.lists(st.floats(0, 1e7, allow_nan=False), min_size=2, max_size=2),
    gateways=st.integers(1, 50),
)
def test_the_listener_is_frozen(rates: list[float], gateways: int) -> None:
    made = policy(["a", "b"], gateways=Gateways(max_count=50))
    limits = replace(decision(made, 1.0), rate_per_s=np.array(rates), gateways=gateways)
    members = [GatewayMember(id=str(n), port=n + 1) for n in range(gateways)]
    one = _TRANSLATOR.snapshot(made, limits, members)
    assert one.of_type(types.LISTENER)["tidegate"].version == _FROZEN


_TRANSLATOR = Translator(CODE)
_FROZEN = (
    snapshot(policy(), decision(policy(), 10.0), [], code=CODE).of_type(types.LISTENER)["tidegate"].version
)
