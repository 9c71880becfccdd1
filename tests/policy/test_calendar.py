"""Windows of IANA calendars: tables of what is awkward, then what holds for every zone and time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.calendar import PERIODS, around, window

HOUR_S = 3600
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("zone", "now", "id", "hours"),
    [
        pytest.param("UTC", "2024-06-01T12:00", "2024-06-01", 24, id="plain"),
        pytest.param("Europe/Berlin", "2024-03-31T12:00", "2024-03-31", 23, id="clocks go forward"),
        pytest.param("Europe/Berlin", "2024-10-27T12:00", "2024-10-27", 25, id="clocks go back"),
        pytest.param("America/New_York", "2024-03-10T12:00", "2024-03-10", 23, id="another zone forward"),
        pytest.param("America/Sao_Paulo", "2018-11-04T12:00", "2018-11-04", 23, id="midnight is skipped"),
        pytest.param("America/Havana", "2023-11-05T12:00", "2023-11-05", 25, id="midnight comes twice"),
        pytest.param("Australia/Lord_Howe", "2024-04-06T20:00", "2024-04-07", 24.5, id="half an hour"),
        pytest.param("Pacific/Apia", "2011-12-30T12:00", "2011-12-31", 24, id="a day left out"),
        pytest.param("UTC", "2024-02-29T23:59", "2024-02-29", 24, id="29 February"),
        pytest.param("Europe/Berlin", "2024-06-01T22:00", "2024-06-02", 24, id="already tomorrow there"),
        pytest.param("America/New_York", "2024-06-01T03:59", "2024-05-31", 24, id="still yesterday there"),
    ],
)
def test_days_are_local_days(zone: str, now: str, id: str, hours: float) -> None:
    found = window(at(now), "daily", zone)
    assert (found.id, found.length_s) == (id, hours * HOUR_S)


@pytest.mark.parametrize(
    ("zone", "now", "id", "hours"),
    [
        pytest.param("UTC", "2024-02-29T12:00", "2024-02", 29 * 24, id="leap February"),
        pytest.param("UTC", "2023-02-01T00:00", "2023-02", 28 * 24, id="February"),
        pytest.param("UTC", "2024-12-31T23:59", "2024-12", 31 * 24, id="end of the year"),
        pytest.param("Europe/Berlin", "2024-12-31T23:00", "2025-01", 31 * 24, id="already next year there"),
        pytest.param("Europe/Berlin", "2024-03-15T12:00", "2024-03", 31 * 24 - 1, id="an hour short"),
        pytest.param("Europe/Berlin", "2024-10-15T12:00", "2024-10", 31 * 24 + 1, id="an hour long"),
    ],
)
def test_months_are_local_months(zone: str, now: str, id: str, hours: int) -> None:
    found = window(at(now), "monthly", zone)
    assert (found.id, found.length_s) == (id, hours * HOUR_S)


def test_another_period_is_an_error() -> None:
    with pytest.raises(ValueError, match="weekly"):
        window(0.0, "weekly", "UTC")


times = st.floats(min_value=at("1995-01-01"), max_value=at("2037-12-31"))


@given(now_s=times, zone=st.sampled_from(ZONES), period=st.sampled_from(PERIODS))
def test_every_instant_is_in_one_window_and_windows_follow_without_gap(
    now_s: float, zone: str, period: str
) -> None:
    before, current, after = around(now_s, period, zone)
    assert current.start_s <= now_s < current.end_s
    assert before.end_s == current.start_s
    assert current.end_s == after.start_s
    assert window(current.start_s, period, zone) == current
    assert window(current.end_s - 1, period, zone) == current


@given(now_s=times, zone=st.sampled_from(ZONES))
def test_a_day_is_within_its_month(now_s: float, zone: str) -> None:
    day, month = window(now_s, "daily", zone), window(now_s, "monthly", zone)
    assert day.id.startswith(month.id)
    assert month.start_s <= day.start_s < day.end_s <= month.end_s
