"""The loop, one tick at a time, with a reader and a clock made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from controlplane.app.loop import Loop, Parts
from controlplane.app.plane import Plane
from controlplane.assets import read_asset
from controlplane.model.policy import (
    Endpoint,
    Gateways,
    Guards,
    Key,
    Listener,
    Mode,
    Model,
    Policy,
    Pool,
    Priority,
    RatePolicy,
    Route,
    SignalPolicy,
    Tenant,
)
from controlplane.model.resource import EXTENSION, RUNTIME, SEND_ORDER
from controlplane.model.signal import Load, Observation, Reading
from controlplane.serve.changes import Change
from controlplane.serve.metrics import Metrics
from controlplane.xds.lua_code import lua_code
from controlplane.xds.translate import Translator

POOL = "chat:v1"
KEY = "chat|acme|chat:v1"


def _policy(**more: object) -> Policy:
    literal = RatePolicy(guards=Guards(enabled=False))
    endpoint = Endpoint(address="127.0.0.1", port=8000)
    key = Key(
        route="chat",
        tenant="acme",
        pool=POOL,
        priority=Priority.NORMAL,
        weight=1.0,
        guarantee_per_s=0.0,
        ceiling_per_s=None,
        pin_per_s=None,
    )
    made = Policy(
        listener=Listener(),
        gateways=Gateways(max_count=4),
        signals=SignalPolicy(),
        models=(Model(name="chat", versions=("v1",), default_version="v1"),),
        pools=(Pool(model="chat", version="v1", endpoints=(endpoint,), rate=literal),),
        routes=(Route(id="chat", pattern="/v1/chat/completions", models=("chat",)),),
        tenants=(Tenant(id="acme"),),
        keys=(key,),
    )
    return replace(made, **more)  # type: ignore[arg-type]


class _World:
    """A reader whose numbers a test sets, and a clock it moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.util: float | None = 60.0
        self.fail = False
        self.retargeted: list[Policy] = []
        self.looked_again = 0

    def clock(self) -> float:
        return self.now_s

    async def read(self, now_s: float, *, gateways: int = 1) -> Observation:
        if self.fail:
            raise RuntimeError("the source is broken")
        reading = Reading(value=self.util, sampled_at_s=now_s, count=1, source="test")
        if self.util is None:
            reading = Reading(absent="nothing exposed")
        load = Load(readings={"gpu_util_percent": reading})
        return Observation(now_s=now_s, loads={POOL: load}, traffic=None, gateways=gateways)

    async def read_behind_push(self) -> None:
        self.looked_again += 1

    async def retarget(self, policy: Policy) -> None:
        self.retargeted.append(policy)

    async def close(self) -> None:
        return None


class _Events:
    def __init__(self) -> None:
        self.lines: list[Change] = []
        self.failures: list[str] = []

    def changed(self, lines: Sequence[Change], *, omitted: int = 0) -> None:
        self.lines += lines

    def rejected(self, node: str, type_name: str, origins: Sequence[str], reason: str) -> None:
        raise AssertionError("nothing is connected")

    def tick_failed(self, error: Exception) -> None:
        self.failures.append(str(error))

    def gateway(self, node: str, address: str, *, connected: bool, gateways: int) -> None:
        raise AssertionError("nothing is connected")


class _Running:
    """A loop with its world."""

    def __init__(self) -> None:
        self.world, self.events = _World(), _Events()
        self.loop = Loop(
            Parts(
                clock=self.world.clock,
                open_reader=lambda _policy: self.world,
                translator=Translator(lua_code(read_asset)),
                metrics=Metrics(CollectorRegistry(), version="test"),
                events=self.events,
            )
        )

    async def tick(self, util: float | None) -> float:
        """One second later, at this utilisation: the pool's rate."""
        self.world.now_s += 1.0
        self.world.util = util
        await self.loop.tick()
        assert self.loop.moment is not None
        return self.loop.moment.decision.pools[POOL].rate_per_s


@pytest.fixture
async def running() -> _Running:
    found = _Running()
    await found.loop.apply(_policy())
    return found


async def test_the_first_publication_is_whole(running: _Running) -> None:
    assert not running.loop.cache.ready
    await running.tick(60.0)
    published = running.loop.cache.status().published
    assert running.loop.cache.ready
    assert {kind for kind, count in published.items() if count} == set(SEND_ORDER)


async def test_a_new_value_becomes_a_new_limit_in_the_same_tick(running: _Running) -> None:
    assert await running.tick(60.0) == pytest.approx(40.0)
    assert await running.tick(95.0) == pytest.approx(10.0)
    assert running.loop.published == 2


async def test_nothing_is_published_when_nothing_changed(running: _Running) -> None:
    for _ in range(5):
        await running.tick(60.0)
    assert running.loop.published == 1


async def test_only_the_limits_script_changes_with_the_rate(running: _Running) -> None:
    before = (await running.tick(60.0), running.loop._snapshot)[1]
    after = (await running.tick(95.0), running.loop._snapshot)[1]
    assert before is not None
    assert after is not None
    changed = [
        (kind, name)
        for kind in SEND_ORDER
        for name, resource in after.of_type(kind).items()
        if resource.version != before.of_type(kind)[name].version
    ]
    assert changed == [(EXTENSION, "tidegate.limits")]


async def test_a_failing_source_keeps_the_last_limits_and_is_said(running: _Running) -> None:
    await running.tick(60.0)
    running.world.fail = True
    assert await running.tick(95.0) == pytest.approx(40.0)
    assert running.events.failures == ["the source is broken"]


async def test_freeze_holds_every_rate_until_it_is_lifted(running: _Running) -> None:
    plane = Plane(running.loop)
    await running.tick(60.0)
    plane.freeze(True, reason="incident 42", by="anna")
    assert await running.tick(95.0) == pytest.approx(40.0)
    plane.freeze(False, reason="", by="anna")
    assert await running.tick(95.0) == pytest.approx(10.0)
    assert [line.kind for line in running.events.lines if line.kind == "freeze"] == ["freeze", "freeze"]


async def test_observe_mode_moves_only_the_runtime_layer(running: _Running) -> None:
    await running.tick(60.0)
    before = running.loop._snapshot
    Plane(running.loop).set_mode(Mode.OBSERVE, reason="trial", by="anna")
    assert await running.tick(60.0) == pytest.approx(40.0)
    after = running.loop._snapshot
    assert before is not None
    assert after is not None
    changed = {
        kind
        for kind in SEND_ORDER
        for name, resource in after.of_type(kind).items()
        if resource.version != before.of_type(kind)[name].version
    }
    assert changed == {RUNTIME}


async def test_a_reload_keeps_what_was_learned(running: _Running) -> None:
    guarded = RatePolicy()
    policy = _policy()
    policy = replace(policy, pools=(replace(policy.pools[0], rate=guarded),))
    assert await running.tick(95.0) == pytest.approx(10.0)
    await running.loop.apply(policy)
    assert running.world.retargeted == [policy]
    rate = await running.tick(20.0)
    assert 10.0 <= rate <= 10.0 * 1.1  # slewed from the rate before the reload, not jumped to 100


async def test_every_change_carries_its_inputs(running: _Running) -> None:
    await running.tick(60.0)
    await running.tick(95.0)
    pool = [line for line in running.events.lines if line.kind == "pool"][-1]
    assert (pool.old, pool.new) == (pytest.approx(40.0), pytest.approx(10.0))
    assert pool.inputs["gpu_util_percent"] == 95.0
    assert pool.reason
