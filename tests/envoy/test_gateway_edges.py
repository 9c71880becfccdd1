"""The gateway at its edges: before the first configuration, without a model server, with large bodies."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import aiohttp
import pytest
from field import Field
from policies import api_key, decision

from controlplane.assets import read_asset
from controlplane.model import resource as types
from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Endpoint
from controlplane.model.poolstat import pool_id
from controlplane.model.resource import Snapshot
from controlplane.xds.lua_code import LuaCode, lua_code
from controlplane.xds.translate import snapshot

pytestmark = pytest.mark.envoy


async def test_the_first_request_of_a_new_gateway_meets_real_limits(field: Field) -> None:
    """[first] Listener, routes and clusters are there, the scripts are not: closed; then open, and right."""
    policy = field.policy()
    made = decision(policy, 1.0)
    whole = snapshot(policy, made, [GatewayMember(id="gw0")], code=lua_code(read_asset))
    kinds = {kind: found for kind, found in whole.resources.items() if kind != types.EXTENSION}
    await field.publish_snapshot(Snapshot(resources=kinds))
    envoy = await field.add_envoy(wait=False)
    client = await field.client()
    while await envoy.stat("cluster_manager.cds.update_success") == 0:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.send("acme")
    await field.publish(policy, made)
    await field.until_listening()
    assert [(await client.send("acme")).status for _ in range(3)] == [200, 429, 429]


async def test_a_gateway_that_refuses_its_scripts_serves_nothing(field: Field) -> None:
    policy = field.policy()
    made = decision(policy, 10.0)
    broken = LuaCode(identity="this is no Lua", limits="this is no Lua")
    await field.publish_snapshot(snapshot(policy, made, [], code=broken))
    await field.add_envoy(wait=False)
    await field.until_listening()
    client = await field.client()
    answer = await client.send("acme")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert json.loads(answer.body)["error"]["code"] == "gateway_not_ready"
    assert field.model.requests == []
    assert field.rejections
    field.rejections.clear()
    await field.publish(policy, made)
    assert (await client.send("acme")).status == 200


async def test_every_503_is_openai_shaped_and_says_when_to_return(field: Field) -> None:
    nobody = field.pool(name="gone")
    nobody = replace(nobody, endpoints=(Endpoint(address="127.0.0.1", port=1),))
    policy = field.policy(
        pools=(field.pool(), nobody, replace(nobody, version="r2", endpoints=())),
        routes=(replace(field.policy().routes[0], models=("m", "gone")),),
    )
    client = await field.start(policy, decision(policy, 100.0))
    for model in ("gone:r1", "gone:r2"):
        answer = await client.send("acme", model=model)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert json.loads(answer.body)["error"]["code"] == "model_unavailable"
    assert (await client.send("acme")).status == 200


async def test_an_overflow_of_the_pool_is_a_503_of_its_own(field: Field) -> None:
    policy = field.policy(pools=(field.pool(max_requests=1),))
    client = await field.start(policy, decision(policy, 100.0))
    running = asyncio.create_task(client.send("acme", stream=True, chunks=5, interval_s=0.1))
    await asyncio.sleep(0.2)
    refused = await client.send("acme")
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "overloaded")
    assert (await running).status == 200


@pytest.mark.parametrize(
    "limits",
    [{"idle_timeout_s": 0.3}, {"max_stream_duration_s": 0.3}],
    ids=["no byte for too long", "too long in all"],
)
async def test_a_model_that_takes_too_long_is_a_504(field: Field, limits: dict[str, float]) -> None:
    policy = field.policy(routes=(replace(field.policy().routes[0], **limits),))  # type: ignore[arg-type]
    client = await field.start(policy, decision(policy, 100.0))
    answer = await client.send("acme", delay_s=2.0)
    assert (answer.status, answer.headers["retry-after"]) == (504, "1")
    assert json.loads(answer.body)["error"]["code"] == "timeout"


async def test_a_body_beyond_the_listeners_limit_is_a_413(field: Field) -> None:
    field.listener = replace(field.listener, max_request_bytes=200_000)
    policy = field.policy()
    client = await field.start(policy, decision(policy, 100.0))
    assert (await client.send("acme", prompt="x" * 150_000)).status == 200
    refused = await client.send("acme", prompt="x" * 300_000)
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (413, "request_too_large")


async def test_statistics_name_the_pool_whatever_its_name(field: Field) -> None:
    pool = field.pool(name="org/m-3.1", version="2024-06.b")
    policy = field.policy(pools=(pool,), routes=(replace(field.policy().routes[0], models=(pool.model,)),))
    client = await field.start(policy, decision(policy, 100.0))
    assert (await client.send("acme", model=pool.model)).status == 200
    await asyncio.sleep(1.2)  # statistics are flushed once a second
    text = await field.envoys[0].admin("/stats/prometheus")
    lines = [line for line in text.splitlines() if line.startswith("envoy_cluster_upstream_rq_completed{")]
    by_pool = {pool_id(re.findall('envoy_cluster_name="([^"]+)"', line)[0]): line for line in lines}
    assert by_pool[pool.id].endswith(" 1")
    assert f'model_version="{pool.id}"' in text
    assert 'envoy_cluster_name="tidegate_xds"' in text


async def test_the_access_log_names_the_tenant_and_holds_no_secret(field: Field) -> None:
    """[secrets]"""
    policy = field.policy()
    client = await field.start(policy, decision(policy, 1.0))
    query = f"/v1/chat/completions?api_key={api_key('acme')}"
    spoof = {"x-tidegate-tenant": "zeta", "x-request-id": "my-id", "x-api-key": api_key("acme")}
    assert (await client.send("acme", path=query, headers=spoof)).status == 200
    assert (await client.send("acme")).status == 429
    assert (await client.send(None)).status == 401
    await asyncio.sleep(0.5)
    envoy = field.envoys[0]
    admitted, limited, unknown = envoy.access_log()
    assert (admitted["tenant"], admitted["route"], admitted["model_version"]) == ("acme", "chat", "m:r1")
    assert (admitted["request_id"], admitted["outcome"], admitted["status"]) == ("my-id", "admitted", 200)
    assert (limited["flags"], limited["outcome"]) == ("RL", "limited")
    assert (unknown["tenant"], unknown["status"]) == (None, 401)
    dumps = await envoy.admin("/config_dump") + await envoy.admin("/stats") + envoy.log()
    assert "sk-secret-of" not in dumps + envoy.access_file.read_text()
