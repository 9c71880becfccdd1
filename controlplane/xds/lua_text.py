"""Python values -> Lua source text that means the same, whatever the values hold.

Everything an operator wrote reaches Lua through `string`: printable ASCII stays readable, every other
byte becomes a decimal escape, so no text can end its literal. Flat tables of constants are what LuaJIT
loads fastest, without its limit of 65,536 constants for each function; nested tables count, so they come
in portions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Scalar = str | int | float | bool

_PORTION = 1000  # nested tables for each function
_ESCAPES = {
    byte: chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\{byte:03d}" for byte in range(256)
}


def string(value: str) -> str:
    """A quoted Lua string of the UTF-8 bytes of `value`, in ASCII, on one line."""
    return '"' + "".join(map(_ESCAPES.__getitem__, value.encode("utf-8", "surrogatepass"))) + '"'


def scalar(value: Scalar) -> str:
    """A string, number or boolean as Lua writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return string(value) if isinstance(value, str) else repr(value)


def array(values: Iterable[Scalar]) -> str:
    """A table with the indices 1, 2, 3, ..."""
    return "{" + ",".join(map(scalar, values)) + "}"


def table(entries: Mapping[str, Scalar]) -> str:
    """A table by name, in the order of `entries`."""
    return "{" + ",".join(f"[{string(key)}]={scalar(value)}" for key, value in entries.items()) + "}"


def record(**fields: str) -> str:
    """A table whose values are Lua expressions already."""
    return "{" + ",".join(f"{name}={text}" for name, text in fields.items()) + "}"


def fill(target: str, tables: Sequence[tuple[Scalar, str]]) -> str:
    """Statements that put nested tables (key, Lua expression) into the existing table `target`."""
    lines = [f"{target}[{scalar(key)}]={text}" for key, text in tables]
    portions = [lines[start : start + _PORTION] for start in range(0, len(lines), _PORTION)]
    return "".join("(function()\n" + "\n".join(portion) + "\nend)();\n" for portion in portions)
