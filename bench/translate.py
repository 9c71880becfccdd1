"""Translation and encoding alone, for 10,000 keys: a tick, a tick without a change, and what a reload costs.

    uv run python -m bench.translate [--report FILE.json]

500 tenants with an API key each on 20 model versions; a reload is a policy compiled anew with one tenant, one
endpoint or one version changed. CPU time of the thread, not wall time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.tick import policy as bare_policy
from controlplane.assets import read_asset
from controlplane.model.decision import Decision
from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Endpoint, Policy
from controlplane.model.resource import EXTENSION, Snapshot
from controlplane.report import Criterion, Report, write
from controlplane.xds.lua_code import lua_code
from controlplane.xds.translate import Translator

TICKS = 30


def policy() -> Policy:
    """`bench.tick`'s world with an API key for each tenant."""
    made = bare_policy()
    tenants = tuple(
        replace(tenant, key_digests=(f"{number:064x}",)) for number, tenant in enumerate(made.tenants)
    )
    return replace(made, tenants=tenants)


def decision(of: Policy, seed: int) -> Decision:
    """Another rate for every key."""
    rates = np.random.default_rng(seed).uniform(0.1, 100.0, len(of.keys))
    return Decision(
        now_s=float(seed),
        pools={},
        rate_per_s=rates,
        demand_per_s=rates,
        fair_per_s=rates,
        reason=np.zeros(len(rates), dtype=np.int8),
        burst_s=np.full(len(rates), 15.0),
    )


def _cpu_ms(translate: Callable[[], Snapshot]) -> float:
    before_s = time.thread_time()
    translate()
    return (time.thread_time() - before_s) * 1000


def _one_endpoint_more(of: Policy) -> Policy:
    first, *others = of.pools
    more = (*first.endpoints, Endpoint(address="127.0.0.1", port=7999))
    return replace(of, pools=(replace(first, endpoints=more), *others))


def _one_tenant_changed(of: Policy) -> Policy:
    first, *others = of.tenants
    return replace(of, tenants=(replace(first, key_digests=("f" * 64,)), *others))


def measure() -> tuple[dict[str, float], dict[str, int]]:
    """CPU milliseconds of each kind of work, bytes of each script."""
    world, translator = policy(), Translator(lua_code(read_asset))
    members = [GatewayMember(id="gw0")]
    costs = {"first": _cpu_ms(lambda: translator.snapshot(world, decision(world, 0), members))}
    ticks = [decision(world, seed) for seed in range(1, TICKS + 1)]
    costs["tick"] = statistics.median(
        _cpu_ms(lambda made=made: translator.snapshot(world, made, members))  # type: ignore[misc]
        for made in ticks
    )
    costs["unchanged"] = _cpu_ms(lambda: translator.snapshot(world, ticks[-1], members))
    for name, changed in (
        ("reload_equal", policy()),
        ("reload_tenant", _one_tenant_changed(policy())),
        ("reload_endpoint", _one_endpoint_more(policy())),
    ):
        costs[name] = _cpu_ms(
            lambda changed=changed: translator.snapshot(changed, ticks[-1], members)  # type: ignore[misc]
        )
    scripts = translator.snapshot(world, ticks[-1], members).of_type(EXTENSION)
    return costs, {name: len(resource.body) for name, resource in scripts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    costs, sizes = measure()
    report = Report(
        criteria=(
            Criterion.at_most("tick_cpu", 80.0, round(costs["tick"], 2), "ms, median"),
            Criterion.at_most("unchanged_cpu", 5.0, round(costs["unchanged"], 2), "ms"),
        ),
        details={
            "keys": len(policy().keys),
            "cpu_ms": {name: round(cost, 2) for name, cost in costs.items()},
            "script_bytes": sizes,
        },
    )
    for name, cost in costs.items():
        print(f"{name:>16}: {cost:8.2f} ms CPU")
    print(", ".join(f"{name} {size / 1000:.0f} kB" for name, size in sizes.items()))
    if arguments.report:
        write(report, arguments.report)
    raise SystemExit(report.exit_code)


if __name__ == "__main__":
    main()
