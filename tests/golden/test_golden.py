"""What Envoy is sent, case by case, as files to read; each is accepted by the real Envoy.

The cases are in tests/support/golden_cases.py; `make golden` (TIDEGATE_GOLDEN=write) rewrites the files. Left
out: the constant Lua code, and the listener where it is that of `minimal`, as it should nearly always be.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from golden_cases import CASES

from controlplane.assets import read_asset
from controlplane.cli.yaml_text import yaml_text
from controlplane.model import resource as types
from controlplane.model.resource import Snapshot
from controlplane.xds import codec
from controlplane.xds.bootstrap import Gateway, static
from controlplane.xds.lua_code import LuaCode, lua_code
from controlplane.xds.translate import snapshot

_HERE = Path(__file__).parent
_FILES = {
    types.LISTENER: "listeners.yaml",
    types.ROUTE: "routes.yaml",
    types.CLUSTER: "clusters.yaml",
    types.ENDPOINT: "endpoints.yaml",
    types.EXTENSION: "filters.yaml",
    types.RUNTIME: "runtime.yaml",
}
_NO_CODE = LuaCode(identity="-- identity.lua\n", limits="-- limits.lua\n")


def _snapshot(name: str, code: LuaCode) -> Snapshot:
    case = CASES[name]()
    return snapshot(case.policy, case.decision, case.members, code=code)


def _texts(name: str) -> dict[str, str]:
    """File name -> text of one case."""
    made = _snapshot(name, _NO_CODE)
    texts = {
        file: yaml_text([codec.decode(kind, found.body) for _, found in sorted(made.of_type(kind).items())])
        for kind, file in _FILES.items()
    }
    if name != "minimal" and texts["listeners.yaml"] == _texts("minimal")["listeners.yaml"]:
        del texts["listeners.yaml"]
    return texts


def _files(name: str) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in (_HERE / name).glob("*.yaml")}


def _rewrite(name: str, texts: dict[str, str]) -> None:
    folder = _HERE / name
    folder.mkdir(exist_ok=True)
    for stale in folder.glob("*.yaml"):
        stale.unlink()
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_the_resources_are_the_expected_ones(name: str) -> None:
    texts = _texts(name)
    if os.environ.get("TIDEGATE_GOLDEN") == "write":
        _rewrite(name, texts)
    assert texts == _files(name), "if that is meant: `make golden`, and look at the difference"


def test_only_the_operators_listener_changes_the_listener() -> None:
    assert {name for name in CASES if "listeners.yaml" in _files(name)} == {"minimal", "nasty_names"}


@pytest.mark.parametrize("name", CASES)
def test_the_files_read_back_as_they_were(name: str) -> None:
    for text in _files(name).values():
        assert yaml_text(yaml.safe_load(text)) == text


def test_every_folder_is_a_case() -> None:
    assert {path.parent.name for path in _HERE.glob("*/*.yaml")} == set(CASES)


@pytest.mark.envoy
@pytest.mark.parametrize("name", CASES)
def test_envoy_accepts_it(name: str, envoy_path: Path, tmp_path: Path) -> None:
    config = static(_snapshot(name, lua_code(read_asset)), Gateway(node_id=name, admin_port=0))
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    command = [str(envoy_path), "--mode", "validate", "-c", str(file), "-l", "warning"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr[-3000:]
    assert "eprecated" not in checked.stderr, checked.stderr[-3000:]
