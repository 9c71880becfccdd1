"""A Redis that stands still, is absent, forgets: what gateways hear, and that nothing is counted twice."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from gateway_asks import Gateway, Heard
from prometheus_client import CollectorRegistry
from quota_policies import OLDER, daily, monthly, quota_policy
from redis.asyncio import Redis
from redis_server import RedisServer

from controlplane.app.quotas import Quotas
from controlplane.model.policy import OnStoreFailure, Policy, PolicyService, Quota, RedisStore, StoreKind
from controlplane.serve.changes import Change
from controlplane.serve.log import make_logger

pytestmark = pytest.mark.redis

DEGRADED = ("x-tidegate-quota-mode", "degraded")


@pytest.fixture
def server(redis_path: Path, tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(redis_path, tmp_path)
    yield server
    server.stop()


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * len(values)) - 1]


class Process:
    """The quotas of one process on a Redis, and a gateway that asks it."""

    def __init__(self, policy: Policy, clock_off_s: float = 0.0) -> None:
        self.policy = policy
        self.registry = CollectorRegistry()
        self.notes: list[Change] = []
        logger = make_logger(io.StringIO(), clock=time.time)
        self.quotas = Quotas(
            clock=lambda: time.time() + clock_off_s,
            registry=self.registry,
            logger=logger,
            note=self.notes.append,
        )

    async def start(self) -> Gateway:
        await self.quotas.apply(self.policy)
        assert self.quotas.port is not None
        self.gateway = Gateway(self.quotas.port)
        return self.gateway

    async def until(self, what: Callable[[], bool], *, within_s: float = 5.0) -> float:
        started_s = time.monotonic()
        while not what():
            assert time.monotonic() - started_s < within_s
            await asyncio.sleep(0.02)
        return time.monotonic() - started_s

    def is_degraded(self) -> bool:
        return self.quotas.degraded_why is not None

    async def shown(self) -> tuple[int, int]:
        """Used and reserved tokens of the daily quota."""
        row = (await self.quotas.desk.show(None, None))["quotas"][0]
        return row["used_tokens"], row["reserved_tokens"]

    async def mended(self) -> None:
        """The store is back and knows everything but what is in flight."""
        store = self.quotas._store
        await self.until(lambda: not self.is_degraded() and store.debt.is_empty)  # type: ignore[attr-defined]


Open = Callable[..., Process]


@pytest.fixture
async def opened(server: RedisServer) -> AsyncIterator[Open]:
    processes: list[Process] = []

    def open_process(
        *quotas: Quota,
        failure: OnStoreFailure = OnStoreFailure.BOUNDED_LOCAL,
        clock_off_s: float = 0.0,
        timeout_s: float = 0.5,  # a busy machine is no outage
    ) -> Process:
        service = PolicyService(
            port=0,
            store=StoreKind.REDIS,
            redis=RedisStore(url=server.url),
            on_store_failure=failure,
            timeout_s=timeout_s,
        )
        policy = quota_policy(*(quotas or (daily(10_000),)), service=service)
        processes.append(Process(policy, clock_off_s))
        return processes[-1]

    yield open_process
    for process in processes:
        await process.gateway.__aexit__(None, None, None)
        await process.quotas.close()


async def test_two_processes_share_one_quota(server: RedisServer, opened: Open) -> None:
    server.start()
    one, other = await opened(daily(1000)).start(), await opened(daily(1000)).start()
    asked = [(one, other)[n % 2].reserve("acme", OLDER, f"r{n}", 10) for n in range(150)]
    heard = await asyncio.gather(*asked)
    assert sum(answer.passed for answer in heard) == 100


async def test_a_decision_is_one_round_trip_and_no_key_is_without_expiry(
    server: RedisServer, opened: Open
) -> None:
    server.start()
    gateway = await opened(daily(10_000), monthly(100_000)).start()
    await gateway.reserve("acme", OLDER, "warm", 1)
    async with Redis.from_url(server.url) as client:
        before = await client.info("commandstats")
        for number in range(10):
            await gateway.reserve("acme", OLDER, f"r{number}", 10)
            await gateway.settle("acme", OLDER, f"r{number}", 5)
        after = await client.info("commandstats")
        sent = {name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in after}
        assert sent["cmdstat_evalsha"] == 20
        assert sent.get("cmdstat_eval", 0) == 0
        keys = await client.keys("*")
        assert {key.decode().partition("}")[0] for key in keys} == {f"tidegate:{{acme|{OLDER}"}
        assert min([await client.ttl(key) for key in keys]) > 0


async def test_a_server_that_stands_still_costs_no_request_its_time(
    server: RedisServer, opened: Open
) -> None:
    server.start()
    process = opened(daily(1_000_000), timeout_s=0.02)
    gateway = await process.start()
    await gateway.reserve("acme", OLDER, "warm", 1)

    async def timed(name: str) -> tuple[Heard, float]:
        started_s = time.perf_counter()
        answer = await gateway.reserve("acme", OLDER, name, 10)
        return answer, (time.perf_counter() - started_s) * 1000

    usual = [await timed("same") for _ in range(100)]
    for _ in usual:
        await gateway.settle("acme", OLDER, "same", 0)
    server.pause()
    stalled = [await timed(f"r{number}") for number in range(400)]
    heard = [answer for answer, _ in stalled]
    assert process.is_degraded()
    assert p99([spent for _, spent in stalled]) - p99([spent for _, spent in usual]) <= 20
    assert all(answer.passed for answer in heard)
    assert DEGRADED in heard[-1].headers.items()
    assert process.registry.get_sample_value("tidegate_policy_degraded") == 1
    assert (await process.quotas.desk.show(None, None))["degraded"] is True
    assert [note.kind for note in process.notes] == ["quota_store"]
    server.resume()
    await process.mended()
    assert await process.shown() == (0, 4001)
    for number in range(400):
        await gateway.settle("acme", OLDER, f"r{number}", 7)
    await gateway.settle("acme", OLDER, "warm", 1)
    assert await process.shown() == (2801, 0)


async def test_what_began_before_ended_within_and_lasted_beyond_an_outage_is_counted_once(
    server: RedisServer, opened: Open
) -> None:
    server.start()
    process = opened()
    gateway = await process.start()
    for name in ("before-1", "before-2"):
        await gateway.reserve("acme", OLDER, name, 100)
    server.pause()
    for name in ("stalled-1", "stalled-2", "within-1", "within-2", "beyond"):
        assert (await gateway.reserve("acme", OLDER, name, 100)).passed
    for name in ("before-1", "stalled-1", "within-1", "within-1"):
        await gateway.settle("acme", OLDER, name, 30)
    server.resume()
    await process.mended()
    assert await process.shown() == (90, 400)
    for name in ("before-2", "stalled-2", "within-2", "beyond"):
        await gateway.settle("acme", OLDER, name, 30)
        await gateway.settle("acme", OLDER, name, 30)
    assert await process.shown() == (210, 0)


async def test_another_process_may_settle_what_this_one_let_through(
    server: RedisServer, opened: Open
) -> None:
    server.start()
    here, there = opened(), opened()
    asked, other = await here.start(), await there.start()
    await asked.reserve("acme", OLDER, "warm", 1)
    await other.settle("acme", OLDER, "warm", 1)
    server.pause()
    for number in range(4):
        await asked.reserve("acme", OLDER, f"r{number}", 100)
    for number in range(2):
        await other.settle("acme", OLDER, f"r{number}", 30)
    server.resume()
    await here.mended()
    await there.mended()
    for number in range(2, 4):
        await other.settle("acme", OLDER, f"r{number}", 30)
    assert await here.shown() == (121, 0)


async def test_alone_a_process_hands_out_its_part_of_the_limit_and_no_more_than_was_left(
    server: RedisServer, opened: Open
) -> None:
    server.start()
    process = opened(daily(1000))  # of at most four gateways
    gateway = await process.start()
    server.pause()
    asked = [await gateway.reserve("acme", OLDER, f"r{number}", 50) for number in range(10)]
    assert sum(answer.passed for answer in asked) == 5
    assert DEGRADED in asked[-1].headers.items()
    server.resume()
    await process.mended()
    assert (await gateway.reserve("acme", OLDER, "most", 700)).passed
    server.pause()
    asked = [await gateway.reserve("acme", OLDER, f"s{number}", 50) for number in range(10)]
    assert sum(answer.passed for answer in asked) == 1


@pytest.mark.parametrize(("failure", "passes"), [(OnStoreFailure.OPEN, True), (OnStoreFailure.CLOSED, False)])
async def test_an_outage_means_what_the_tenants_policy_says(
    server: RedisServer, opened: Open, failure: OnStoreFailure, passes: bool
) -> None:
    server.start()
    process = opened(daily(1000), failure=failure)
    gateway = await process.start()
    await gateway.reserve("acme", OLDER, "r0", 900)
    server.pause()
    heard = [await gateway.reserve("acme", OLDER, f"r{number}", 500) for number in range(1, 6)]
    assert {answer.passed for answer in heard} == {passes}
    if not passes:
        assert b"quota_unavailable" in heard[-1].body
        assert int(heard[-1].headers["retry-after"]) >= 1
    for number in range(6):
        await gateway.settle("acme", OLDER, f"r{number}", 500)
    server.resume()
    await process.mended()
    assert await process.shown() == ((3000, 0) if passes else (500, 0))


async def test_a_server_that_appears_later_is_found(server: RedisServer, opened: Open) -> None:
    process = opened(daily(1000))
    gateway = await process.start()
    for number in range(3):
        assert (await gateway.reserve("acme", OLDER, f"r{number}", 50)).passed
    assert process.is_degraded()
    server.start()
    assert await process.until(lambda: not process.is_degraded()) < 5
    await process.mended()
    assert await process.shown() == (0, 150)


async def test_a_restarted_server_is_used_again(server: RedisServer, opened: Open) -> None:
    server.start()
    process = opened(daily(1000))
    gateway = await process.start()
    await gateway.reserve("acme", OLDER, "r0", 50)
    server.stop()
    for number in range(1, 4):
        assert (await gateway.reserve("acme", OLDER, f"r{number}", 50)).passed
    server.start()
    await process.mended()
    assert await process.shown() == (0, 150)


@pytest.mark.parametrize("command", ["SCRIPT FLUSH", "FLUSHALL"])
async def test_a_server_that_was_flushed_is_survived(server: RedisServer, opened: Open, command: str) -> None:
    server.start()
    process = opened(daily(1000))
    gateway = await process.start()
    await gateway.reserve("acme", OLDER, "r0", 50)
    async with Redis.from_url(server.url) as client:
        await client.execute_command(*command.split())
    assert (await gateway.reserve("acme", OLDER, "r1", 50)).passed
    await gateway.settle("acme", OLDER, "r0", 20)
    await gateway.settle("acme", OLDER, "r1", 20)
    assert not process.is_degraded()
    assert await process.shown() == (40, 0)


async def test_processes_whose_clocks_differ_agree_on_the_window(server: RedisServer, opened: Open) -> None:
    server.start()
    clocks_off_s = (0.0, -300.0, 300.0, 90_000.0, -5e6)
    gateways = [await opened(daily(1000), clock_off_s=off_s).start() for off_s in clocks_off_s]
    heard = [await gateways[n % 5].reserve("acme", OLDER, f"r{n}", 100) for n in range(15)]
    assert sum(answer.passed for answer in heard) == 10


async def test_a_user_with_the_rights_of_the_manual_is_enough(
    server: RedisServer, opened: Open, tmp_path: Path
) -> None:
    manual = (Path(__file__).parents[2] / "docs/quotas.md").read_text()
    rights = re.search(r"An ACL user needs `([^`]+)` on `([^`]+)`", manual)
    assert rights is not None
    server.start()
    async with Redis.from_url(server.url) as client:
        await client.execute_command(
            "ACL", "SETUSER", "counter", "on", ">a-password", rights[2], *rights[1].split()
        )
        await client.execute_command("CONFIG", "SET", "requirepass", "another-password")
    secret = tmp_path / "secret"
    secret.write_text("a-password\n")
    process = opened(daily(1000), monthly(5000))
    store = RedisStore(url=server.url, username="counter", password_file=str(secret))
    service = replace(process.policy.policy_service, redis=store)
    process.policy = replace(process.policy, policy_service=service)
    gateway = await process.start()
    assert (await gateway.reserve("acme", OLDER, "r1", 100)).passed
    await gateway.settle("acme", OLDER, "r1", 50)
    assert not (await gateway.reserve("acme", OLDER, "r2", 5000)).passed
    assert await process.shown() == (50, 0)
    assert not process.is_degraded()
    assert process.registry.get_sample_value("tidegate_policy_store_failures_total") == 0


async def test_a_server_that_greets_and_then_fails_is_left_alone_longer_each_time(
    server: RedisServer, opened: Open
) -> None:
    server.start()
    process = opened(daily(10_000))
    gateway = await process.start()
    async with Redis.from_url(server.url) as client:
        await client.config_set("maxmemory", "1")
        for number in range(60):
            assert (await gateway.reserve("acme", OLDER, f"r{number}", 1)).passed
            await asyncio.sleep(0.05)
        assert 2 <= len(process.notes) <= 8
        await client.config_set("maxmemory", "0")
    await process.mended()
    assert await process.shown() == (0, 60)
