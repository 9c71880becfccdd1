"""Scraping over real sockets: targets that hang, drip, redirect or send too much cost only themselves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from aiohttp import web

from controlplane.model.policy import Endpoint, Gateways, Listener, Policy, Pool, SignalPolicy
from controlplane.signals.feed import Feed
from controlplane.signals.fetch import Fetcher


@dataclass
class Site:
    """Pages by path: `ok`, `hang`, `big`, `html`, `broken`, and `redirect` to `ok`."""

    base: str = ""

    async def page(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name.startswith("hang"):
            await asyncio.sleep(30)
        if name == "redirect":
            raise web.HTTPTemporaryRedirect("/ok")
        if name == "broken":
            return web.Response(status=500)
        if name == "html":
            return web.Response(text="<html></html>", content_type="text/html")
        running = 'vllm:num_requests_running{model_name="m"} 3\n'
        return web.Response(text=running * (20_000 if name == "big" else 1))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    served = Site()
    app = web.Application()
    app.router.add_get("/{name}", served.page)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()


@contextlib.asynccontextmanager
async def fetcher(**limits: float) -> AsyncIterator[Fetcher]:
    made = Fetcher(clock=time.time, **limits)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("ok", ""),
        ("redirect", ""),
        ("broken", "HTTP 500"),
        ("html", "a page for people (text/html) instead of metrics"),
        ("big", "page above 100000 bytes"),
        ("hang", "no answer within 0.3 s"),
    ],
)
async def test_a_page_is_fetched_or_its_problem_named(site: Site, name: str, problem: str) -> None:
    async with fetcher(timeout_s=0.3, page_max_bytes=100_000) as made:
        (fetched,) = await made.fetch_within([f"{site.base}/{name}"], 1.0)
        assert fetched.problem == problem
        assert (fetched.text is not None) == (not problem)


async def test_nobody_listening_is_said_plainly() -> None:
    async with fetcher() as made:
        (fetched,) = await made.fetch_within(["http://127.0.0.1:1/metrics"], 1.0)
        assert fetched.problem == "Connection refused"


async def test_hanging_targets_do_not_hold_up_the_others(site: Site) -> None:
    urls = [f"{site.base}/ok", *(f"{site.base}/hang{number}" for number in range(20))]
    async with fetcher(timeout_s=1.0) as made:
        fetched = await made.fetch_within(urls, 0.4)
        assert [each.url for each in fetched] == urls[:1], "those that hang are not waited for"
        late = await made.fetch_within(urls, 5.0)
        assert sum(bool(each.problem) for each in late) == 20, "given up at the timeout, and told"


def policy(site: Site, *names: str, interval_s: float = 0.5) -> Policy:
    endpoints = tuple(
        Endpoint(address="127.0.0.1", port=n + 1, metrics_url=f"{site.base}/{name}")
        for n, name in enumerate(names)
    )
    return Policy(
        listener=Listener(),
        gateways=Gateways(),
        signals=SignalPolicy(interval_s=interval_s, timeout_s=0.5),
        models=(),
        pools=(Pool(model="m", version="v1", endpoints=endpoints),),
        routes=(),
        tenants=(),
        keys=(),
    )


async def test_a_feed_observes_what_answers_and_survives_a_reload(site: Site) -> None:
    feed = Feed(policy(site, "ok", "hang"), clock=time.time)
    try:
        observation = await feed.read(time.time(), gateways=2)
        load = observation.loads["m:v1"]
        assert load.get("running_requests").value == 3
        assert load.get("endpoints_up").value == 1
        assert load.get("failure_ratio").value is None
        assert (observation.traffic, observation.gateways) == (None, 2)
        await feed.retarget(policy(site, "ok"))
        load = (await feed.read(time.time())).loads["m:v1"]
        assert load.get("endpoints_up").count == 1
    finally:
        await feed.close()
