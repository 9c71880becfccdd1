"""The README's first command, as a user runs it: real Envoy, real sockets, a verdict, and lines to try."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TIDEGATE = [sys.executable, "-m", "controlplane.cli"]


@contextmanager
def kept_demo(report: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A demo with --keep, and all it said until it was ready to be tried."""
    command = [*TIDEGATE, "demo", "--seconds", "45", "--keep", "--report", str(report)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("Its configuration"):
                break
        yield process, "".join(said)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.envoy
@pytest.mark.slow
def test_the_demo_holds_everything_it_promises_and_its_lines_can_be_tried(tmp_path: Path) -> None:
    report = tmp_path / "demo.json"
    with kept_demo(report) as (process, said):
        assert report.exists(), said
        _holds(json.loads(report.read_text()), said)
        assert "sk-demo" not in report.read_text()
        _streams(said)
        _explains(said)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0, "Ctrl-C ends it with the status of its verdict"


def _holds(found: dict[str, object], said: str) -> None:
    criteria = found["criteria"]
    assert isinstance(criteria, list)
    failed = [criterion for criterion in criteria if not criterion["holds"]]
    assert (found["verdict"], failed) == ("pass", []), said[-3000:]
    assert str(found["envoy_version"]).startswith("1.")
    phases, totals, reactions = found["phases"], found["totals"], found["visible_to_acked_ms"]
    assert isinstance(phases, list)
    assert {row["phase"] for row in phases} == {"calm", "pressure-60", "pressure-95", "recovery", "guarded"}
    assert isinstance(totals, dict)
    assert len(totals) == 6
    assert isinstance(reactions, dict)
    assert reactions["count"] >= 5


def _streams(said: str) -> None:
    """The printed curl: its URL, its headers and its body."""
    told = re.search(r"curl -N (\S+) (.*?)^Without", said, re.DOTALL | re.MULTILINE)
    assert told is not None, said
    url, rest = told.groups()
    headers = dict(header.split(": ", 1) for header in re.findall(r"-H '([^']*)'", rest))
    body = re.search(r"-d '([^']*)'", rest)
    assert body is not None
    request = urllib.request.Request(url, data=body.group(1).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.read().endswith(b"data: [DONE]\n\n")


def _explains(said: str) -> None:
    admin, line = re.search(r"TIDEGATE_ADMIN=(\S+)", said), re.search(r"(explain .*)", said)
    assert admin is not None
    assert line is not None
    command = [*TIDEGATE, *line.group(1).split()]
    environment = {**os.environ, "TIDEGATE_ADMIN": admin.group(1)}
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert told.startswith("acme on chat with tide-chat:2024-06-01: ")
    assert "limit" in told
