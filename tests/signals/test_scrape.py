"""What a pool's readings are while its pods answer, fall silent, restart and rename."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.model.policy import Endpoint, Pool, SignalPolicy
from controlplane.model.signal import SIGNALS, Reading
from controlplane.signals.catalogue import load_catalogue
from controlplane.signals.fetch import Fetched, Fetcher
from controlplane.signals.scrape import ScrapeSource

KV = "vllm:kv_cache_usage_perc"


async def test_gauges_are_means_over_endpoints(world: Any, server: Any) -> None:
    world.show(server(running=4, waiting=2, kv_ratio=0.2), server(running=8, waiting=0, kv_ratio=0.6))
    found = await world.read()
    assert found["running_requests"].value == 6
    assert found["waiting_requests"].value == 1
    assert found["kv_cache_usage_ratio"].value == pytest.approx(0.4)
    assert found["kv_cache_usage_ratio"].count == 2
    assert found["kv_cache_usage_ratio"].source == f"scrape {KV}"
    assert found["endpoints_up"].value == 2


async def test_a_reading_carries_the_time_of_its_scrape(world: Any, server: Any) -> None:
    world.show(server(), server())
    found = await world.read()
    assert found["running_requests"].sampled_at_s == world.pages.now_s
    world.pages.silent.update(world.urls)
    found = await world.read(after_s=7.0)
    assert world.age_s(found["running_requests"]) == 7.0


async def test_a_dead_pod_leaves_the_count_at_once_and_the_mean_within_two_scrapes(
    world: Any, server: Any
) -> None:
    world.show(server(kv_ratio=0.0), server(kv_ratio=0.8))
    await world.read()
    world.show(None, server(kv_ratio=0.8))
    found = await world.read(after_s=1.0)
    assert found["endpoints_up"].value == 1
    found = await world.read(after_s=3.0)
    assert found["kv_cache_usage_ratio"].value == pytest.approx(0.8), "a stale pod never looks idle"
    assert found["kv_cache_usage_ratio"].count == 1


async def test_when_every_pod_is_silent_the_last_value_stays_and_ages(world: Any, server: Any) -> None:
    world.show(server(kv_ratio=0.5), server(kv_ratio=0.7))
    await world.read()
    world.show(None, None)
    for _ in range(3):
        found = await world.read(after_s=10.0)
    assert found["kv_cache_usage_ratio"].value == pytest.approx(0.6)
    assert world.age_s(found["kv_cache_usage_ratio"]) == 30.0
    assert found["endpoints_up"].value == 0


async def test_a_pod_that_never_answered_is_absent_with_the_reason(world: Any) -> None:
    found = await world.read()
    reading = found["kv_cache_usage_ratio"]
    assert reading.value is None
    assert "10.0.0.0:8000 gave no page: connection refused" in reading.absent
    assert not reading.not_exposed
    assert found["endpoints_up"].value == 0


async def test_a_fresh_pod_without_metrics_is_neither_idle_nor_full(world: Any, server: Any) -> None:
    world.show("", server(running=6, kv_ratio=0.6))
    found = await world.read()
    assert found["running_requests"].value == 6
    assert found["kv_cache_usage_ratio"].value == pytest.approx(0.6)
    assert found["kv_cache_usage_ratio"].count == 1


async def test_a_vanished_metric_is_absent_says_what_was_tried_and_is_flagged(
    world: Any, server: Any
) -> None:
    world.show(server(kv_ratio=0.9), server(kv_ratio=0.9))
    await world.read()
    page = server(kv_ratio=0.0).text(rename={KV: "vllm:kv_usage_v3"})
    world.show(page, page)
    reading = (await world.read())["kv_cache_usage_ratio"]
    assert reading.value is None
    assert reading.not_exposed
    assert (
        f"metric {KV} not exposed by 10.0.0.0:8000; tried {KV}, vllm:gpu_cache_usage_perc" in reading.absent
    )


async def test_an_old_name_is_found_when_the_new_one_is_missing(world: Any, server: Any) -> None:
    page = server(kv_ratio=0.25).text(rename={KV: "vllm:gpu_cache_usage_perc"})
    world.show(page, server(kv_ratio=0.75))
    reading = (await world.read())["kv_cache_usage_ratio"]
    assert reading.value == pytest.approx(0.5)
    assert reading.source == f"scrape vllm:gpu_cache_usage_perc or {KV}"


async def test_quantiles_and_rates_need_two_scrapes(world: Any, server: Any) -> None:
    one, two = server(), server()
    one.answer(0.2, 3.0, count=500)
    world.show(one, two)
    found = await world.read()
    assert "needs two" in found["ttft_p95_s"].absent
    for _ in range(2):
        one.answer(0.05, 1.2, count=10)
        two.answer(0.05, 1.2, count=30)
        world.show(one, two)
        found = await world.read(after_s=1.0)
    assert found["completed_per_s"].value == pytest.approx(40.0)
    assert 0.04 < found["ttft_p95_s"].value <= 0.06, "what was before the first scrape does not count"
    assert 1.0 < found["latency_p95_s"].value <= 1.5
    assert found["ttft_p95_s"].count == 80


async def test_a_pool_without_requests_has_no_latency(world: Any, server: Any) -> None:
    world.show(server(), server())
    await world.read()
    found = await world.read()
    assert found["ttft_p95_s"].value is None
    assert found["ttft_p95_s"].absent == "no requests in the last 1 s"
    assert not found["ttft_p95_s"].not_exposed
    assert found["completed_per_s"].value == 0.0


async def test_a_restarted_server_counts_from_zero(world: Any, server: Any) -> None:
    old, other = server(), server()
    old.answer(0.05, 1.0, count=1000)
    world.show(old, other)
    await world.read()
    new = server()
    new.answer(0.05, 1.0, count=3)
    world.show(new, other)
    found = await world.read(after_s=1.0)
    assert found["completed_per_s"].value == pytest.approx(3.0)
    assert found["ttft_p95_s"].count == 3


async def test_a_restart_that_already_counted_more_shows_in_its_start_time(world: Any, server: Any) -> None:
    old, new, other = server(), server(), server()
    old.answer(0.05, 1.0, count=5)
    new.answer(0.05, 1.0, count=8)
    world.show(f"process_start_time_seconds 100\n{old.text()}", other)
    await world.read()
    world.show(f"process_start_time_seconds 200\n{new.text()}", other)
    assert (await world.read(after_s=1.0))["completed_per_s"].value == pytest.approx(8.0)


async def test_counters_that_come_back_are_not_taken_for_new_ones(world: Any, server: Any) -> None:
    busy = server()
    busy.answer(0.05, 1.0, count=9000)
    hidden = ("vllm:request_success_total", "vllm:e2e_request_latency_seconds")
    world.show(busy, None)
    await world.read()
    world.show(busy.text(hide=hidden), None)
    assert (await world.read())["completed_per_s"].value is None
    world.show(busy, None)
    assert (await world.read())["completed_per_s"].value is None
    busy.answer(0.05, 1.0, count=2)
    world.show(busy, None)
    assert (await world.read())["completed_per_s"].value == pytest.approx(2.0)


async def test_a_quantile_above_the_top_bucket_says_so(world: Any, server: Any) -> None:
    one = server()
    world.show(one, server())
    await world.read()
    one.answer(3000.0, 9000.0, count=5)
    world.show(one, server())
    reading = (await world.read())["ttft_p95_s"]
    assert reading.value == 2560.0
    assert "lower bound" in reading.source


async def test_data_parallel_ranks_of_one_server_are_summed_or_averaged(world: Any) -> None:
    page = "".join(
        f'vllm:num_requests_waiting{{model_name="llama",engine="{rank}"}} {waiting}\n'
        f'{KV}{{model_name="llama",engine="{rank}"}} {kv}\n'
        for rank, waiting, kv in ((0, 3, 0.2), (1, 5, 0.4))
    )
    world.show(page, None)
    found = await world.read()
    assert found["waiting_requests"].value == 8
    assert found["kv_cache_usage_ratio"].value == pytest.approx(0.3)


async def test_a_server_of_two_models_gives_each_pool_its_own(pages: Any) -> None:
    url = "http://10.0.0.9:8000/metrics"
    endpoint = Endpoint(address="10.0.0.9", port=8000, metrics_url=url)
    pools = [Pool(model=model, version="v1", endpoints=(endpoint,)) for model in ("a", "b", "c")]
    pages.pages[url] = "".join(
        f'vllm:num_requests_running{{model_name="{model}"}} {n}\n' for model, n in (("a", 1), ("b", 2))
    )
    source = ScrapeSource(pools, SignalPolicy(), load_catalogue(), clock=lambda: 0.0, fetcher=pages)
    found = await source.read(0.0)
    assert found["a:v1"]["running_requests"].value == 1
    assert found["b:v1"]["running_requests"].value == 2
    assert "model_name is a, b, never c; set model_label" in found["c:v1"]["running_requests"].absent


async def test_a_configured_model_label_must_match(pages: Any) -> None:
    url = "http://10.0.0.9:8000/metrics"
    endpoint = Endpoint(address="10.0.0.9", port=8000, metrics_url=url)
    pages.pages[url] = 'vllm:num_requests_running{model_name="meta/llama"} 4\n'
    for label, value in ((None, 4), ("meta/llama", 4), ("mistral", None)):
        pool = Pool(model="llama", version="v1", endpoints=(endpoint,), model_label=label)
        source = ScrapeSource([pool], SignalPolicy(), load_catalogue(), clock=lambda: 0.0, fetcher=pages)
        assert (await source.read(0.0))["llama:v1"]["running_requests"].value == value


@pytest.mark.parametrize(
    ("engine", "file", "expected"),
    [
        ("vllm", "vllm_datadog_fixture_trim", {"kv_cache_usage_ratio": 0.0, "waiting_requests": 0.0}),
        ("sglang", "sglang_docs_trim", {"kv_cache_usage_ratio": 0.28, "waiting_requests": 2826.0}),
        ("triton", "triton_datadog_fixture_trim", {"gpu_util_percent": 0.0, "waiting_requests": 0.0}),
        ("llamacpp", "llamacpp_shape", {"waiting_requests": 0.0, "running_requests": 1.0}),
    ],
)
async def test_every_engines_real_page_gives_its_signals(
    pages: Any, samples: Any, engine: str, file: str, expected: dict[str, float]
) -> None:
    pages.pages["http://x/metrics"] = (samples / f"{file}.txt").read_text(encoding="utf-8")
    endpoint = Endpoint(address="x", port=80, metrics_url="http://x/metrics")
    pool = Pool(model="m", version="v1", endpoints=(endpoint,), engine=engine)
    source = ScrapeSource([pool], SignalPolicy(), load_catalogue(), clock=lambda: 0.0, fetcher=pages)
    found = (await source.read(0.0))["m:v1"]
    assert {name: found[name].value for name in expected} == expected


async def test_junk_instead_of_metrics_is_no_number(world: Any) -> None:
    world.show("<html><body>502 Bad Gateway</body></html>\n" * 3, None)
    found = await world.read()
    assert found["running_requests"].value is None
    assert "not exposed by 10.0.0.0:8000" in found["running_requests"].absent


async def test_a_reload_keeps_what_is_known_of_endpoints_that_stay(world: Any, server: Any) -> None:
    one, two = server(), server()
    world.show(one, two)
    await world.read()
    pool = Pool(model="llama", version="v1", endpoints=world.pool.endpoints[:1])
    world.source.retarget([pool], SignalPolicy())
    one.answer(0.05, 1.0, count=7)
    world.show(one, two)
    found = await world.read(after_s=1.0)
    assert found["completed_per_s"].value == pytest.approx(7.0)
    assert found["endpoints_up"].value == 1


WILD = st.one_of(
    st.floats(), st.sampled_from([9223372036854775794.0, 1.8446744073709552e19, -1.0, math.nan, math.inf])
)


@given(st.lists(st.tuples(WILD, WILD, WILD), min_size=2, max_size=2))
def test_no_number_on_a_page_makes_a_reading_out_of_range(rows: list[tuple[float, float, float]]) -> None:
    for name, reading in asyncio.run(readings_of_wild_pages(rows)).items():
        assert name in SIGNALS
        if reading.value is None:
            assert reading.absent
        else:
            top = {"kv_cache_usage_ratio": 1.0, "gpu_util_percent": 100.0}.get(name, 1e6)
            assert 0 <= reading.value <= top


async def readings_of_wild_pages(rows: list[tuple[float, float, float]]) -> Mapping[str, Reading]:
    """One pod and one GPU that show `rows` at successive scrapes."""
    at_s = 0.0

    class OnePage(Fetcher):
        async def fetch_within(self, urls: Iterable[str], patience_s: float) -> list[Fetched]:
            return [Fetched(url=url, time_s=at_s, text=text) for url in urls]

    endpoint = Endpoint(address="x", port=80, metrics_url="http://x/metrics", pod="p")
    pool = Pool(model="m", version="v1", endpoints=(endpoint,))
    policy = SignalPolicy(gpu_exporter_urls=("http://d/metrics",))
    fetcher = OnePage(clock=lambda: at_s)
    source = ScrapeSource([pool], policy, load_catalogue(), clock=lambda: at_s, fetcher=fetcher)
    for gauge, gpu, counter in rows:
        at_s += 1.0
        text = (
            f"{KV} {gauge!r}\nvllm:num_requests_waiting {gauge!r}\nvllm:request_success_total {counter!r}\n"
            f'vllm:time_to_first_token_seconds_bucket{{le="1.0"}} {counter!r}\n'
            f'vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {counter!r}\n'
            f'DCGM_FI_DEV_GPU_UTIL{{UUID="g",pod="p",namespace="n"}} {gpu!r}\n'
        )
        found = await source.read(at_s)
    return found["m:v1"]
