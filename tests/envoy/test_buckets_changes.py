"""Whatever changes, nothing is given away: admitted <= the rate over time, and one burst."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from field import Field
from offered import Answer, Client, admitted, per_second, span_s
from policies import decision, tenant

from controlplane.model.policy import Endpoint, Gateways, Mode, Policy, RatePolicy, Route

pytestmark = pytest.mark.envoy

MINUTE = RatePolicy(burst_s=60.0)  # the operator wants a burst of a minute


@asynccontextmanager
async def _load(client: Client, *, rate_per_s: float, duration_s: float) -> AsyncIterator[list[Answer]]:
    """`acme` offers requests while the body runs; the answers are complete afterwards."""
    answers: list[Answer] = []
    task = asyncio.create_task(client.offer("acme", rate_per_s=rate_per_s, duration_s=duration_s))
    try:
        yield answers
    finally:
        answers += await task


async def test_twenty_unrelated_changes_admit_no_second_burst(field: Field) -> None:
    """[carry-over] 0.5/s with a burst of 30 requests: one refill would show as 30 more."""
    policy = field.policy(pools=(field.pool(rate=MINUTE),))

    async def publish(changed: Policy, others: float = 10.0) -> None:
        rates = {each.id: others for each in changed.tenants} | {"acme": 0.5}
        await field.publish(changed, decision(changed, rates, burst_s=60.0))

    client = await field.start(policy, decision(policy, 0.5, burst_s=60.0))
    assert 29 <= await client.drain("acme", 60) <= 31
    names, versions, routes = ["acme"], [field.pool(rate=MINUTE)], list(policy.routes)
    started_s = time.monotonic()
    async with _load(client, rate_per_s=15, duration_s=4) as answers:
        for step in range(20):
            kind = step % 5
            if kind == 0:
                names.insert(0, f"a{step:02d}")  # sorts before acme: its place in the tables moves
            elif kind == 1:
                versions.append(field.pool(version=f"r{step + 2}", rate=MINUTE))
            elif kind == 2:
                routes.append(Route(id=f"route{step}", pattern=f"/v1/path{step}", models=("m",)))
            tenants = [tenant(name) for name in names]
            if kind == 3:
                tenants[-1] = replace(tenants[-1], key_digests=(*tenants[-1].key_digests, "0" * 63 + "1"))
            changed = field.policy(tenants, pools=versions, routes=routes)
            await publish(changed, others=10.0 + (step if kind == 4 else 0))
            await asyncio.sleep(0.1)
        assert time.monotonic() - started_s < 4, "the changes must be over before the load is"
    assert admitted(answers) <= 0.5 * (span_s(answers) + 1) + 1, per_second(answers)


@pytest.mark.parametrize(
    ("high_per_s", "low_per_s", "burst", "low_burst_s"),
    [(2.0, 0.5, 2, 4.0), (0.5, 0.05, 2, 60.0)],
    ids=["across 1/s", "across 0.1/s"],
)
async def test_a_rate_that_falls_and_rises_again_gives_nothing_away(
    field: Field, high_per_s: float, low_per_s: float, burst: int, low_burst_s: float
) -> None:
    """However often: in all, not more than the one burst that the lower rate has anyway."""
    policy = field.policy()

    client = await field.start(policy, decision(policy, high_per_s, floor_per_s=low_per_s))
    assert abs(await client.drain("acme", 3 * burst) - burst) <= 1
    prices: list[tuple[float, float]] = [(0.0, high_per_s)]  # from when on each rate may have been in force
    started_s = time.monotonic()
    async with _load(client, rate_per_s=15, duration_s=6) as answers:
        for rate_per_s in (low_per_s, high_per_s, low_per_s):
            await asyncio.sleep(1.5)
            before_s = time.monotonic() - started_s
            await field.publish(policy, decision(policy, rate_per_s, floor_per_s=low_per_s))
            after_s = time.monotonic() - started_s
            prices.append((before_s if rate_per_s == high_per_s else after_s + 0.1, rate_per_s))
    spent_s = sum(1 / _rate_at(prices, answer.at_s) for answer in answers if answer.status == 200)
    # Each request costs 1 / rate seconds of filling.
    assert spent_s <= 6 + low_burst_s, per_second(answers)
    assert spent_s >= 6 - 2 / low_per_s, per_second(answers)


def _rate_at(prices: list[tuple[float, float]], at_s: float) -> float:
    return [rate_per_s for from_s, rate_per_s in prices if from_s <= at_s][-1]


async def test_a_full_bucket_shrinks_with_the_rate(field: Field) -> None:
    """Unspent at 20/s, then 2/s: what is left is one burst of 2/s, not of 20/s."""
    policy = field.policy()
    client = await field.start(policy, decision(policy, 20.0, floor_per_s=2.0))
    assert (await client.send("acme")).status == 200
    await field.publish(policy, decision(policy, 2.0, floor_per_s=2.0))
    assert await client.drain("acme", 40) <= 2


async def test_a_fleet_that_grows_and_shrinks_gives_nothing_away(field: Field) -> None:
    """8/s over 1, then 4, then 1 gateways, seen at one of them: 8, 2 and 8/s, with no burst in between."""
    policy = field.policy(gateways=Gateways(max_count=4))

    async def of(gateways: int) -> None:
        made = decision(policy, 8.0, gateways=gateways)
        await field.publish(policy, made, gateways=gateways)

    client = await field.start(policy, decision(policy, 8.0))
    assert abs(await client.drain("acme", 30) - 8) <= 1
    async with _load(client, rate_per_s=30, duration_s=6) as answers:
        await asyncio.sleep(2)
        await of(4)
        await asyncio.sleep(2)
        await of(1)
    assert 16 + 4 + 16 - 3 <= admitted(answers) <= 16 + 4 + 16 + 2, per_second(answers)
    middle = [answer for answer in answers if 2.2 <= answer.at_s < 3.9]
    assert admitted(middle) <= 2 * 1.7 + 1, per_second(answers)


async def test_two_envoys_share_one_limit(field: Field) -> None:
    """Both listen on one port, and the kernel spreads the connections over them."""
    policy = field.policy(gateways=Gateways(max_count=2))
    await field.start(policy, decision(policy, 40.0, gateways=2), gateways=2)
    await field.add_envoy()
    client = await field.client(force_close=True)
    answers = await client.offer("acme", rate_per_s=160, duration_s=4)
    assert 40 * 4 * 0.9 <= admitted(answers) <= 40 * span_s(answers) + 40 + 2, per_second(answers)
    later = [answer for answer in answers if answer.at_s >= 1.5]
    assert 36 <= admitted(later) / (span_s(answers) - 1.5) <= 42, per_second(answers)
    shares = [await envoy.stat("http.tidegate.downstream_rq_total") for envoy in field.envoys]
    assert min(shares) > 100, shares


@pytest.mark.parametrize("sotw", [False, True], ids=["delta", "sotw"])
async def test_a_control_plane_that_starts_again_gives_nothing_away(field: Field, sotw: bool) -> None:
    """While it is away the last limits hold; what it sends afterwards is what Envoy has."""
    field.sotw = sotw
    pools = (field.pool(rate=MINUTE),)
    policy = field.policy(pools=pools)
    made = decision(policy, 0.5, burst_s=60.0)
    client = await field.start(policy, made)
    assert abs(await client.drain("acme", 60) - 30) <= 1
    started_s = time.monotonic()
    await field.restart(policy, made)
    more = field.policy(["acme", "new"], pools=pools)
    await field.publish(more, decision(more, 0.5, burst_s=60.0))
    assert await client.drain("acme", 30) <= 0.5 * (time.monotonic() - started_s) + 1


async def test_a_running_stream_survives_every_kind_of_push(field: Field) -> None:
    policy = field.policy(mode=Mode.ENFORCE)
    client = await field.start(policy, decision(policy, 10.0))
    stream = asyncio.create_task(client.send("acme", stream=True, chunks=24, interval_s=0.1))
    await asyncio.sleep(0.3)
    pool = field.pool()
    other = replace(pool, endpoints=(Endpoint(address="127.0.0.2", port=field.model.port),))
    pushes: list[Callable[[], Policy]] = [
        lambda: field.policy(["acme", "new"]),  # identity and limits
        lambda: field.policy(pools=(pool, field.pool(version="r2"))),  # a cluster comes
        lambda: field.policy(),  # and goes
        lambda: field.policy(pools=(replace(pool, max_requests=7),)),  # its cluster is rebuilt
        lambda: field.policy(pools=(other,)),  # its endpoint leaves
        lambda: field.policy(routes=(Route(id="other", pattern="/v1/other", models=("m",)),)),  # its route
        lambda: field.policy(mode=Mode.OBSERVE),  # runtime
        lambda: field.policy([]),  # its tenant is gone
    ]
    for number, push in enumerate(pushes):
        changed = push()
        await field.publish(changed, decision(changed, 10.0 + number))
        await asyncio.sleep(0.15)
    assert not stream.done(), "the stream must outlast the pushes"
    answer = await stream
    assert answer.status == 200
    assert answer.body.count("chunk") == 24
    assert answer.body.endswith("data: [DONE]\n\n")
