"""Both stores behind one clock that the test turns, so that every case runs on both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis_server import RedisServer

from controlplane.assets import read_asset
from controlplane.policy.memory import MemoryStore
from controlplane.policy.redis_store import RedisStore
from controlplane.policy.script import QUOTA, Script
from controlplane.policy.store import Store

LEASE_S = 3600.0


class Clock:
    """Unix seconds, as the test says."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock(float(int(time.time())))


@pytest.fixture(scope="session")
def redis_server(redis_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(redis_path, tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


OpenStore = Callable[[], Store]


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
async def open_store(request: pytest.FixtureRequest, clock: Clock):  # type: ignore[no-untyped-def]
    """`open_store()`: another process on the same store; in memory there is only one."""
    if request.param == "memory":
        only = MemoryStore(clock=clock, lease_s=LEASE_S)
        yield lambda: only
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    script, opened = Script(read_asset(QUOTA)), []

    def another() -> RedisStore:
        client = Redis.from_url(server.url)
        opened.append(RedisStore(client, script, lease_s=LEASE_S, timeout_s=5.0, clock=clock))
        return opened[-1]

    async with Redis.from_url(server.url) as client:
        await client.flushall()
    yield another
    for store in opened:
        await store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()
