"""What gateways hear: the calls of the contract, over real gRPC on the memory store."""

from __future__ import annotations

import io
import json
import time
from collections.abc import AsyncIterator

import pytest
from envoy_data_plane.envoy.service.ratelimit.v3 import RateLimitRequest as Official
from envoy_data_plane.envoy.service.ratelimit.v3 import RateLimitResponse as OfficialAnswer
from gateway_asks import Gateway, call
from prometheus_client import CollectorRegistry
from quota_policies import NEWER, OLDER, daily, monthly, quota_policy

from controlplane.app.quotas import Quotas
from controlplane.model.policy import Mode, Policy
from controlplane.policy import answer
from controlplane.policy.calendar import window
from controlplane.policy.quota import Balance, Line, Verdict, binding
from controlplane.serve.log import make_logger

SPEC = quota_policy(daily(500_000), daily(800_000, NEWER))


class World:
    """The quotas of one process and a gateway that asks it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        logger = make_logger(io.StringIO(), clock=time.time)
        self.notes: list[object] = []
        self.quotas = Quotas(clock=time.time, registry=self.registry, logger=logger, note=self.notes.append)

    async def gateway(self, policy: Policy) -> Gateway:
        await self.quotas.apply(policy)
        assert self.quotas.port is not None
        return Gateway(self.quotas.port)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.quotas.close()


async def test_the_example_of_the_feature_works_as_it_is_written(world: World) -> None:
    async with await world.gateway(SPEC) as gateway:
        for number in range(500):
            assert (await gateway.reserve("acme", OLDER, f"r{number}", 1000)).passed
            await gateway.settle("acme", OLDER, f"r{number}", 1000)
        refused = await gateway.reserve("acme", OLDER, "r500", 1000)
        assert not refused.passed
        assert (await gateway.reserve("acme", NEWER, "r501", 1000)).passed


async def test_a_refusal_is_what_openai_clients_know_and_names_the_quota(
    world: World,
) -> None:
    async with await world.gateway(quota_policy(daily(1000), monthly(5000))) as gateway:
        refused = await gateway.reserve("acme", OLDER, "r1", 2000)
    error = json.loads(refused.body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("insufficient_quota",) * 2 + (None,)
    assert error["message"].startswith("You exceeded your current quota")
    assert 1 <= int(refused.headers["retry-after"]) <= 86_400
    assert refused.headers["ratelimit-policy"] == '"daily";q=1000;w=86400'
    assert refused.headers["ratelimit"].startswith('"daily";r=1000;t=')
    assert refused.headers["content-type"] == "application/json"
    assert refused.headers["x-tidegate-limited"] == "quota"


@pytest.mark.parametrize("pool", [OLDER, "gpt-4-turbo:other"])
async def test_who_has_no_quota_always_passes(world: World, pool: str) -> None:
    async with await world.gateway(SPEC) as gateway:
        assert (await gateway.reserve("globex", pool, "r1", 10**9)).passed
        assert (await gateway.settle("globex", pool, "r1", 10**9)).passed
    assert world.count("tidegate_policy_decisions_total", outcome="no_quota") == 1


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\xff\xff", id="not protobuf"),
        pytest.param(b"", id="empty"),
        pytest.param(call("reserve", "", OLDER, "r", 1), id="no tenant"),
        pytest.param(call("reserve", "acme", "", "r", 1), id="no pool"),
        pytest.param(call("settle", "acme", OLDER, "", 1), id="no id"),
        pytest.param(call("steal", "acme", OLDER, "r", 1), id="another op"),
        pytest.param(call("reserve", "acme", OLDER, "r", 1).replace(b"tidegate", b"elsewher"), id="domain"),
    ],
)
async def test_what_cannot_be_understood_passes_and_is_counted(world: World, message: bytes) -> None:
    async with await world.gateway(SPEC) as gateway:
        assert (await gateway.send(message)).passed
    assert world.count("tidegate_policy_malformed_total") == 1


async def test_observe_mode_refuses_nobody_and_counts_everything(world: World) -> None:
    world.quotas.follow(lambda: Mode.OBSERVE)
    async with await world.gateway(quota_policy(daily(1000))) as gateway:
        assert (await gateway.reserve("acme", OLDER, "r1", 5000)).passed
        await gateway.settle("acme", OLDER, "r1", 4000)
    assert world.count("tidegate_policy_decisions_total", outcome="would_refuse") == 1
    shown = await world.quotas.desk.show(None, None)
    assert shown["quotas"][0]["used_tokens"] == 4000


async def test_a_changed_quota_takes_effect_at_once_and_usage_stays(world: World) -> None:
    async with await world.gateway(quota_policy(daily(1000))) as gateway:
        await gateway.reserve("acme", OLDER, "r1", 1000)
        assert not (await gateway.reserve("acme", OLDER, "r2", 500)).passed
        await world.quotas.apply(quota_policy(daily(1500)))
        assert (await gateway.reserve("acme", OLDER, "r3", 500)).passed
        await world.quotas.apply(quota_policy(daily(10)))
        assert not (await gateway.reserve("acme", OLDER, "r4", 1)).passed


async def test_no_port_is_opened_before_anybody_has_a_quota(world: World) -> None:
    await world.quotas.apply(quota_policy())
    assert world.quotas.port is None
    served = await world.quotas.apply(SPEC)
    assert served.policy_service.port == world.quotas.port != 0


async def test_metrics_tell_what_the_quotas_are_and_what_was_used(world: World) -> None:
    async with await world.gateway(quota_policy(daily(1000), monthly(5000))) as gateway:
        await gateway.reserve("acme", OLDER, "r1", 300)
        await gateway.reserve("acme", OLDER, "r2", 200)
        await gateway.settle("acme", OLDER, "r1", 120)
    labels = {"tenant": "acme", "model_version": OLDER, "period": "daily"}
    names = ("limit", "used", "reserved")
    assert [world.count(f"tidegate_quota_{name}_tokens", **labels) for name in names] == [1000, 120, 200]
    assert world.count("tidegate_policy_decisions_total", outcome="admitted") == 2
    assert world.count("tidegate_policy_settlements_total", outcome="settled") == 1
    assert world.count("tidegate_quota_charged_tokens_total") == 120


def test_calls_and_answers_are_those_of_envoys_own_definitions() -> None:
    official = Official.parse(call("reserve", "acme", OLDER, "r1", 2**40))
    assert [entry.key for entry in official.descriptors[0].entries] == ["op", "tenant", "pool", "route", "id"]
    assert official.descriptors[0].hits_addend == 2**40
    line = Line(period="daily", limit_tokens=1000)
    balance = Balance(line=line, window=window(0.0, "daily", "UTC"), used_tokens=999, reserved_tokens=0)
    verdict = Verdict(admitted=False, balances=(balance,), now_s=0.0, degraded=True)
    refused = OfficialAnswer.parse(answer.refused(verdict, 5))
    assert refused.overall_code.name == "OVER_LIMIT"
    assert refused.raw_body == answer.EXCEEDED
    assert {header.key for header in refused.response_headers_to_add} >= {"retry-after", "ratelimit"}
    assert len(refused.statuses) == 1


def test_the_quota_that_binds_is_the_one_that_is_waited_for_longest() -> None:
    balances = tuple(
        Balance(
            line=Line(period=period, limit_tokens=limit),
            window=window(0.0, period, "UTC"),
            used_tokens=100,
            reserved_tokens=0,
        )
        for period, limit in (("daily", 100), ("monthly", 100))
    )
    bound = binding(Verdict(admitted=False, balances=balances, now_s=0.0), 1)
    assert bound is not None
    assert bound.line.period == "monthly"


@pytest.mark.parametrize(("tokens", "shown"), [(0, 0), (7, 7), (99, 99), (123, 120), (98_765, 98_000)])
def test_numbers_in_headers_are_rounded_down(tokens: int, shown: int) -> None:
    assert answer.rounded(tokens) == shown


def test_every_refusal_has_a_body_of_the_same_size() -> None:
    window_ = window(0.0, "daily", "UTC")
    sizes = set()
    for limit in (1, 10**6, 10**15):
        line = Line(period="daily", limit_tokens=limit)
        balance = Balance(line=line, window=window_, used_tokens=limit, reserved_tokens=0)
        verdict = Verdict(admitted=False, balances=(balance,), now_s=5.0)
        sizes.add(len(OfficialAnswer.parse(answer.refused(verdict, 5)).raw_body))
    assert len(sizes) == 1
