"""The load generator on real sockets: it offers what it was told, and reports what happened."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from controlplane.sim import control
from controlplane.sim.load import SPOOF_MARK, SPOOFED_HEADERS, LoadKey, LoadSpec, generate, replay
from controlplane.sim.physics import Physics
from controlplane.sim.pods import FleetSpec, PodSpec, running_pods, serving

FAST = Physics(step_base_s=0.002, step_per_seq_s=0.0, prefill_tokens_per_s=1e6, max_num_seqs=256)
PODS = FleetSpec(pods=(PodSpec(name="chat-0", model="chat", version="v1", physics=FAST),))


def _spec(port: int, *keys: LoadKey, **changes: Any) -> LoadSpec:
    return replace(LoadSpec(host="127.0.0.1", port=port, keys=keys, duration_s=2.0), **changes)


def _key(name: str = "gold", rate_per_s: float = 100.0) -> LoadKey:
    return LoadKey(name=name, model="chat", schedule=((0.0, rate_per_s),))


async def test_a_replay_in_its_own_process_offers_each_keys_rate_and_all_is_answered() -> None:
    steps = LoadKey(name="steps", model="chat", schedule=((0.0, 20.0), (1.5, 150.0)))
    progress: list[dict[str, Any]] = []
    async with running_pods(PODS) as fleet:
        spec = _spec(fleet.pods[0].port, _key(), steps, duration_s=3.0, evenness=0.8)
        result = await replay(spec, progress.append)
    totals = result.totals()
    assert totals.admitted == totals.offered
    assert (result.unsent, totals.cut) == (0, 0)
    assert result.late_p99_s < 1.0  # a generator that cannot keep up falls behind by seconds
    begin_s = result.started_s
    assert result.key("gold").counts(begin_s, begin_s + 3.0).offered == pytest.approx(300, rel=0.1)
    slow, quick = (result.key("steps").counts(begin_s + a, begin_s + a + 1.5) for a in (0.0, 1.5))
    assert [slow.offered, quick.offered] == pytest.approx([30, 225], rel=0.2)
    assert [line["second"] for line in progress[:3]] == [1, 2, 3]
    assert progress[0]["keys"]["gold"]["offered"] == pytest.approx(100, rel=0.25)
    first_s, total_s = result.quantile_s(0.5, first_chunk=True), result.quantile_s(0.5)
    assert first_s is not None
    assert total_s is not None
    assert 0 < first_s < total_s < 3.0


async def test_a_run_starts_at_its_time() -> None:
    async with serving(PODS) as fleet:
        start_s = time.time() + 0.5
        spec = _spec(fleet.pods[0].port, _key(), duration_s=0.5, start_at_s=start_s)
        result = await generate(spec)
    assert result.started_s == pytest.approx(start_s, abs=1e-3)
    assert start_s <= min(result.key("gold").sent_s) < start_s + 0.5


async def test_forged_headers_reach_a_pod_that_nothing_protects() -> None:
    async with serving(PODS) as fleet, aiohttp.ClientSession() as http:
        result = await generate(_spec(fleet.pods[0].port, _key(), duration_s=0.5, spoof=True))
        seen = await control.fetch_seen(http, fleet.pods[0])
    assert seen["requests"] == result.totals().offered > 0
    forged = [header["values"].get(SPOOF_MARK, 0) for header in seen["headers"].values()]
    assert sum(forged) == seen["requests"] * len(SPOOFED_HEADERS)


async def _served(answer: Any) -> tuple[web.AppRunner, int]:
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, runner.addresses[0][1]


async def test_limited_failed_and_admitted_are_told_apart() -> None:
    statuses = [200, 429, 503]
    calls = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return web.Response(status=statuses[calls % 3], body=b"{}")

    runner, port = await _served(answer)
    try:
        totals = (await generate(_spec(port, _key(), duration_s=1.0))).totals()
    finally:
        await runner.cleanup()
    assert totals.offered == calls
    for count in (totals.admitted, totals.limited, totals.errors):
        assert count == pytest.approx(calls / 3, abs=1)


async def test_an_answer_that_never_comes_times_out_and_the_load_goes_on() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    runner, port = await _served(answer)
    try:
        began_s = time.monotonic()
        result = await generate(_spec(port, _key(rate_per_s=20.0), duration_s=1.0, timeout_s=0.5))
    finally:
        await runner.cleanup()
    assert time.monotonic() - began_s < 10.0
    totals = result.totals()
    assert totals.offered == pytest.approx(20, abs=8)
    assert totals.errors == totals.offered


async def test_a_server_that_is_not_there_is_an_error_of_each_request() -> None:
    async with serving(PODS) as fleet:
        port = fleet.pods[0].port
    totals = (await generate(_spec(port, _key(rate_per_s=50.0), duration_s=0.5))).totals()
    assert totals.errors == totals.offered > 0


async def test_arrivals_without_a_free_connection_are_unsent_not_delayed() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(1.5)
        return web.Response(body=b"{}")

    runner, port = await _served(answer)
    try:
        result = await generate(_spec(port, _key(rate_per_s=50.0), duration_s=1.0, max_connections=5))
    finally:
        await runner.cleanup()
    assert result.totals().offered <= 15
    assert result.unsent + result.totals().offered == pytest.approx(50, rel=0.4)
    assert result.late_p99_s < 1.0  # one that waited for a connection would be 1.5 s late, and more
