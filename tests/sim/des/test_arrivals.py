"""Scenarios offer what they say, to whom they say, in the sizes they say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from platforms import four_pods

from controlplane.sim.des.arrivals import Arrival, noisy_tenant, offered, shares, sizes
from controlplane.sim.des.scenario import NAMES, Scenario, scenario, steady
from controlplane.sim.trace import read_trace

CAPACITY = {"chat:v1": 100.0}
KEYS = four_pods().keys
SECONDS = 300.0


def requests(played: Scenario, seed: int = 1) -> list[Arrival]:
    return offered(played, KEYS, CAPACITY, seconds=SECONDS, seed=seed)


def rate(found: list[Arrival], start_s: float, end_s: float) -> float:
    return sum(start_s <= arrival.at_s < end_s for arrival in found) / (end_s - start_s)


@pytest.mark.parametrize("name", NAMES)
def test_requests_come_in_order_and_within_the_run(name: str) -> None:
    found = requests(scenario(name, SECONDS))
    times = [arrival.at_s for arrival in found]
    assert times == sorted(times)
    assert times[0] >= 0.0
    assert times[-1] < SECONDS
    assert min(min(arrival.prompt_tokens, arrival.answer_tokens) for arrival in found) >= 1


@pytest.mark.parametrize(
    ("name", "before", "after"), [("s1", 60.0, 160.0), ("s4", 110.0, 110.0), ("s7", 85.0, 85.0)]
)
def test_the_load_is_the_part_of_capacity_that_was_told(name: str, before: float, after: float) -> None:
    found = requests(scenario(name, SECONDS))
    assert rate(found, 0, 60) == pytest.approx(before, rel=0.05)
    assert rate(found, 60, 300) == pytest.approx(after, rel=0.05)


def test_bursts_last_fifteen_seconds_of_every_minute() -> None:
    found = requests(scenario("s2", SECONDS))
    for start_s in (60, 120, 180, 240):
        assert rate(found, start_s, start_s + 15) == pytest.approx(300, rel=0.1)
        assert rate(found, start_s + 15, start_s + 60) == pytest.approx(70, rel=0.1)


def test_only_the_noisy_tenant_grows_tenfold() -> None:
    found = requests(scenario("s6", SECONDS))
    early = Counter(arrival.key for arrival in found if arrival.at_s < 60)
    late = Counter(arrival.key for arrival in found if arrival.at_s >= 60)
    ratios = {KEYS[key].tenant: (late[key] / 240) / (early[key] / 60) for key in early}
    assert ratios.pop("acme") == pytest.approx(10, rel=0.1)
    assert all(ratio == pytest.approx(1, rel=0.15) for ratio in ratios.values())


def test_the_noisy_tenant_is_the_first_of_the_lightest() -> None:
    keys = [replace(key, weight=3.0) if key.tenant == "acme" else key for key in KEYS]
    assert noisy_tenant(keys) == "globex"


def test_load_is_split_by_weight() -> None:
    keys = [replace(key, weight=3.0) if key.tenant == "acme" else key for key in KEYS]
    assert shares(keys) == [0.5, *[pytest.approx(1 / 6)] * 3]


def test_mean_sizes_are_what_capacity_is_reckoned_with() -> None:
    for played in (steady(1.0), scenario("trace", SECONDS)):
        found, told = requests(played), sizes(played)
        prompts = sum(arrival.prompt_tokens for arrival in found) / len(found)
        answers = sum(arrival.answer_tokens for arrival in found) / len(found)
        assert prompts == pytest.approx(told.prompt_tokens, rel=0.04)
        assert answers == pytest.approx(told.answer_tokens, rel=0.04)


def test_the_trace_keeps_its_sizes() -> None:
    known = {(request.prompt_tokens, max(1, request.answer_tokens)) for request in read_trace()}
    found = requests(scenario("trace", SECONDS))
    assert {(arrival.prompt_tokens, arrival.answer_tokens) for arrival in found} <= known


def test_seeds_differ() -> None:
    assert requests(steady(1.0)) == requests(steady(1.0))
    assert requests(steady(1.0)) != requests(steady(1.0), seed=2)


def test_an_unknown_scenario_is_an_error() -> None:
    with pytest.raises(KeyError):
        scenario("s99", SECONDS)
