from __future__ import annotations

from pathlib import Path

import pytest

from .written import Directory


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)
