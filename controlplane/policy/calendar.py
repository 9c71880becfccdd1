"""A time and a period -> the calendar window it falls into, in an IANA time zone. Pure.

A window is named after its local date (`2024-06-01`, `2024-06`), so what was used today stays used when the
operator moves a tenant to another time zone. Windows of a zone follow each other without gap or overlap,
whatever its clocks do: days of 23 and 25 hours, a midnight that comes twice or never, a day left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

DAILY, MONTHLY = "daily", "monthly"
PERIODS = (DAILY, MONTHLY)
_QUARTER_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One day or month: `start_s` <= now < `end_s`, whole Unix seconds."""

    id: str
    start_s: int
    end_s: int

    @property
    def length_s(self) -> int:
        return self.end_s - self.start_s


def window(now_s: float, period: str, time_zone: str) -> Window:
    """The window of `period` that `now_s` (Unix seconds) is in. Raises ValueError for another period."""
    return around(now_s, period, time_zone)[1]


def around(now_s: float, period: str, time_zone: str) -> tuple[Window, Window, Window]:
    """The window before, the one `now_s` is in, and the one after: for a clock that is not quite ours."""
    found = _around(now_s // _QUARTER_S * _QUARTER_S, period, time_zone)
    return found if found[1].start_s <= now_s < found[1].end_s else _find(now_s, period, time_zone)


def _find(now_s: float, period: str, time_zone: str) -> tuple[Window, Window, Window]:
    first = datetime.fromtimestamp(now_s, ZoneInfo(time_zone)).date()
    if period == MONTHLY:
        first = first.replace(day=1)
    found = _window(first, period, time_zone)
    while not found.start_s <= now_s < found.end_s:  # a clock set back over midnight repeats a date
        first = _moved(first, period, 1 if now_s >= found.end_s else -1)
        found = _window(first, period, time_zone)
    before = _window(_moved(first, period, -1), period, time_zone)
    return before, found, _window(_moved(first, period, 1), period, time_zone)


_around = lru_cache(maxsize=1024)(_find)  # asked for each request, and new every quarter of an hour at most


def _moved(day: date, period: str, steps: int) -> date:
    if period == DAILY:
        return day + timedelta(days=steps)
    if period == MONTHLY:
        months = day.year * 12 + day.month - 1 + steps
        return date(months // 12, months % 12 + 1, 1)
    raise ValueError(f"no such period: {period}")


@lru_cache(maxsize=4096)
def _window(first: date, period: str, time_zone: str) -> Window:
    after = _moved(first, period, 1)
    name = first.isoformat() if period == DAILY else first.isoformat()[:7]
    return Window(id=name, start_s=_start_s(first, time_zone), end_s=_start_s(after, time_zone))


def _start_s(day: date, time_zone: str) -> int:
    """Midnight: the first of two; where it is skipped, when it would have been (PEP 495, fold=0)."""
    return int(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(time_zone)).timestamp())
