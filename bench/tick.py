"""One whole tick for 10,000 keys: judgement, translation and encoding of everything that goes to Envoy.

    uv run python -m bench.tick [--report FILE.json]

The world is 500 tenants on 20 model versions, one route; every pool's utilisation moves at every tick, so
every cost changes. The second figure is a tick in which nothing changed. CPU time of the thread, not wall
time; compare the figures of one run with each other.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from controlplane.app import fleet
from controlplane.assets import read_asset
from controlplane.decide import step
from controlplane.model.policy import (
    Endpoint,
    Gateways,
    Guards,
    Key,
    Listener,
    Model,
    Policy,
    Pool,
    Priority,
    RatePolicy,
    Route,
    SignalPolicy,
    Tenant,
)
from controlplane.model.resource import Snapshot
from controlplane.model.signal import KeyTraffic, Load, Observation, Reading
from controlplane.report import Criterion, Report, write
from controlplane.xds.lua_code import lua_code
from controlplane.xds.translate import Translator

TENANTS, VERSIONS, TICKS = 500, 20, 40


def policy() -> Policy:
    """500 tenants of three weights, each on all 20 versions."""
    pools = tuple(
        Pool(
            model="chat",
            version=f"v{i:02d}",
            endpoints=(Endpoint(address="127.0.0.1", port=8000 + i),),
            rate=RatePolicy(base_rate_per_s=5000.0, guards=Guards(enabled=False)),
        )
        for i in range(VERSIONS)
    )
    keys = tuple(
        Key(
            route="chat",
            tenant=f"tenant-{tenant:04d}",
            pool=pool.id,
            priority=Priority.NORMAL,
            weight=1.0 + tenant % 3,
            guarantee_per_s=0.0,
            ceiling_per_s=None,
            pin_per_s=None,
        )
        for tenant in range(TENANTS)
        for pool in pools
    )
    return Policy(
        listener=Listener(),
        gateways=Gateways(max_count=4),
        signals=SignalPolicy(),
        models=(Model(name="chat", versions=tuple(p.version for p in pools), default_version="v00"),),
        pools=pools,
        routes=(Route(id="chat", pattern="/v1/chat/completions", models=("chat",)),),
        tenants=tuple(Tenant(id=f"tenant-{tenant:04d}") for tenant in range(TENANTS)),
        keys=tuple(sorted(keys, key=lambda key: key.id)),
    )


def observation(world: Policy, tick: int, traffic: dict[str, KeyTraffic]) -> Observation:
    """Utilisation wanders between 30 and 90 %, differently in each pool."""
    now_s = 1000.0 + tick
    loads = {
        pool.id: Load(
            readings={
                "gpu_util_percent": Reading(
                    value=30.0 + (tick * 7 + place * 3) % 60, sampled_at_s=now_s, count=1, source="bench"
                )
            }
        )
        for place, pool in enumerate(world.pools)
    }
    return Observation(now_s=now_s, loads=loads, traffic=traffic, gateways=2)


def measure() -> tuple[list[float], list[float], int, int]:
    """CPU seconds of changing and of unchanged ticks, snapshots made by the unchanged ones, bytes."""
    world = policy()
    traffic = {key.id: KeyTraffic(offered_per_s=20.0, limited_per_s=5.0) for key in world.keys}
    translator, members = Translator(lua_code(read_asset)), fleet.members(2)
    state = step.start(world)
    changing: list[float] = []
    unchanged: list[float] = []
    encoded, size = 0, 0
    previous: Snapshot | None = None
    for tick in range(TICKS):
        for repeat, costs in ((False, changing), (True, unchanged)):
            seen = observation(world, tick, traffic)
            before_s = time.thread_time()
            state, decision = step.step(world, state, seen)
            snapshot = translator.snapshot(world, decision, members)
            costs.append(time.thread_time() - before_s)
            if repeat:
                encoded += snapshot is not previous
            previous = snapshot
            size = sum(len(r.body) for kind in snapshot.resources.values() for r in kind.values())
    return changing[1:], unchanged[1:], encoded, size  # the first tick compiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    changing, unchanged, encoded, size = measure()
    full_ms, idle_ms = (statistics.median(costs) * 1000 for costs in (changing, unchanged))
    worst_ms = max(changing) * 1000
    report = Report(
        criteria=(
            Criterion.at_most("full_tick_cpu", 150.0, round(full_ms, 2), "ms, median"),
            Criterion.equal("published_when_unchanged", 0, encoded, "snapshots"),
        ),
        details={
            "keys": TENANTS * VERSIONS,
            "ticks": len(changing),
            "full_tick_cpu_ms": {"median": round(full_ms, 2), "max": round(worst_ms, 2)},
            "unchanged_tick_cpu_ms": round(idle_ms, 2),
            "unchanged_to_full_ratio": round(idle_ms / full_ms, 3),
            "snapshot_bytes": size,
        },
    )
    print(f"{TENANTS * VERSIONS} keys: full tick {full_ms:.1f} ms CPU (median; max {worst_ms:.1f})")
    print(
        f"unchanged tick {idle_ms:.1f} ms CPU, {encoded} snapshots published; snapshot {size / 1000:.0f} kB"
    )
    if arguments.report:
        write(report, arguments.report)
    raise SystemExit(report.exit_code)


if __name__ == "__main__":
    main()
