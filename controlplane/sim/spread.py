"""A ratio as a sequence of yes and no, evenly spread: 0.25 is yes exactly every fourth time, without dice."""

from __future__ import annotations


class Spread:
    """Remembers what earlier calls still owe."""

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed = 0.0

    def hit(self, ratio: float) -> bool:
        """Whether it is this one's turn; `ratio` (0..1) may change between calls."""
        self._owed += ratio
        if self._owed < 1 - 1e-9:
            return False
        self._owed -= 1
        return True
