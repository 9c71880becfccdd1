"""The discovery service at scale, in one run: 1,000 subscribers, 10,000 keys, a restart, a poisoned resource.

    uv run python -m bench.xds [--subscribers N] [--report FILE.json]

Absolute times are those of the machine and its load; what is judged against another figure of the same run
(a bare grpc.aio stream echo, the official protobuf runtime) is meant to be compared between machines. Every
scenario runs in processes of its own (`bench.fleet`), clients apart from the server.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from controlplane.report import Criterion, Report, write

ROOT = Path(__file__).resolve().parent.parent
WITHIN_S = 100
Found = dict[str, Any]


def run(module: str, *arguments: object) -> Found:
    """What one scenario printed; empty when it failed, with its words on the terminal."""
    line = [sys.executable, "-m", f"bench.fleet.{module}", *map(str, arguments)]
    try:
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"{module} {arguments}: took more than {WITHIN_S} s", file=sys.stderr)
        return {}
    if done.returncode != 0:
        print(done.stderr[-2000:], file=sys.stderr)
        return {}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def criteria(found: dict[str, Found]) -> tuple[Criterion, ...]:
    """What must hold; a figure that is missing does not."""
    ours, bare, poison = found["fleet"], found["echo"], found["poison"]
    push, process = found["push"], found["process"]
    most, equal = Criterion.at_most, Criterion.equal
    return (
        most("last_ack_to_echo", 3.0, _ratio(ours, bare, "last_ack_s"), "times"),
        most("cpu_per_subscriber_to_echo", 3.0, _ratio(ours, bare, "cpu_s_per_subscriber"), "times"),
        most("rss_per_subscriber_to_echo", 3.0, _ratio(ours, bare, "rss_bytes_per_subscriber"), "times"),
        equal("restart_sent", 0, ours.get("restart", {}).get("sent_bytes"), "bytes"),
        equal("poison_accepted", 999, poison.get("accepted"), "of 1000"),
        most("poison_seconds", 1.0, poison.get("seconds"), "s"),
        most("push_ack_p50", 50.0, push.get("ack_ms", {}).get("p50"), "ms"),
        most("push_ack_p99", 100.0, push.get("ack_ms", {}).get("p99"), "ms"),
        equal("push_sent_only", "ECDS x1", ", ".join(push.get("sent", {})), "resources of one push"),
        most("cold_start_cpu", 4.0, process.get("cold_start_cpu_s"), "s"),
        most("idle_cpu_frozen", 0.01, process.get("frozen_cpu_ratio"), "of a core"),
    )


def _ratio(ours: Found, bare: Found, name: str) -> float | None:
    return ours[name] / bare[name] if name in ours and name in bare else None


def _ratios(found: dict[str, Found]) -> Found:
    """What a push of one changed key costs us, beside the floor and beside the peer's answer to one poll."""
    push, peer = found["push"], found["peer"]
    ratios = {}
    if "cpu_ms_per_push" in push:
        ratios["push_cpu_to_protobuf_floor"] = push["cpu_ms_per_push"] / push["floor_ms"]
        if "cpu_ms_per_poll" in peer:
            ratios["peer_poll_cpu_to_push_cpu"] = peer["cpu_ms_per_poll"] / push["cpu_ms_per_push"]
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    found = {
        "echo": run("server", "echo", given.subscribers),
        "fleet": run("server", "tidegate", given.subscribers),
        "poison": run("server", "poison", 1),
        "push": run("envoy"),
        "process": run("process"),
        "peer": run("peer"),
    }
    report = Report(
        criteria=tuple(_rounded(one) for one in criteria(found)),
        details={"subscribers": given.subscribers, **found, "ratios": _ratios(found)},
    )
    for name, figures in report.details.items():
        print(f"{name}: {json.dumps(_short(figures))}")
    if given.report:
        write(report, given.report)
    return report.exit_code


def _rounded(criterion: Criterion) -> Criterion:
    measured = criterion.measured
    digits = round(measured, 4) if isinstance(measured, float) else measured
    return Criterion(
        id=criterion.id, must=criterion.must, measured=digits, unit=criterion.unit, holds=criterion.holds
    )


def _short(value: Any) -> Any:
    """Figures of four significant digits, for the terminal."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
