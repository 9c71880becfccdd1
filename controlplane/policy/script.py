"""A Lua script and the digest Redis knows it by. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

QUOTA = "lua/redis/quota.lua"


@dataclass(frozen=True)
class Script:
    """The text of one script."""

    text: str

    @cached_property
    def digest(self) -> str:
        """SHA-1, as EVALSHA names scripts."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
