"""Starting and stopping `tidegate serve`, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

ENDED_EARLY = """
import os, signal, time
from controlplane.cli.serve import leave_when_told
leave_when_told()
os.kill(os.getpid(), signal.{name})
time.sleep(10)
"""
CONFIG = """\
admin: {{port: {admin}}}
xds: {{port: {xds}}}
models: {{chat: {{versions: {{v1: {{endpoints: ["127.0.0.1:9"]}}}}}}}}
routes: [{{path: /v1/chat/completions}}]
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_while_it_starts_ends_it_without_a_word(name: str) -> None:
    ended = run("-c", ENDED_EARLY.format(name=name))
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("taken", ["admin", "xds"])
def test_a_port_in_use_is_said_in_a_line(tmp_path: Path, taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        ports = {"admin": 0, "xds": 0} | {taken: port}
        (tmp_path / "tidegate.yaml").write_text(CONFIG.format(**ports))
        ended = run("-m", "controlplane.cli", "serve", "--config", str(tmp_path))
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("tidegate serve: ")
    assert str(port) in last
