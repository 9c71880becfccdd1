"""Pages that lie: impossible counters, unreadable bounds, endless names, clocks that step."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.signals.scrape import SERIES_MAX
from controlplane.signals.text import NAMES_MAX, Reader, exactly

RUNNING = 'vllm:num_requests_running{model_name="llama"} 3\n'
DONE = 'vllm:request_success_total{model_name="llama",finished_reason='
TTFT = 'vllm:time_to_first_token_seconds_bucket{model_name="llama",le='


@pytest.mark.parametrize(
    "lies",
    [
        pytest.param(f'{DONE}"stop"}} +Inf\n{DONE}"length"}} -Inf\n', id="infinities of both signs"),
        pytest.param(f'{DONE}"stop"}} 1.7e308\n{DONE}"length"}} 1.7e308\n', id="a sum that overflows"),
        pytest.param(f'{TTFT}"abc"}} 3\n{TTFT}"+Inf"}} 3\n', id="a bound that is no number"),
        pytest.param(f'{TTFT}"NaN"}} 3\n{TTFT}"+Inf"}} 3\n', id="a bound that is NaN"),
        pytest.param(f'{TTFT}"1"}} 1e300\n{TTFT}"+Inf"}} 1e305\n', id="counts nobody can reach"),
    ],
)
async def test_a_pod_that_lies_costs_its_own_signal_and_nothing_else(world: Any, lies: str) -> None:
    for _ in range(3):
        world.show(RUNNING + lies, RUNNING)
        found = await world.read()
    assert found["running_requests"].value == 3
    assert found["endpoints_up"].value == 2


async def test_after_the_clock_stepped_back_the_living_pods_count_and_a_dead_one_grows_old(
    world: Any, server: Any
) -> None:
    world.show(server(running=2), server(running=8))
    await world.read()
    world.show(server(running=2), None)
    await world.read(after_s=-3600)
    found = await world.read(after_s=10)
    assert found["running_requests"].value == 2
    assert found["running_requests"].count == 1


def test_a_page_with_other_names_at_every_scrape_takes_a_bounded_memory() -> None:
    reader = Reader(exactly(frozenset({"wanted"})))
    for scrape in range(3):
        text = "".join(f"junk_{scrape}_{number} 1\n" for number in range(NAMES_MAX // 2))
        assert reader.read(text + "wanted 1\n").samples["wanted"][0].value == 1
    assert len(reader._names) <= NAMES_MAX


async def test_a_page_of_endless_series_is_not_read_and_says_so(world: Any) -> None:
    flood = "".join(f'vllm:num_requests_running{{n="{n}"}} 1\n' for n in range(SERIES_MAX + 1))
    world.show(flood, RUNNING)
    found = await world.read()
    assert found["endpoints_up"].value == 1
    assert found["running_requests"].count == 1
    world.show(flood, None)
    assert "series of interest" in (await world.read())["ttft_p95_s"].absent
