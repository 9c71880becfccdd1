"""Every test that docs/cases.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
_PAGE = _TESTS.parent / "docs" / "cases.md"
_NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", _PAGE.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(("file", "name"), _NAMED, ids=[f"{file}::{name}" for file, name in _NAMED])
def test_a_named_test_exists(file: str, name: str) -> None:
    source = (_TESTS / file).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"docs/cases.md names {file}::{name}"


def test_every_case_of_the_page_names_a_test() -> None:
    rows = [line for line in _PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert rows
    assert all("::test_" in row for row in rows)
