"""The demo from start to verdict: starts everything, plays the story, looks on, and judges."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from controlplane.decide.curve import rate_factor
from controlplane.demo import real_answer, streaming, world
from controlplane.demo.processes import free_ports, running_control_plane, running_envoy
from controlplane.demo.story import BASE_RATE_PER_S, Phase, story
from controlplane.demo.verdict import Evidence, KeyLog, Window, criteria, phase_results, quantile
from controlplane.demo.watching import Watch, fetch, watch_decisions
from controlplane.envoy_binary import find_envoy
from controlplane.model.policy import Curve
from controlplane.report import Report
from controlplane.sim import control
from controlplane.sim.load import SPOOF_MARK, LoadResult, replay
from controlplane.sim.pods import Fleet, running_pods
from controlplane.xds.bootstrap import Gateway, bootstrap

GPU_VISIBLE_WITHIN_S = 3.0
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that runs, and where."""

    http: aiohttp.ClientSession
    fleet: Fleet
    ports: world.Ports
    directory: Path  # the configuration
    logs: Path
    envoy_version: str

    @property
    def real_model(self) -> bool:
        """Whether one of the pods is a real language model."""
        return any(pod.model == world.REAL_MODEL for pod in self.fleet.pods)

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.gateway}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.admin}"


@dataclass(slots=True)
class Progress:
    """What the live table shows; the newest of everything."""

    say: str = "starting"
    decision: dict[str, Any] | None = None
    totals: dict[str, dict[str, int]] = field(default_factory=dict)
    finished: bool = False
    changed: Callable[[], None] = lambda: None

    def update(self) -> None:
        self.changed()


@asynccontextmanager
async def running_stage(progress: Progress, *, real_model: bool) -> AsyncIterator[Stage]:
    """Pods, control plane and Envoy, up and ready to serve; raises EnvoyNotFound before it starts any."""
    find_envoy()
    folder = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=32))
        )
        _say(progress, "starting simulated vLLM pods")
        spec = world.fleet_spec(real_model=real_model)
        fleet = await stack.enter_async_context(running_pods(spec, ready_within_s=120 if real_model else 30))
        ports, directory = free_ports(), folder / "config"
        _write(directory, world.files(fleet, ports, guards=False))
        await _script_gpu(http, fleet, 15.0)
        _say(progress, "starting the control plane")
        await stack.enter_async_context(running_control_plane(http, directory, ports, folder))
        _say(progress, "starting Envoy")
        gateway = Gateway(node_id="demo-gateway", xds_port=ports.xds, admin_port=ports.gateway_admin)
        version = await stack.enter_async_context(running_envoy(http, bootstrap(gateway), ports, folder))
        stage = Stage(
            http=http, fleet=fleet, ports=ports, directory=directory, logs=folder, envoy_version=version
        )
        await _until_serving(stage)
        yield stage


async def play(stage: Stage, progress: Progress, total_s: float) -> Report:
    """The story, and the verdict over it."""
    phases = story(total_s)
    watch = Watch()

    def newest(document: dict[str, Any]) -> None:
        progress.decision = document
        progress.update()

    def load_progress(document: dict[str, Any]) -> None:
        progress.totals = document["keys"]
        progress.update()

    if stage.real_model:
        _say(progress, "waiting for the real model's weights")
        await real_answer.until_loaded(stage.http, stage.fleet)
    _say(progress, "measuring the first chunk of a stream")
    added_ms = await streaming.added_first_chunk_ms(
        stage.http, stage.gateway_url, stage.fleet.pods[0].url, world.TENANTS[0].api_key
    )
    for pod in stage.fleet.pods:
        await control.reset(stage.http, pod)
    await _script_gpu(stage.http, stage.fleet, phases[0].gpu_util_percent)
    before = await fetch(stage.http, f"{stage.admin_url}/v1/xds") or {}
    start_s = time.time() + SETTLE_S
    watcher = asyncio.create_task(watch_decisions(stage.http, stage.admin_url, watch, newest))
    load = asyncio.create_task(replay(world.load_spec(phases, stage.ports, start_s), load_progress))
    try:
        await _direct(stage, progress, phases, start_s)
        result = await load
    finally:
        for task in (watcher, load):
            task.cancel()
        await asyncio.gather(watcher, load, return_exceptions=True)
    _say(progress, "judging")
    found = await _judge(stage, phases, start_s, watch, result, added_ms, before)
    return await _with_real_answer(stage, found) if stage.real_model else found


async def _with_real_answer(stage: Stage, found: Report) -> Report:
    answer = await real_answer.ask(stage.http, stage.gateway_url, world.TENANTS[0].api_key)
    details = {"real_model": {"question": real_answer.QUESTION, **asdict(answer)}}
    return Report(criteria=(*found.criteria, answer.criterion()), details={**found.details, **details})


async def _direct(stage: Stage, progress: Progress, phases: tuple[Phase, ...], start_s: float) -> None:
    """Move the GPU counters and the configuration as the story says."""
    starts = world.phase_starts(phases)
    for phase in phases:
        await asyncio.sleep(max(0.0, start_s + starts[phase.id] - time.time()))
        _say(progress, phase.title)
        await _script_gpu(stage.http, stage.fleet, phase.gpu_util_percent)
        if phase.reload_guards:
            await asyncio.sleep(phase.seconds / 3)
            await _reload_guarded(stage)
    last = phases[-1]
    await asyncio.sleep(max(0.0, start_s + starts[last.id] + last.seconds - time.time()))


async def _reload_guarded(stage: Stage) -> None:
    """Rewrite the configuration with guards on, and wait until it is in force."""
    before = await fetch(stage.http, f"{stage.admin_url}/v1/config") or {}
    _write(stage.directory, world.files(stage.fleet, stage.ports, guards=True))
    for _ in range(50):
        now = await fetch(stage.http, f"{stage.admin_url}/v1/config") or {}
        if now.get("in_force") and now.get("reloads") != before.get("reloads"):
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("the changed configuration was not reloaded in time")


async def _judge(
    stage: Stage,
    phases: tuple[Phase, ...],
    start_s: float,
    watch: Watch,
    result: LoadResult,
    added_ms: float | None,
    before: dict[str, Any],
) -> Report:
    keys = [_key_log(key, result) for key in world.route_keys()]
    xds = await fetch(stage.http, f"{stage.admin_url}/v1/xds") or {}
    colours = [await control.fetch_seen(stage.http, pod) for pod in _measured_pods(stage.fleet)]
    evidence = Evidence(
        windows=[window for phase in phases if (window := _window(phase, phases, start_s, watch))],
        keys=keys,
        lines={key.key: watch.line(key.key) for key in keys},
        curve_per_s={phase.id: _curve_per_s(phase) for phase in phases},
        nacks=int(xds.get("nacks", 0)),
        pushes=int(xds.get("pushes", 0)),
        visible_to_acked_s=[float(seconds) for seconds in xds.get("visible_to_acked_s", ())],
        spoofed_requests=sum(int(seen["requests"]) for seen in colours),
        spoofed_replaced=sum(_clean_requests(seen) for seen in colours),
        sse_added_ms=added_ms,
    )
    measured = {window.phase for window in evidence.windows}
    missing = [phase.id for phase in phases if phase.measured and phase.id not in measured]
    return Report(
        criteria=tuple(criteria(evidence, missing=missing)),
        details=_details(stage, evidence, result, int(before.get("pushes", 0))),
    )


def _details(stage: Stage, evidence: Evidence, result: LoadResult, pushes_before: int) -> dict[str, Any]:
    reactions = evidence.visible_to_acked_s
    p50, p95 = (quantile(reactions, q) for q in (0.5, 0.95))
    return {
        "envoy_version": stage.envoy_version,
        "totals": {
            key.name: {"offered": totals.offered, "admitted": totals.admitted, "limited": totals.limited}
            for key in result.keys
            for totals in (key.totals(),)
        },
        "phases": [
            {name: getattr(row, name) for name in type(row).__dataclass_fields__}
            for row in phase_results(evidence)
        ],
        "visible_to_acked_ms": {
            "count": len(reactions),
            "p50": None if p50 is None else round(p50 * 1000, 1),
            "p95": None if p95 is None else round(p95 * 1000, 1),
        },
        "pushes": evidence.pushes - pushes_before,
        "nacks": evidence.nacks,
        "load": {"unsent": result.unsent, "late_p99_ms": round(result.late_p99_s * 1000, 1)},
    }


def _window(phase: Phase, phases: tuple[Phase, ...], start_s: float, watch: Watch) -> Window | None:
    """The phase as it ran: from the first decision on its signal until its planned end."""
    if not phase.measured:
        return None
    planned_s = start_s + world.phase_starts(phases)[phase.id]
    pools = frozenset(f"{world.MODEL}:{version}" for version in world.VERSIONS)
    seen_s = watch.first_with(phase.gpu_util_percent, planned_s, pools)
    if seen_s is None or seen_s > planned_s + GPU_VISIBLE_WITHIN_S:
        return None
    return Window(
        phase=phase.id,
        start_s=seen_s,
        end_s=planned_s + phase.seconds,
        limited=phase.limited,
        follows_slew=phase.follows_slew,
    )


def _key_log(key: world.RouteKey, result: LoadResult) -> KeyLog:
    rows = result.key(key.id)
    pairs = sorted(zip(rows.sent_s, rows.status, strict=True))
    totals = rows.totals()
    return KeyLog(
        key=key.id,
        weight_share=key.weight_share,
        offered_s=[sent_s for sent_s, _ in pairs],
        admitted_s=[sent_s for sent_s, status in pairs if 200 <= status < 300],
        errors=totals.errors + totals.cut + totals.pending,
    )


def _curve_per_s(phase: Phase) -> float:
    factor = rate_factor(phase.gpu_util_percent, Curve.TABLE)
    assert factor is not None
    return factor * BASE_RATE_PER_S


def _clean_requests(seen: dict[str, Any]) -> int:
    """Requests without any forged value, and with the true tenant's colour."""
    headers = seen["headers"]
    forged = sum(
        int(count)
        for entry in headers.values()
        for value, count in entry["values"].items()
        if SPOOF_MARK in value
    )
    repeated = sum(int(entry["repeated"]) for entry in headers.values())
    tenants = headers.get("x-tidegate-tenant", {"values": {}})["values"]
    true = sum(int(tenants.get(tenant.id, 0)) for tenant in world.TENANTS)
    return max(0, true - forged - repeated)


def _measured_pods(fleet: Fleet) -> list[Any]:
    return [pod for pod in fleet.pods if pod.model == world.MODEL]


async def _script_gpu(http: aiohttp.ClientSession, fleet: Fleet, util_percent: float) -> None:
    pods = _measured_pods(fleet)
    await asyncio.gather(*(control.set_gpu(http, pod, util_percent=util_percent) for pod in pods))


async def _until_serving(stage: Stage) -> None:
    """Until Envoy has its configuration and serves a request."""
    headers = {"authorization": f"Bearer {world.TENANTS[0].api_key}"}
    deadline_s = time.monotonic() + 20
    status = 0
    while status != 200:
        if time.monotonic() > deadline_s:
            tail = (stage.logs / "envoy.log").read_text(encoding="utf-8", errors="replace")[-1500:]
            raise RuntimeError(f"Envoy does not serve (last status {status}):\n{tail}")
        try:
            async with stage.http.get(f"{stage.gateway_url}/v1/models", headers=headers) as response:
                status = response.status
        except aiohttp.ClientError:
            status = 0
        await asyncio.sleep(0.05)


def _write(directory: Path, texts: dict[str, str]) -> None:
    """Write the files as an operator's tool would: each replaced as a whole."""
    for name, text in texts.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)


def _say(progress: Progress, text: str) -> None:
    progress.say = text
    progress.update()
