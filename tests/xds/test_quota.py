"""Who is asked about quotas, about what, and where the one who answers is found."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from policies import POOL, decision, policy, tenant

from controlplane.assets import read_asset
from controlplane.model import resource as types
from controlplane.model.policy import Policy, PolicyService, Quota
from controlplane.xds import codec, names
from controlplane.xds.lua_code import lua_code
from controlplane.xds.quota import policy_cluster, quota_filter
from controlplane.xds.translate import Translator

CODE = lua_code(read_asset)


def _quota(pool: str) -> Quota:
    return Quota(model_version=pool, tokens=5, period="daily")


def _metered(made: Policy) -> str:
    snapshot = Translator(CODE).snapshot(made, decision(made, 10.0), ())
    body = snapshot.of_type(types.EXTENSION)[names.LIMITS_FILTER].body
    found = re.search(rb'POLICY\.metered="([01]*)"', body)
    assert found is not None
    return found[1].decode()


def test_only_keys_with_a_quota_are_metered() -> None:
    second = replace(POOL, version="r2")
    made = policy(["a", tenant("b", quotas=(_quota("m:r2"),)), "c"], pools=(POOL, second))
    assert _metered(made) == "000100"  # tenant by tenant, pool by pool
    assert _metered(policy(["a", "b"])) == ""


def test_the_two_questions_differ_in_op_and_moment_alone() -> None:
    before, after = quota_filter(PolicyService()).rate_limits
    entries = [
        [
            (action.generic_key and action.generic_key.descriptor_key)
            or (action.metadata and action.metadata.descriptor_key)
            or (action.request_headers and action.request_headers.descriptor_key)
            for action in question.actions
        ]
        for question in (before, after)
    ]
    assert entries[0] == entries[1] == ["op", "tenant", "pool", "route", "id"]
    assert (before.apply_on_stream_done, after.apply_on_stream_done) == (False, True)


def test_trouble_lets_requests_pass_and_envoy_waits_longer_than_the_service_for_its_store() -> None:
    made = quota_filter(PolicyService(timeout_s=0.02))
    assert made.failure_mode_deny is False
    assert made.timeout is not None
    assert 0.02 < made.timeout.total_seconds() <= 0.1


def test_the_listener_knows_of_the_service_its_time_out_alone() -> None:
    first, second = (quota_filter(PolicyService(address=host, port=7)) for host in ("10.0.0.1", "policy.x"))
    assert codec.encode(first) == codec.encode(second)


@pytest.mark.parametrize(
    ("address", "kind"), [("10.1.2.3", "STATIC"), ("::1", "STATIC"), ("tidegate-policy.svc", "STRICT_DNS")]
)
def test_the_service_is_reached_by_address_or_name(address: str, kind: str) -> None:
    made = codec.decode(
        types.CLUSTER, codec.encode(policy_cluster(PolicyService(address=address, port=18001)))
    )
    assert made.get("type", "STATIC") == kind
    (locality,) = made["load_assignment"]["endpoints"]
    (member,) = locality["lb_endpoints"]
    assert member["endpoint"]["address"]["socket_address"] == {"address": address, "port_value": 18001}
    (options,) = made["typed_extension_protocol_options"].values()
    assert "http2_protocol_options" in options["explicit_http_config"]


def test_the_cluster_comes_and_goes_with_the_quotas() -> None:
    translator = Translator(CODE)

    def clusters(*quotas: Quota, **service: Any) -> dict[str, str]:
        made = policy([tenant("acme", quotas=quotas)], policy_service=PolicyService(**service))
        found = translator.snapshot(made, decision(made, 10.0), ()).of_type(types.CLUSTER)
        return {name: resource.version for name, resource in found.items()}

    assert set(clusters()) == {"m:r1"}
    before = clusters(_quota("m:r1"))
    assert set(before) == {"m:r1", names.POLICY_CLUSTER}
    assert clusters(_quota("m:r1"), timeout_s=0.5) == before
    assert clusters(_quota("m:r1"), port=7)[names.POLICY_CLUSTER] != before[names.POLICY_CLUSTER]
    assert set(clusters()) == {"m:r1"}
