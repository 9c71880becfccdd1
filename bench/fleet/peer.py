"""The peer: `sovereign` from PyPI, in an environment of its own, polled for as many routes as we have keys.

    python -m bench.fleet.peer

It renders and serves all resources as JSON at every poll, which Envoy does each second by default. Prints a
JSON object; `skipped` says why there are no figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.fleet.usage import cpu_s
from controlplane.demo.processes import free_ports

PACKAGES = ("sovereign==0.32.12", "setuptools<81")
ROUTES = 10_000
_TEMPLATE = """
def call(**_):
    routes = [
        {
            "match": {"prefix": f"/{n}"},
            "route": {"cluster": "a"},
            "metadata": {"filter_metadata": {"tg": {"u": n}}},
        }
        for n in range(ROUTES)
    ]
    return [{"name": "tidegate", "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]}]
"""


class Skipped(Exception):
    """Why there is nothing to compare with."""


def install(folder: Path) -> Path:
    """A Python that has the peer."""
    environment = folder / "venv"
    for line in (
        ["uv", "venv", "--quiet", "--python", sys.executable, str(environment)],
        ["uv", "pip", "install", "--quiet", "--python", str(environment / "bin/python"), *PACKAGES],
    ):
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Skipped(f"cannot be installed: {error}") from error
        if done.returncode:
            raise Skipped(f"cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    return environment / "bin/python"


@contextlib.contextmanager
def serving(python: Path, folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "routes.py").write_text(_TEMPLATE.replace("ROUTES", str(ROUTES)))
    config = {
        "sources": [{"type": "inline", "config": {"instances": [{"name": "a", "service_clusters": ["*"]}]}}],
        "templates": {"default": {"routes": f"python://{folder}/routes.py"}},
        "source_config": {"refresh_rate": 1},
        "authentication": {"enabled": False},
    }
    (folder / "config.json").write_text(json.dumps(config))
    environment = os.environ | {
        "SOVEREIGN_CONFIG": f"file+json://{folder}/config.json",
        "SOVEREIGN_HOST": "127.0.0.1",
        "SOVEREIGN_PORT": str(port),
        "SOVEREIGN_WORKERS": "1",
    }
    with (folder / "log").open("wb") as log:
        line = [str(python.parent / "sovereign")]
        process = subprocess.Popen(line, env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()


def poll(port: int) -> int:
    """One full answer, as an Envoy without any version asks for it; its bytes."""
    body = {"node": {"id": "gw", "cluster": "*", "metadata": {}}, "version_info": "0", "resource_names": []}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v3/discovery:routes",
        json.dumps(body).encode(),
        {"content-type": "application/json", "host": "routes"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return len(answer.read())


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_ports().xds
        python = install(folder)
        with serving(python, folder, port) as process:
            deadline_s = time.monotonic() + 20
            while True:
                try:
                    size = poll(port)
                    break
                except OSError as error:
                    if process.poll() is not None or time.monotonic() > deadline_s:
                        tail = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
                        raise Skipped(f"did not start: {error}; {tail}") from error
                    time.sleep(0.2)
            took_s, before_s = [], _family_cpu_s(process.pid)
            for _ in range(5):
                started_s = time.monotonic()
                poll(port)
                took_s.append(time.monotonic() - started_s)
            spent_s = (_family_cpu_s(process.pid) - before_s) / 5
    return {
        "routes": ROUTES,
        "bytes": size,
        "poll_ms": statistics.median(took_s) * 1000,
        "cpu_ms_per_poll": spent_s * 1000,
    }


def _family_cpu_s(pid: int) -> float:
    """CPU of a process and of its children: the peer forks its workers."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_s(pid) + sum(_family_cpu_s(int(child)) for child in children)


if __name__ == "__main__":
    try:
        print(json.dumps(measure()))
    except Skipped as reason:
        print(json.dumps({"skipped": str(reason)}))
