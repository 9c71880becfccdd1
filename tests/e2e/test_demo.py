"""The README's first command, as a user runs it: real Envoy, real sockets, a verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.envoy
@pytest.mark.slow
def test_the_demo_holds_everything_it_promises(tmp_path: Path) -> None:
    report = tmp_path / "demo.json"
    command = [sys.executable, "-m", "controlplane.cli", "demo", "--seconds", "45", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert report.exists(), done.stdout + done.stderr
    found = json.loads(report.read_text())
    failed = [criterion for criterion in found["criteria"] if not criterion["holds"]]
    assert (done.returncode, found["verdict"], failed) == (0, "pass", []), done.stdout[-3000:]
    assert found["envoy_version"].startswith("1.")
    assert {row["phase"] for row in found["phases"]} == {
        "calm",
        "pressure-60",
        "pressure-95",
        "recovery",
        "guarded",
    }
    assert len(found["totals"]) == 6
    assert found["visible_to_acked_ms"]["count"] >= 5
    assert "sk-demo" not in report.read_text() + done.stdout + done.stderr
