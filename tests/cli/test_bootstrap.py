"""`tidegate bootstrap` prints what Envoy accepts, or one sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from typer import Typer
from typer.testing import CliRunner, Result

from controlplane.cli.bootstrap import bootstrap
from controlplane.cli.yaml_text import yaml_text

_APP = Typer()
_APP.command()(bootstrap)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(_APP, list(arguments))


def test_the_printed_yaml_names_node_and_control_plane() -> None:
    printed = yaml.safe_load(_run("--node-id", "on", "--xds", "[::1]:18001").stdout)
    assert printed["node"] == {"id": "on", "cluster": "tidegate"}
    (endpoint,) = printed["static_resources"]["clusters"][0]["load_assignment"]["endpoints"][0][
        "lb_endpoints"
    ]
    assert endpoint["endpoint"]["address"]["socket_address"] == {"address": "::1", "port_value": 18001}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--xds", "nowhere"], "expected HOST:PORT"),
        (["--xds", "a:99999"], "expected HOST:PORT"),
        (["--tls-cert", "a.pem"], "mTLS needs all of"),
        (["--config", "/does/not/exist"], "no usable configuration"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_1(arguments: list[str], sentence: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 1
    assert sentence in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_plain_text_to_another_machine_is_warned_about() -> None:
    result = _run("--xds", "control.example:18000")
    assert result.exit_code == 0
    assert "plain text" in result.stderr


@pytest.mark.envoy
@pytest.mark.parametrize("more", [[], ["--sotw"], ["--xds", "control.example:18000"]], ids=str)
def test_envoy_accepts_it(envoy_path: Path, tmp_path: Path, more: list[str]) -> None:
    file = tmp_path / "envoy.yaml"
    file.write_text(_run("--node-id", "n", *more).stdout)
    command = [str(envoy_path), "--mode", "validate", "-c", str(file), "-l", "warning"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "eprecated" not in checked.stderr


@pytest.mark.parametrize("name", ["n", "on", "1e3", "null", "ü", "a: b", "0x10", "~", "'"])
def test_every_text_stays_a_text(name: str) -> None:
    assert yaml.safe_load(yaml_text({name: name, "list": [name, 1, True, None]})) == {
        name: name,
        "list": [name, 1, True, None],
    }
    assert f'"{name}"' in yaml_text([name])
