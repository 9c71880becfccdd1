"""Counters at successive scrapes -> what they grew by in the last seconds.

A vector is any set of counters that one process raises together: the buckets of a histogram, the parts of a
ratio, a single counter. A counter that falls means that the process restarted: what it shows now is what it
counted since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

Vector = Mapping[str, float]


def growth(before: Vector, now: Vector) -> dict[str, float]:
    """What each counter grew by from `before` to `now`. A counter missing in `before` started at zero."""
    grown = {name: value - before.get(name, 0.0) for name, value in now.items()}
    return dict(now) if min(grown.values(), default=0.0) < 0 else grown


def total(vectors: list[Vector]) -> dict[str, float]:
    """The sum of `vectors`, counter by counter."""
    summed: dict[str, float] = {}
    for vector in vectors:
        for name, value in vector.items():
            summed[name] = summed.get(name, 0.0) + value
    return summed


class Window:
    """The growth of one vector over the last `length_s` seconds."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._last: tuple[float, Vector] | None = None
        self._grown: deque[tuple[float, float, Vector]] = (
            deque()
        )  # (time, seconds since the scrape before, growth)

    def add(self, time_s: float, vector: Vector, *, restarted: bool = False) -> None:
        """One scrape. The first one, and one after a longer silence than the window, only sets the start."""
        last = self._last
        self._last = (time_s, vector)
        if last is None:
            return
        gap_s = time_s - last[0]
        if gap_s <= 0 or gap_s > self._length_s:  # a clock that jumped, or a target that was away
            self._grown.clear()
            return
        self._grown.append((time_s, gap_s, growth({} if restarted else last[1], vector)))
        while self._grown and self._grown[0][0] <= time_s - self._length_s:
            self._grown.popleft()

    @property
    def covered_s(self) -> float:
        """Seconds between the scrapes behind `grown`; 0 before the second scrape."""
        return sum(gap_s for _, gap_s, _ in self._grown)

    @property
    def grown(self) -> dict[str, float]:
        """What each counter grew by within the window."""
        return total([vector for _, _, vector in self._grown])
