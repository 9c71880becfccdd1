import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import NOW_S, load

from controlplane.decide.utilisation import Sample, remember, usable, utilisation
from controlplane.model.policy import RatePolicy, SignalChoice
from controlplane.model.signal import ABSENT, Reading

EFFECTIVE = RatePolicy(signal=SignalChoice.EFFECTIVE, target_waiting=8.0)


def seen(age_s: float = 0.0, **values: float) -> dict[str, Sample]:
    return {name: Sample(value=value, age_s=age_s) for name, value in values.items()}


@pytest.mark.parametrize(
    ("values", "percent", "leading"),
    [
        pytest.param({"kv_cache_usage_ratio": 0.46}, 50.0, "kv_cache_usage_ratio", id="kv-alone"),
        pytest.param({"kv_cache_usage_ratio": 0.92}, 100.0, "kv_cache_usage_ratio", id="kv-full"),
        pytest.param({"waiting_requests": 4.0}, 50.0, "waiting_requests", id="queue-alone"),
        pytest.param({"sm_active_ratio": 0.7}, 70.0, "sm_active_ratio", id="cores-alone"),
        pytest.param(
            {"kv_cache_usage_ratio": 0.23, "waiting_requests": 6.0, "sm_active_ratio": 0.5},
            75.0,
            "waiting_requests",
            id="the-largest-leads",
        ),
        pytest.param({"waiting_requests": 800.0}, 100.0, "waiting_requests", id="a-long-queue-is-full"),
        pytest.param({"gpu_util_percent": 99.0}, None, "", id="the-raw-counter-is-no-part"),
        pytest.param({}, None, "", id="nothing-known"),
    ],
)
def test_effective_utilisation_is_the_largest_known_part(
    values: dict[str, float], percent: float | None, leading: str
) -> None:
    got = utilisation(seen(**values), EFFECTIVE)
    assert got.percent == (None if percent is None else pytest.approx(percent))
    assert got.leading == leading


def test_the_literal_signal_is_the_counter_alone() -> None:
    got = utilisation(seen(gpu_util_percent=33.0, kv_cache_usage_ratio=0.9), RatePolicy())
    assert got.percent == 33.0


def test_a_vanished_part_keeps_its_last_value_and_is_named() -> None:
    samples = seen(0.0, waiting_requests=0.0) | seen(16.0, kv_cache_usage_ratio=0.92)
    got = utilisation(samples, EFFECTIVE)
    assert (got.percent, got.fresh, got.lost) == (100.0, True, ("kv_cache_usage_ratio",))


def test_with_every_part_old_nothing_is_fresh() -> None:
    assert not utilisation(seen(16.0, kv_cache_usage_ratio=0.5, waiting_requests=1.0), EFFECTIVE).fresh


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_util_percent", math.nan),
        ("gpu_util_percent", math.inf),
        ("gpu_util_percent", -1.0),
        ("gpu_util_percent", 9.2e18),
        ("kv_cache_usage_ratio", 46.0),
        ("sm_active_ratio", 70.0),
        ("waiting_requests", 1.8e19),
        ("unheard_of", math.inf),
    ],
)
def test_an_impossible_value_is_dropped(name: str, value: float) -> None:
    assert usable(name, Reading(value=value, sampled_at_s=NOW_S), NOW_S) is None


@pytest.mark.parametrize(
    "reading",
    [
        ABSENT,
        Reading(value=5.0),
        Reading(value=5.0, sampled_at_s=NOW_S + 6),
        Reading(value=5.0, sampled_at_s=math.nan),
    ],
    ids=["absent", "no-time", "from-the-future", "nan-time"],
)
def test_a_reading_without_a_believable_time_is_dropped(reading: Reading) -> None:
    assert usable("gpu_util_percent", reading, NOW_S) is None


def test_the_youngest_sample_is_remembered_and_ages() -> None:
    known = remember({}, load(NOW_S, gpu_util_percent=50.0), ["gpu_util_percent"], NOW_S, 0.0)
    later = remember(known, load(NOW_S, gpu_util_percent=None), ["gpu_util_percent"], NOW_S + 4, 4.0)
    assert later["gpu_util_percent"] == Sample(value=50.0, age_s=4.0)
    older = load(NOW_S - 60, gpu_util_percent=1.0)
    assert remember(later, older, ["gpu_util_percent"], NOW_S + 5, 1.0)["gpu_util_percent"].value == 50.0


@given(
    values=st.dictionaries(
        st.sampled_from(["kv_cache_usage_ratio", "waiting_requests", "sm_active_ratio"]),
        st.floats(0, 1.5),
        min_size=1,
    ),
    target=st.floats(allow_nan=False),
)
def test_known_utilisation_is_between_0_and_100(values: dict[str, float], target: float) -> None:
    policy = RatePolicy(signal=SignalChoice.EFFECTIVE, target_waiting=target)
    percent = utilisation(seen(**values), policy).percent
    assert percent is not None
    assert 0.0 <= percent <= 100.0
