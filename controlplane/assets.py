"""Files shipped beside the code: Lua scripts and the Envoy bootstrap, from a checkout or inside the wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def read_asset(name: str) -> str:
    """The text of `name` (for example `lua/envoy/limits.lua`); raises FileNotFoundError."""
    packaged = _PACKAGE / "assets" / name
    return (packaged if packaged.is_file() else _PACKAGE.parent / name).read_text(encoding="utf-8")
