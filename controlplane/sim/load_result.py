"""What became of a load: one row per request, and counts over any window of time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

PENDING = 0  # no answer (yet)
FAILED = -1  # the connection failed before an answer
TIMED_OUT = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Requests by what became of them; `errors`: an answer that is neither 2xx nor 429, or none at all."""

    offered: int = 0
    admitted: int = 0  # answered 2xx
    limited: int = 0  # answered 429
    errors: int = 0
    pending: int = 0
    cut: int = 0  # admitted, but the answer broke off

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            offered=self.offered + other.offered,
            admitted=self.admitted + other.admitted,
            limited=self.limited + other.limited,
            errors=self.errors + other.errors,
            pending=self.pending + other.pending,
            cut=self.cut + other.cut,
        )


@dataclass(slots=True, kw_only=True)
class KeyResult:
    """The requests of one key, as columns. `sent_s` in Unix seconds, durations in seconds from there."""

    name: str
    sent_s: list[float] = field(default_factory=list)
    status: list[int] = field(default_factory=list)  # HTTP status, PENDING, FAILED or TIMED_OUT
    complete: list[bool] = field(default_factory=list)
    first_chunk_s: list[float | None] = field(default_factory=list)  # to the first byte of the body
    total_s: list[float | None] = field(default_factory=list)  # to the end of the body

    def add(self, sent_s: float, *, status: int = PENDING) -> int:
        """A new row; its number."""
        self.sent_s.append(sent_s)
        self.status.append(status)
        self.complete.append(False)
        self.first_chunk_s.append(None)
        self.total_s.append(None)
        return len(self.status) - 1

    def counts(self, from_s: float, until_s: float) -> Counts:
        """Requests sent in [from_s, until_s), Unix seconds."""
        rows = [row for row, sent_s in enumerate(self.sent_s) if from_s <= sent_s < until_s]
        return self._count(rows)

    def totals(self) -> Counts:
        """All requests."""
        return self._count(list(range(len(self.status))))

    def per_second(self, started_s: float, duration_s: float) -> list[Counts]:
        """Counts of each second of the run."""
        rows: list[list[int]] = [[] for _ in range(max(1, int(duration_s + 0.999)))]
        for row, sent_s in enumerate(self.sent_s):
            rows[min(len(rows) - 1, max(0, int(sent_s - started_s)))].append(row)
        return [self._count(each) for each in rows]

    def _count(self, rows: list[int]) -> Counts:
        statuses = Counter(self.status[row] for row in rows)
        admitted = sum(count for status, count in statuses.items() if 200 <= status < 300)
        limited, pending = statuses[429], statuses[PENDING]
        return Counts(
            offered=len(rows),
            admitted=admitted,
            limited=limited,
            errors=len(rows) - admitted - limited - pending,
            pending=pending,
            cut=sum(1 for row in rows if 200 <= self.status[row] < 300 and not self.complete[row]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """A whole run."""

    started_s: float  # Unix seconds of second 0
    duration_s: float
    keys: tuple[KeyResult, ...]
    unsent: int  # arrivals that found no connection
    late_p99_s: float  # how late requests left

    def key(self, name: str) -> KeyResult:
        return next(key for key in self.keys if key.name == name)

    def totals(self) -> Counts:
        return sum((key.totals() for key in self.keys), Counts())

    def quantile_s(self, q: float, *, first_chunk: bool = False) -> float | None:
        """A quantile over all complete 2xx answers; None without any."""
        values = sorted(
            value
            for key in self.keys
            for value, status, complete in zip(
                key.first_chunk_s if first_chunk else key.total_s, key.status, key.complete, strict=True
            )
            if value is not None and complete and 200 <= status < 300
        )
        return values[min(len(values) - 1, int(q * len(values)))] if values else None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, durations rounded to 10 microseconds."""
        return {
            "started_s": self.started_s,
            "duration_s": self.duration_s,
            "unsent": self.unsent,
            "late_p99_s": self.late_p99_s,
            "keys": [
                {
                    "name": key.name,
                    "sent_s": [round(value, 5) for value in key.sent_s],
                    "status": key.status,
                    "complete": [int(value) for value in key.complete],
                    "first_chunk_s": [_rounded(value) for value in key.first_chunk_s],
                    "total_s": [_rounded(value) for value in key.total_s],
                }
                for key in self.keys
            ],
        }

    @staticmethod
    def from_json(document: dict[str, Any]) -> LoadResult:
        keys = tuple(
            KeyResult(**{**key, "complete": [bool(value) for value in key["complete"]]})
            for key in document["keys"]
        )
        return LoadResult(**{**document, "keys": keys})


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
