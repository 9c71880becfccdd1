"""`tidegate simulate` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from controlplane.cli.simulate import simulate

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "examples/quickstart")
app = typer.Typer()
app.command()(simulate)


def run(*arguments: str, columns: int = 100) -> Result:
    return CliRunner(env={"COLUMNS": str(columns), "TERM": "dumb"}).invoke(app, list(arguments))


@pytest.mark.parametrize("columns", [80, 120])
def test_tenants_and_rates_over_time_are_printed(columns: int) -> None:
    shown = run("--config", QUICKSTART, "--seconds", "60", columns=columns)
    assert shown.exit_code == 0, shown.output
    for word in ("chat:v1", "acme", "globex", "offered", "429", "p99", "rate/s", "factor", "the run adds up"):
        assert word in shown.output
    assert max(map(len, shown.output.splitlines())) <= columns


def test_equal_calls_print_the_same() -> None:
    call = ("--config", QUICKSTART, "--scenario", "s7", "--seconds", "60", "--seed", "7")
    assert run(*call).output == run(*call).output


def test_the_report_has_verdict_figures_and_series(tmp_path: Path) -> None:
    file = tmp_path / "new" / "sim.json"
    assert run("--config", QUICKSTART, "--seconds", "60", "--report", str(file)).exit_code == 0
    report = json.loads(file.read_text())
    assert report["verdict"] == "pass"
    assert {c["id"] for c in report["criteria"]} == {
        "conservation.offered",
        "conservation.in_flight",
        "littles_law",
        "bucket_overdrawn",
    }
    (only,) = report["runs"]
    assert {row["tenant"] for row in only["tenants"]} == {"acme", "globex", "initech"}
    assert len(only["over_time"][0]["rate_per_s"]) == 60


def test_a_comparison_and_the_baselines_are_side_by_side(tmp_path: Path) -> None:
    html, report = tmp_path / "sim.html", tmp_path / "sim.json"
    other = str(ROOT / "examples/multi-tenant")
    options = ("--baselines", "--html", str(html), "--report", str(report))
    shown = run("--config", QUICKSTART, "--compare", other, "--seconds", "60", *options)
    assert shown.exit_code == 0, shown.output
    names = [found["name"] for found in json.loads(report.read_text())["runs"]]
    assert names == [
        "quickstart",
        "multi-tenant",
        "no limit",
        "static 0.9 of capacity",
        "M1 formula, raw counter",
    ]
    assert all(name in html.read_text() for name in names)
    assert "side by side" in shown.output
    assert "403" in shown.output  # the other configuration has other tenants


def test_a_base_rate_far_from_what_pods_serve_is_noted() -> None:
    assert "--pod-rate" in run("--config", QUICKSTART, "--seconds", "60").output
    assert "--pod-rate" not in run("--config", QUICKSTART, "--seconds", "60", "--pod-rate", "40").output


def test_a_broken_configuration_is_shown_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "tidegate.yaml").write_text("models: {chat: {versions: {v1: {endpoints: [nonsense]}}}}\n")
    shown = run("--config", str(tmp_path))
    assert shown.exit_code == 2
    assert "tidegate.yaml:1" in shown.output


def test_a_configuration_without_tenants_cannot_be_simulated(tmp_path: Path) -> None:
    (tmp_path / "tidegate.yaml").write_text(
        "models: {chat: {versions: {v1: {endpoints: ['10.0.0.1:80']}}}}\n"
        "routes: [{path: /v1/chat/completions}]\n"
    )
    (tmp_path / "tenants").mkdir()
    shown = run("--config", str(tmp_path))
    assert shown.exit_code == 2
    assert "no tenant" in shown.output
