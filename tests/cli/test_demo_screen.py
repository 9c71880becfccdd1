"""What the demo prints fits a terminal, and says what to look at when it fails."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

from rich.console import Console

from controlplane.cli.demo_screen import things_to_try, verdict
from controlplane.demo.run import Stage
from controlplane.demo.world import Ports
from controlplane.report import Criterion, Report
from controlplane.sim.fleet import Fleet


def drawn(report: Report) -> list[str]:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(verdict("1.40.0", report))
    return [line.rstrip() for line in console.export_text().splitlines()]


def criterion(*, holds: bool = True) -> Criterion:
    return Criterion(
        id="sse_first_chunk_added",
        must="each key within 5 % + 1 of slewed rate",
        measured=100.0,
        unit="% of 12345",
        holds=holds,
    )


def test_the_longest_criterion_is_one_line_of_eighty_columns() -> None:
    lines = drawn(Report(criteria=(criterion(),)))
    assert lines[-2] == ("ok  sse_first_chunk_added each key within 5 % + 1 of slewed rate 100 % of 12345")
    assert lines[-1] == "PASS: everything held"


def test_a_failed_verdict_names_the_criteria_and_the_keys() -> None:
    row = {
        "phase": "pressure-60",
        "key": "chat|acme|m:1",
        "enforced_per_s": 9.0,
        "expected_per_s": 8.0,
        "holds": False,
    }
    shown = " ".join(drawn(Report(criteria=(criterion(holds=False),), details={"phases": [row]})))
    assert "FAIL: sse_first_chunk_added" in shown
    assert "pressure-60: chat|acme|m:1 admitted 9.00/s instead of 8.00/s" in shown


def test_lines_to_paste_are_narrow_and_whole() -> None:
    stage = Stage(
        http=None,  # type: ignore[arg-type]
        fleet=Fleet(pods=(), dcgm_url=None),
        ports=Ports(gateway=61001, gateway_admin=61002, admin=61003, xds=61004),
        directory=Path("/tmp/tidegate-demo-abcdefgh/config"),
        logs=Path("/tmp"),
        envoy_version="1.40.0",
    )
    lines = things_to_try(stage, ".venv/bin/tidegate")
    assert max(map(len, lines)) <= 80
    body = re.search(r"-d '(.*?)'", "\n".join(lines), re.DOTALL)
    assert body is not None
    assert json.loads(body.group(1))["stream"] is True
