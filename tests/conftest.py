"""What every test may rely on: the real servers, found once a run, or a skip that says how to get them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import real_components
from hypothesis import settings

# A busy machine is no failure: the whole test has a timeout, single examples have none.
settings.register_profile("tidegate", deadline=None)
settings.load_profile("tidegate")

_BY_NAME = {component.name: component for component in real_components.COMPONENTS}


@functools.cache
def _found(name: str) -> tuple[bool, str]:
    return real_components.line(_BY_NAME[name])


def _require(name: str) -> None:
    """Skip the test when the component is missing; fail it when TIDEGATE_REQUIRE_REAL=1."""
    present, line = _found(name)
    if present:
        return
    if real_components.required():
        pytest.fail(f"TIDEGATE_REQUIRE_REAL=1, but {line}", pytrace=False)
    pytest.skip(line)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in _BY_NAME:
        if item.get_closest_marker(name):
            _require(name)


def pytest_report_header() -> list[str]:
    return [_found(name)[1] for name in _BY_NAME]


def _path(name: str) -> Path:
    _require(name)
    path = _BY_NAME[name].find()
    assert path is not None
    return path


@pytest.fixture(scope="session")
def envoy_path() -> Path:
    """The real Envoy's executable."""
    return _path("envoy")


@pytest.fixture(scope="session")
def prometheus_path() -> Path:
    """The real Prometheus' executable."""
    return _path("prometheus")


@pytest.fixture(scope="session")
def redis_path() -> Path:
    """The executable of a real Redis-protocol server (Redis or Valkey)."""
    return _path("redis")
