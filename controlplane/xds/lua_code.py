"""The constant part of the scripts, as read from `lua/envoy/` by whoever may read files.

Envoy takes one text for each filter, so the modules a script uses are placed before it, each in a function
of its own that returns the module's table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_FOLDER = "lua/envoy"
_IDENTITY = ("answer", "sha256", "trusted")
_LIMITS = ("answer", "breaker", "denial", "usage")


@dataclass(frozen=True, slots=True, kw_only=True)
class LuaCode:
    """Source of the two request filters; each is pushed behind a table of its own."""

    identity: str
    limits: str


def lua_code(read: Callable[[str], str]) -> LuaCode:
    """Both filters' code. `read` gives the text of a shipped file (`assets.read_asset`)."""
    return LuaCode(
        identity=_assembled(read, _IDENTITY, "identity"), limits=_assembled(read, _LIMITS, "limits")
    )


def _assembled(read: Callable[[str], str], modules: tuple[str, ...], script: str) -> str:
    parts = [f"local {name} = (function()\n{read(f'{_FOLDER}/{name}.lua')}\nend)()\n" for name in modules]
    return "".join(parts) + read(f"{_FOLDER}/{script}.lua")
