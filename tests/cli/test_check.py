"""`tidegate check` and `tidegate schema` as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from controlplane.cli.check import check, schema

ROOT = Path(__file__).parents[2]
app = typer.Typer()
app.command()(check)
app.command()(schema)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "tenants").mkdir()
    (tmp_path / "tidegate.yaml").write_text(
        "models: {chat: {versions: {v1: {endpoints: ['10.0.0.1:80']}}}}\n"
        "routes: [{path: /v1/chat/completions}]\n"
    )
    (tmp_path / "tenants/acme.yaml").write_text("id: acme\n")
    return tmp_path


def test_a_good_configuration_passes() -> None:
    code, output = run("check", str(ROOT / "examples/quickstart"))
    assert code == 0
    assert output.endswith(
        "0 error(s), 0 warning(s); 3 tenant(s), 2 model version(s), 2 route(s), 5 limit(s)\n"
    )


def test_an_error_fails_and_is_one_plain_line(directory: Path) -> None:
    (directory / "tenants/acme.yaml").write_text("id: acme\nwieght: 3\n")
    code, output = run("check", str(directory))
    assert code == 1
    assert (
        "tenants/acme.yaml:2: error: wieght: unknown field `wieght`; did you mean `weight`? (expected"
        in output
    )


def test_a_warning_fails_only_when_strict(directory: Path) -> None:
    assert run("check", str(directory))[0] == 0
    code, output = run("check", str(directory), "--strict")
    assert code == 1
    assert "tenants/acme.yaml:1: warning: identity: nobody can be recognised" in output


def test_the_report_is_json_when_asked_for(directory: Path) -> None:
    (directory / "tidegate.yaml").write_text("models: {}\n")
    code, output = run("check", str(directory), "--json")
    report = json.loads(output)
    assert (code, report["ok"]) == (1, False)
    assert {problem["path"] for problem in report["problems"]} >= {"models", "routes"}
    assert set(report["problems"][0]) == {"severity", "file", "line", "path", "message", "expected"}


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    code, output = run("check", str(tmp_path / "nowhere"))
    assert code == 1
    assert "tidegate.yaml:1: error: there is no such file" in output


def test_an_engine_that_no_catalogue_knows_is_an_error(directory: Path) -> None:
    text = (directory / "tidegate.yaml").read_text().replace("endpoints:", "engine: vlm, endpoints:")
    (directory / "tidegate.yaml").write_text(text)
    code, output = run("check", str(directory))
    assert code == 1
    assert "models.chat.versions.v1.engine: the catalogue of signals has no engine `vlm`" in output


def test_a_mistake_in_the_catalogue_is_named_in_its_file(directory: Path) -> None:
    (directory / "names.yaml").write_text("engines:\n  vllm:\n    signal: {}\n")
    text = (directory / "tidegate.yaml").read_text() + "signals: {catalogue: names.yaml}\n"
    (directory / "tidegate.yaml").write_text(text)
    code, output = run("check", str(directory))
    assert code == 1
    assert "names.yaml:3: error: engines.vllm.signal" in output


def test_schemas_are_printed_for_editors() -> None:
    assert json.loads(run("schema")[1])["title"] == "tidegate.yaml"
    assert json.loads(run("schema", "--tenant")[1])["title"] == "Tidegate tenant file"
    assert run("schema", "--markdown")[1].startswith("# Configuration")
