"""The constant part of the scripts, as read from `lua/envoy/` by whoever may read files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LuaCode:
    """Source of the two request filters; each is pushed behind a table of its own."""

    identity: str
    limits: str
