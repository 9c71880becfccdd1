"""CPU time of judgement: one tick of 10,000 keys over 20 pools, demand and utilisation moving in each.

    uv run python bench/decide.py [--keys N] [--pools N] [--ticks N] [--report FILE.json]

Three classes, weights, guarantees and a fifth of the keys saturated: the dearest path through the sharing.
What is timed is `step.step` alone, in CPU time of this process; the observation is made before the clock
starts.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

import numpy as np

from controlplane.decide import step
from controlplane.decide.plan import compile_plan
from controlplane.model.policy import (
    Gateways,
    Key,
    Listener,
    Policy,
    Pool,
    Priority,
    RatePolicy,
    SignalPolicy,
)
from controlplane.model.signal import KeyTraffic, Load, Observation, Reading
from controlplane.report import Criterion, Report, write

TICK_MS_MAX = 20.0
COMPILE_MS_MAX = 500.0  # once for each change of the policy


def policy(keys: int, pools: int) -> Policy:
    """`keys` keys spread over `pools` pools, with every feature of sharing in use."""
    ranks = list(Priority)
    made = tuple(
        Pool(model=f"m{i:03}", version="v1", endpoints=(), rate=RatePolicy(base_rate_per_s=500.0))
        for i in range(pools)
    )
    rows = (
        Key(
            route="chat",
            tenant=f"t{i:05}",
            pool=made[i % pools].id,
            priority=ranks[(i // pools) % 3],
            weight=1.0 + i % 7,
            guarantee_per_s=0.1 if i % 11 == 0 else 0.0,
            ceiling_per_s=5.0 if i % 13 == 0 else None,
            pin_per_s=1.0 if i % 997 == 0 else None,
        )
        for i in range(keys)
    )
    return Policy(
        listener=Listener(),
        gateways=Gateways(max_count=4),
        signals=SignalPolicy(),
        models=(),
        pools=made,
        routes=(),
        tenants=(),
        keys=tuple(sorted(rows, key=lambda key: key.id)),
    )


def observation(of: Policy, now_s: float, random: np.random.Generator) -> Observation:
    """A second of the world: noisy utilisation, a fifth of the keys far above their share."""
    size = len(of.keys)
    offered = random.exponential(0.5, size) * np.where(random.random(size) < 0.2, 100.0, 1.0)
    percents = np.clip(60.0 + 15.0 * random.standard_normal(len(of.pools)), 0.0, 100.0)
    return Observation(
        now_s=now_s,
        loads={
            pool.id: Load(readings={"gpu_util_percent": Reading(value=float(u), sampled_at_s=now_s)})
            for pool, u in zip(of.pools, percents, strict=True)
        },
        traffic={
            key.id: KeyTraffic(offered_per_s=float(work)) for key, work in zip(of.keys, offered, strict=True)
        },
    )


def measure(of: Policy, ticks: int) -> list[float]:
    """CPU milliseconds of each tick."""
    random = np.random.default_rng(7)
    state, spent_ms = step.start(of), []
    for tick in range(ticks):
        seen = observation(of, 1000.0 + tick, random)
        started_s = time.process_time()
        state, _ = step.step(of, state, seen)
        spent_ms.append((time.process_time() - started_s) * 1e3)
    return spent_ms


def report(keys: int, pools: int, ticks: int) -> Report:
    """Measure and judge."""
    of = policy(keys, pools)
    started_s = time.process_time()
    compile_plan(of)
    compile_ms = (time.process_time() - started_s) * 1e3
    spent_ms = measure(of, ticks)
    median, p95 = (float(np.quantile(spent_ms, q)) for q in (0.5, 0.95))
    return Report(
        criteria=(
            Criterion.at_most("tick-p50", TICK_MS_MAX, round(median, 3), "ms of CPU"),
            Criterion.at_most("compile", COMPILE_MS_MAX, round(compile_ms, 3), "ms of CPU"),
        ),
        details={
            "keys": keys,
            "pools": pools,
            "ticks": ticks,
            "tick_p95_ms": round(p95, 3),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
    )


def main() -> int:
    """Print the criteria; exit 0 when all of them hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--pools", type=int, default=20)
    parser.add_argument("--ticks", type=int, default=50)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    found = report(given.keys, given.pools, given.ticks)
    for one in found.criteria:
        print(f"{'ok  ' if one.holds else 'FAIL'} {one.id}: {one.measured} {one.unit} (must be {one.must})")
    if given.report:
        write(found, given.report)
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
