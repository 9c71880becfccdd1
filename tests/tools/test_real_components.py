from pathlib import Path

import pytest
import real_components
from real_components import Component


def script(folder: Path, text: str) -> Path:
    path = folder / "server"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("prometheus, version 2.42.0+ds (branch: debian/sid)", "2.42.0"),
        ("/usr/lib/python3.11/bin/envoy  version: 9e5580933739775e8bce/1.40.0/Clean/RELEASE", "1.40.0"),
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "7.0.15"),
    ],
    ids=["prometheus", "envoy", "redis"],
)
def test_the_version_is_found_in_what_servers_print(tmp_path: Path, printed: str, version: str) -> None:
    assert real_components.version(script(tmp_path, f"echo '{printed}'")) == version


def test_a_server_that_does_not_run_counts_as_missing(tmp_path: Path) -> None:
    broken = script(tmp_path, "echo 'cannot open shared object' >&2; exit 127")
    present, line = real_components.line(Component(name="x", find=lambda: broken, how_to_get="buy one"))
    assert not present
    assert "cannot open shared object" in line


def test_a_missing_server_says_how_to_get_it() -> None:
    present, line = real_components.line(Component(name="x", find=lambda: None, how_to_get="buy one"))
    assert not present
    assert line.endswith("missing: buy one")


@pytest.mark.parametrize(("value", "required"), [("1", True), ("0", False), ("", False)])
def test_the_environment_decides_whether_missing_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, value: str, required: bool
) -> None:
    monkeypatch.setenv("TIDEGATE_REQUIRE_REAL", value)
    assert real_components.required() is required
