"""`tidegate signals` against simulated pods on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from controlplane.cli.signals import signals
from controlplane.sim.dcgm_text import Layout
from controlplane.sim.pods import Fleet, FleetSpec, PodSpec, serving


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two pods on a thread of their own; the command runs its own event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()
    pods = tuple(PodSpec(name=f"chat-{n}", model="chat", version="v1") for n in range(2))
    spec = FleetSpec(pods=pods, dcgm_layout=Layout.EXPORTED_POD)

    async def start() -> Fleet:
        return await stack.enter_async_context(serving(spec))

    yield asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def configured(folder: Path, fleet: Fleet) -> Path:
    endpoints = "".join(
        f"          - {{address: 127.0.0.1, port: {pod.port}, metrics: '{pod.url}/metrics', "
        f"pod: {pod.name}, namespace: default}}\n"
        for pod in fleet.pods
    )
    (folder / "tenants").mkdir()
    tenant = f"id: acme\nidentity: {{api_keys: [{{sha256: {'ab' * 32}}}]}}\n"
    (folder / "tenants" / "acme.yaml").write_text(tenant)
    (folder / "tidegate.yaml").write_text(
        f"signals: {{gpu_exporters: ['{fleet.dcgm_url}']}}\n"
        "models:\n  chat:\n    versions:\n      v1:\n        endpoints:\n"
        + endpoints
        + "routes:\n  - path: /v1/chat\n"
    )
    return folder


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(signals)
    return CliRunner(env={"COLUMNS": "140", "TERM": "dumb"}).invoke(app, arguments)


def test_the_table_shows_values_and_why_others_are_absent(fleet: Fleet, tmp_path: Path) -> None:
    result = run("--config", str(configured(tmp_path, fleet)), "--seconds", "0.3")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert "chat:v1" in shown
    assert "kv_cache_usage_ratio 0 0.0 s 2 scrape vllm:kv_cache_usage_perc" in shown
    assert "absent: scrape: no GPU exporter exposes it; tried DCGM_FI_PROF_SM_ACTIVE" in shown
    assert "DCGM labels: 2 series: `exported_pod` is the GPU's user (honorLabels: false)" in shown


def test_json_has_every_signal(fleet: Fleet, tmp_path: Path) -> None:
    result = run("--config", str(configured(tmp_path, fleet)), "--seconds", "0.3", "--json")
    document = json.loads(result.output)
    found = document["pools"]["chat:v1"]
    assert found["gpu_util_percent"]["count"] == 2
    assert found["endpoints_up"]["value"] == 2
    assert found["failure_ratio"]["value"] is None
    assert document["gpu_label_layouts"] == {"exported_pod": 2}
    assert document["traffic"] is None


def test_a_wrong_configuration_is_listed_and_fails(tmp_path: Path) -> None:
    (tmp_path / "tidegate.yaml").write_text("models: 3\n")
    result = run("--config", str(tmp_path))
    assert result.exit_code == 1
    assert "tidegate.yaml:1" in result.output
