"""Sources in order of preference become one observation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.model.policy import Pool
from controlplane.model.signal import SIGNALS, KeyTraffic, Reading
from controlplane.signals.collate import NOBODY, choose, collate

NOW_S = 1000.0
POOL = Pool(model="m", version="v1", endpoints=())


def reading(value: float | None, age_s: float = 0.0, source: str = "engine") -> Reading:
    if value is None:
        return Reading(source=source, absent="no requests")
    return Reading(value=value, sampled_at_s=NOW_S - age_s, source=source)


@pytest.mark.parametrize(
    ("engine", "gateway", "chosen"),
    [
        (reading(1.0, 2.0), reading(2.0, 0.0), 1.0),
        (reading(1.0, 20.0), reading(2.0, 0.0), 2.0),
        (reading(1.0, 20.0), reading(2.0, 40.0), 1.0),
        (reading(None), reading(2.0, 40.0), 2.0),
        (None, reading(2.0), 2.0),
        (reading(1.0), None, 1.0),
    ],
    ids=[
        "preferred",
        "preferred is stale",
        "both stale: the younger",
        "absent",
        "only gateway",
        "only engine",
    ],
)
def test_the_preferred_source_wins_while_it_is_fresh(
    engine: Reading | None, gateway: Reading | None, chosen: float
) -> None:
    assert choose([engine, gateway], 15.0, NOW_S).value == chosen


def test_without_any_value_all_reasons_are_given() -> None:
    found = choose([reading(None), reading(None, source="gateway")], 15.0, NOW_S)
    assert found.value is None
    assert found.absent == "engine: no requests; gateway: no requests"
    assert choose([None], 15.0, NOW_S).absent == NOBODY


def test_every_signal_of_every_pool_is_in_the_observation() -> None:
    traffic = {"k": KeyTraffic(offered_per_s=1.0)}
    found = collate(
        [POOL], [{POOL.id: {"ttft_p95_s": reading(0.2)}}], traffic=traffic, gateways=3, now_s=NOW_S
    )
    assert set(found.loads[POOL.id].readings) == set(SIGNALS)
    assert found.loads[POOL.id].get("ttft_p95_s").value == 0.2
    assert (found.traffic, found.gateways, found.now_s) == (traffic, 3, NOW_S)


READINGS = st.one_of(
    st.none(),
    st.builds(reading, st.none() | st.floats(0, 100), st.floats(0, 100), st.sampled_from(["a", "b"])),
)


@given(st.lists(READINGS, max_size=4))
def test_a_choice_is_one_of_the_given_or_absent_with_a_reason(given_readings: list[Reading | None]) -> None:
    chosen = choose(given_readings, 15.0, NOW_S)
    valued = [each for each in given_readings if each is not None and each.value is not None]
    assert (chosen in valued) if valued else (chosen.value is None and bool(chosen.absent))
