"""A real Prometheus that scrapes simulated pods gives the readings of a direct scrape, and the decisions."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import policies
import pytest
import pytest_asyncio
import yaml
from policies import CHAT

from controlplane.decide import step
from controlplane.model.decision import Decision, PoolState
from controlplane.model.policy import (
    Endpoint,
    Guards,
    Policy,
    Pool,
    PrometheusPolicy,
    RatePolicy,
    SignalChoice,
    SignalPolicy,
)
from controlplane.model.signal import Reading
from controlplane.signals.catalogue import load_catalogue
from controlplane.signals.collate import collate
from controlplane.signals.gpu import Layout
from controlplane.signals.prometheus import PrometheusSource
from controlplane.signals.scrape import ScrapeSource
from controlplane.sim import control, dcgm_text
from controlplane.sim.physics import Physics
from controlplane.sim.pods import Fleet, FleetSpec, PodSpec, serving

pytestmark = [pytest.mark.prometheus, pytest.mark.asyncio(loop_scope="module")]

WINDOW_S = 8.0
RULES = Path(__file__).parents[2] / "docs" / "prometheus-rules.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Two versions of a model, three pods, a GPU exporter, and a Prometheus that scrapes all."""

    fleet: Fleet
    pools: tuple[Pool, ...]
    prometheus: PrometheusPolicy
    session: aiohttp.ClientSession

    def scrape(self) -> ScrapeSource:
        policy = SignalPolicy(gpu_exporter_urls=(self.fleet.dcgm_url or "",))
        return ScrapeSource(
            self.pools, policy, load_catalogue(), clock=time.time, window_s=WINDOW_S, patience_s=1.0
        )

    def source(self, **changes: Any) -> PrometheusSource:
        policy = replace(self.prometheus, **changes)
        return PrometheusSource(self.pools, policy, load_catalogue(), clock=time.time)


@contextlib.asynccontextmanager
async def scene(
    executable: Path, folder: Path, *, layout: dcgm_text.Layout = dcgm_text.Layout.POD, labelled: bool = False
) -> AsyncIterator[Scene]:
    """`labelled`: series carry `version` labels and no pod, as after relabelling by an operator."""
    pods = tuple(
        PodSpec(name=name, model="llama", version=version, physics=Physics())
        for name, version in (("llama-v1-a", "v1"), ("llama-v1-b", "v1"), ("llama-v2-a", "v2"))
    )
    async with contextlib.AsyncExitStack() as stack:
        spec = FleetSpec(pods=pods, time_scale=4.0, idle_gpus=1, dcgm_layout=dcgm_text.Layout.POD)
        fleet = await stack.enter_async_context(serving(spec))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = await stack.enter_async_context(
            prometheus(executable, folder, configuration(fleet, layout=layout, labelled=labelled), session)
        )
        pools = tuple(
            Pool(
                model="llama",
                version=version,
                endpoints=tuple(
                    Endpoint(
                        address="127.0.0.1",
                        port=pod.port,
                        metrics_url=f"{pod.url}/metrics",
                        pod=None if labelled else pod.name,
                        namespace=None if labelled else "default",
                    )
                    for pod in fleet.pods
                    if pod.version == version
                ),
            )
            for version in ("v1", "v2")
        )
        await eventually(lambda: scraped(session, url, targets=len(pods) + 1), within_s=20.0)
        policy = PrometheusPolicy(url=url, window_s=WINDOW_S, lookback_s=10.0)
        yield Scene(fleet=fleet, pools=pools, prometheus=policy, session=session)


def configuration(fleet: Fleet, *, layout: dcgm_text.Layout, labelled: bool) -> dict[str, Any]:
    """What a ServiceMonitor and the DCGM chart become. honorLabels: false moves the GPU's user to
    exported_pod.
    """
    exported = layout is dcgm_text.Layout.EXPORTED_POD
    servers = [
        {
            "targets": [f"127.0.0.1:{pod.port}"],
            "labels": {"version": pod.version, "instance": f"relabelled-{pod.name}"}
            if labelled
            else {"namespace": "default", "pod": pod.name},
        }
        for pod in fleet.pods
    ]
    exporter = (fleet.dcgm_url or "").removeprefix("http://").removesuffix("/metrics")
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {"job_name": "servers", "static_configs": servers},
            {
                "job_name": "dcgm",
                "honor_labels": not exported,
                "static_configs": [
                    {
                        "targets": [exporter],
                        "labels": {"pod": "dcgm-exporter-x7", "namespace": "gpu-operator"},
                    }
                ],
            },
        ],
    }


@contextlib.asynccontextmanager
async def prometheus(
    executable: Path, folder: Path, document: dict[str, Any], session: aiohttp.ClientSession
) -> AsyncIterator[str]:
    """A Prometheus with this configuration and the shipped rules (over the test's window); its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    rules = (
        RULES.read_text(encoding="utf-8")
        .replace("[5m]", f"[{WINDOW_S:.0f}s]")
        .replace("interval: 15s", "interval: 1s")
    )
    (folder / "rules.yaml").write_text(rules, encoding="utf-8")
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            executable,
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        await eventually(lambda: ready(session, f"{url}/-/ready"), within_s=15.0)
        yield url
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


async def ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def scraped(session: aiohttp.ClientSession, url: str, *, targets: int) -> bool:
    """Whether every target was scraped: Prometheus starts with them some seconds after it is ready."""
    async with session.get(f"{url}/api/v1/query", params={"query": "sum(up)"}) as response:
        rows = (await response.json())["data"]["result"]
    return bool(rows) and float(rows[0]["value"][1]) >= targets


async def eventually(holds: Callable[[], Awaitable[bool]], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < deadline, "it never held"
        await asyncio.sleep(0.1)


async def ask(session: aiohttp.ClientSession, url: str) -> None:
    body = {"model": "llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200
        await response.read()


async def steady_load(scene: Scene, seconds: float) -> None:
    """About 20 requests/s to every pod."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.gather(*(ask(scene.session, pod.url) for pod in scene.fleet.pods), asyncio.sleep(0.05))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What both sources read at the end of some seconds of load."""

    world: Scene
    direct: Mapping[str, Mapping[str, Reading]]
    remote: Mapping[str, Mapping[str, Reading]]
    layouts: Mapping[Layout, int]


async def measure(world: Scene, seconds: float) -> Measured:
    """Load every pod, scrape it directly all the while, and ask Prometheus at the end."""
    direct, source = world.scrape(), world.source()
    try:
        load = asyncio.create_task(steady_load(world, seconds))
        while not load.done():
            await direct.read(time.time())
            await asyncio.wait([load], timeout=1.0)
        await load
        await asyncio.sleep(1.2)  # one more scrape of Prometheus
        found = await direct.read(time.time()), await source.read(time.time())
    finally:
        await direct.close()
        await source.close()
    return Measured(world=world, direct=found[0], remote=found[1], layouts=source.layouts)


GAUGES = ("gpu_util_percent", "kv_cache_usage_ratio", "waiting_requests", "running_requests", "endpoints_up")
POOLS = pytest.mark.parametrize(
    ("pool", "gpu_percent"), [("llama:v1", 50.0), ("llama:v2", 90.0)], ids=["v1", "v2"]
)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["pod", "exported_pod", "version_label"])
async def measured(
    request: pytest.FixtureRequest, prometheus_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Measured]:
    """One Prometheus per way of labelling, loaded once for all tests."""
    labelled = request.param == "version_label"
    layout = dcgm_text.Layout.POD if labelled else dcgm_text.Layout(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    async with scene(prometheus_path, folder, layout=layout, labelled=labelled) as world:
        for pod, percent in zip(world.fleet.pods, (40.0, 60.0, 90.0), strict=True):
            await control.set_gpu(world.session, pod, util_percent=percent)
        yield await measure(world, seconds=WINDOW_S)


@POOLS
async def test_prometheus_and_direct_scrape_read_the_same(
    measured: Measured, pool: str, gpu_percent: float
) -> None:
    direct, remote = measured.direct[pool], measured.remote[pool]
    if pool_has_pods(measured, pool):
        assert remote["gpu_util_percent"].value == gpu_percent
    for name in GAUGES:
        assert remote[name].value == direct[name].value, name
    for name in ("ttft_p95_s", "latency_p95_s"):
        assert remote[name].value == pytest.approx(direct[name].value, rel=0.3), name
        assert remote[name].count > 20
    assert remote["completed_per_s"].value == pytest.approx(direct["completed_per_s"].value, rel=0.5)


RULES_OF_RATE = {
    "raw counter, literal": RatePolicy(guards=Guards(enabled=False)),
    "raw counter, guarded": RatePolicy(),
    "effective, literal": RatePolicy(signal=SignalChoice.EFFECTIVE, guards=Guards(enabled=False)),
    "effective, guarded": RatePolicy(signal=SignalChoice.EFFECTIVE, target_waiting=1.0),
}


@pytest.mark.parametrize("rate", RULES_OF_RATE.values(), ids=RULES_OF_RATE.keys())
async def test_prometheus_and_direct_scrape_lead_to_the_same_decisions(
    measured: Measured, rate: RatePolicy
) -> None:
    pools = tuple(replace(pool, rate=rate) for pool in measured.world.pools)
    made = policies.policy(("acme", "globex"), pools=pools, routes=(replace(CHAT, models=("llama",)),))
    direct, remote = (_decided(made, source) for source in (measured.direct, measured.remote))
    for pool in pools:
        one, other = direct.pools[pool.id], remote.pools[pool.id]
        assert (one.state, one.rate_per_s, one.utilisation_percent) == (
            other.state,
            other.rate_per_s,
            other.utilisation_percent,
        )
        if pool_has_pods(measured, pool.id):
            assert one.state in (PoolState.LIVE, PoolState.UNINFORMATIVE)
    assert direct.rate_per_s.tolist() == remote.rate_per_s.tolist()


def _decided(made: Policy, readings: Mapping[str, Mapping[str, Reading]]) -> Decision:
    """The decision of one tick on what one source read."""
    now_s = max(reading.sampled_at_s or 0.0 for of_pool in readings.values() for reading in of_pool.values())
    seen = collate(made.pools, [readings], traffic=None, gateways=1, now_s=now_s)
    return step.step(made, step.start(made), seen)[1]


def pool_has_pods(measured: Measured, pool: str) -> bool:
    return any(e.pod for each in measured.world.pools if each.id == pool for e in each.endpoints)


async def test_ages_are_those_of_the_samples(measured: Measured) -> None:
    source = measured.world.source()
    found = (await source.read(time.time()))["llama:v1"]
    await source.close()
    for name in ("running_requests", "ttft_p95_s"):
        age_s = found[name].age_s(time.time())
        assert age_s is not None
        assert age_s < 4


async def test_the_label_layout_is_reported(measured: Measured, request: pytest.FixtureRequest) -> None:
    if "version_label" not in request.node.name:
        assert measured.layouts[Layout(request.node.callspec.params["measured"])] >= 3


async def test_the_quantile_is_the_literal_promql(measured: Measured) -> None:
    literal = (
        "histogram_quantile(0.95, sum by (le, model_name) "
        f"(rate(vllm:e2e_request_latency_seconds_bucket{{{{}}}}[{WINDOW_S:.0f}s])))"
    )
    url, world = f"{measured.world.prometheus.url}/api/v1/query", measured.world
    source = world.source()
    found = await source.read(time.time())
    await source.close()
    for pool in world.pools:
        names = "|".join(pod.name for pod in world.fleet.pods if pod.version == pool.version)
        label = "pod" if pool.endpoints[0].pod else "instance"
        chosen = f'{label}=~".*({names})"'
        async with world.session.get(url, params={"query": literal.format(chosen)}) as response:
            rows = (await response.json())["data"]["result"]
        expected = float(rows[0]["value"][1])
        assert found[pool.id]["latency_p95_s"].value == pytest.approx(expected, rel=0.05)


async def test_recording_rules_give_the_same_numbers(measured: Measured) -> None:
    source, ruled = measured.world.source(), measured.world.source(recording_rules=True)
    plain, recorded = await source.read(time.time()), await ruled.read(time.time())
    await source.close()
    await ruled.close()
    for name in ("ttft_p95_s", "latency_p95_s", "completed_per_s"):
        assert recorded["llama:v1"][name].value is not None
        assert recorded["llama:v1"][name].value == pytest.approx(plain["llama:v1"][name].value, rel=0.3)


async def test_a_pool_that_prometheus_does_not_know_is_absent(measured: Measured) -> None:
    stranger = replace(measured.world.pools[0], model="unknown", endpoints=())
    source = PrometheusSource([stranger], measured.world.prometheus, load_catalogue(), clock=time.time)
    found = (await source.read(time.time()))["unknown:v1"]
    await source.close()
    assert all(reading.value is None and reading.absent for reading in found.values())


async def test_blank_and_vanished_metrics_are_absent_with_reasons(
    prometheus_path: Path, tmp_path: Path
) -> None:
    async with scene(prometheus_path, tmp_path) as world:
        for pod in world.fleet.pods:
            await control.set_gpu(world.session, pod, blank=True)
            await control.set_faults(world.session, pod, hide_metrics=["vllm:kv_cache_usage_perc"])
        await asyncio.sleep(2.2)
        source = world.source(lookback_s=1.8)
        found = (await source.read(time.time()))["llama:v1"]
        await source.close()
    assert found["gpu_util_percent"].value is None
    assert "outside 0..100 percent" in found["gpu_util_percent"].absent
    assert found["kv_cache_usage_ratio"].not_exposed
    assert found["ttft_p95_s"].value is None
    assert "no requests in the last 8 s" in found["ttft_p95_s"].absent
