"""Any value an operator writes means the same in Lua."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa import luajit21

from controlplane.xds import lua_text

# Without code points that UTF-8 does not have; the test after it shows what becomes of those.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NASTY = [
    '"',
    "\\",
    "]]",
    "]==]",
    "--[[",
    "\n",
    "\r\n",
    "\0",
    "\x7f",
    "${x}",
    '"}os.exit()--',
    "ü",
    "\U0001f600",
    "\\0011",
]


def _lua(expression: str) -> Any:
    return luajit21.LuaRuntime(encoding="utf-8").execute(f"return {expression}")


@pytest.mark.parametrize("value", NASTY)
def test_text_that_would_end_a_literal_does_not(value: str) -> None:
    assert _lua(lua_text.string(value)) == value


@given(TEXT)
def test_any_text_survives(value: str) -> None:
    written = lua_text.string(value)
    assert written.isascii()
    assert "\n" not in written
    assert _lua(written) == value


def test_half_a_surrogate_is_still_a_literal() -> None:
    assert luajit21.LuaRuntime().execute(f"return #{lua_text.string(chr(0xD800))}") == 3


@given(st.dictionaries(TEXT, TEXT | st.booleans() | st.integers(-(2**53), 2**53)))
def test_any_table_survives(entries: dict[str, Any]) -> None:
    assert dict(_lua(lua_text.table(entries))) == entries


def test_arrays_begin_at_one() -> None:
    assert dict(_lua(lua_text.array(["a", 2, True, 0.5]))) == {1: "a", 2: 2, 3: True, 4: 0.5}


def test_more_nested_tables_than_a_function_has_constants() -> None:
    tables = [(number, lua_text.table({"name": f"n{number}"})) for number in range(70_000)]
    lua = luajit21.LuaRuntime()
    found = lua.execute(f"local t = {{}}\n{lua_text.fill('t', tables)} return t[69999].name")
    assert found == "n69999"


def test_one_flat_table_may_be_as_long() -> None:
    entries = {f"tenant-{number}": number for number in range(100_000)}
    assert luajit21.LuaRuntime().execute(f"return {lua_text.table(entries)}")["tenant-99999"] == 99_999
