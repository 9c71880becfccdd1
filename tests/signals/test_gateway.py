"""What the gateways count: traffic of keys, failures and latency of pools."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.model.policy import Endpoint, Pool
from controlplane.signals.catalogue import Catalogue
from controlplane.signals.gateway import GatewayReport, GatewaySource, filtered

ONE, TWO, THREE = (filtered(f"http://gw-{n}:9901/stats/prometheus") for n in (1, 2, 3))
POOL = Pool(model="llama-3.1", version="v1", endpoints=tuple(Endpoint(address="x", port=n) for n in (1, 2)))
CLUSTER = 'envoy_cluster_name="llama-3.1~v1"'
KEY = "chat|acme|llama-3.1:v1"


def requests(**outcomes: float) -> str:
    labels = (
        'route="chat",tenant="acme",model_version="llama-3.1:v1",envoy_http_conn_manager_prefix="tidegate"'
    )
    return "".join(
        f'envoy_http_lua_tg_requests{{{labels},outcome="{outcome}"}} {count:g}\n'
        for outcome, count in outcomes.items()
    )


def cluster(*, ok: float = 0, failed: float = 0, overflow: float = 0, active: float = 0) -> str:
    return (
        f'envoy_cluster_upstream_rq_xx{{envoy_response_code_class="2",{CLUSTER}}} {ok:g}\n'
        f'envoy_cluster_upstream_rq_xx{{envoy_response_code_class="5",{CLUSTER}}} {failed:g}\n'
        f"envoy_cluster_upstream_rq_active_overflow{{{CLUSTER}}} {overflow:g}\n"
        f"envoy_cluster_upstream_rq_active{{{CLUSTER}}} {active:g}\n"
    )


def histogram(name: str, labels: str, counts: dict[str, float]) -> str:
    return "".join(f'{name}_bucket{{{labels},le="{bound}"}} {count:g}\n' for bound, count in counts.items())


@pytest.fixture
def gateways(pages: Any, catalogue: Catalogue) -> Any:
    def build(*urls: str) -> GatewaySource:
        return GatewaySource([POOL], urls, catalogue, clock=lambda: pages.now_s, fetcher=pages)

    return build


async def step(pages: Any, source: GatewaySource, after_s: float = 1.0, **shown: str | None) -> GatewayReport:
    for name, text in shown.items():
        url = {"one": ONE, "two": TWO, "three": THREE}[name]
        if text is None:
            pages.pages.pop(url, None)
        else:
            pages.pages[url] = text
    pages.now_s += after_s
    return await source.read(pages.now_s)


async def test_counters_become_rates_by_key(pages: Any, gateways: Any) -> None:
    source = gateways(ONE)
    report = await step(pages, source, one=requests(offered=1000, limited=10))
    assert report.traffic is None, "one page has no rates"
    report = await step(pages, source, after_s=2.0, one=requests(offered=1100, limited=30, would_limit=4))
    assert report.traffic is not None
    traffic = report.traffic[KEY]
    assert (traffic.offered_per_s, traffic.limited_per_s, traffic.would_limit_per_s) == (50.0, 10.0, 2.0)


async def test_gateways_are_summed(pages: Any, gateways: Any) -> None:
    source = gateways(ONE, TWO)
    await step(pages, source, one=requests(offered=0), two=requests(offered=500))
    report = await step(pages, source, one=requests(offered=10), two=requests(offered=520))
    assert report.traffic is not None
    assert report.traffic[KEY].offered_per_s == 30.0


async def test_a_key_that_appears_began_at_zero(pages: Any, gateways: Any) -> None:
    source = gateways(ONE)
    await step(pages, source, one="envoy_server_uptime 5\n")
    report = await step(pages, source, one=requests(offered=12))
    assert report.traffic is not None
    assert report.traffic[KEY].offered_per_s == 12.0


@pytest.mark.parametrize("count", [3, 5000], ids=["counter fell", "uptime fell"])
async def test_a_restarted_envoy_counts_from_zero(pages: Any, gateways: Any, count: float) -> None:
    source = gateways(ONE)
    await step(pages, source, one="envoy_server_uptime 500\n" + requests(offered=1000))
    report = await step(pages, source, one="envoy_server_uptime 1\n" + requests(offered=count))
    assert report.traffic is not None
    assert report.traffic[KEY].offered_per_s == count


async def test_counters_that_began_anew_leave_the_others_alone(pages: Any, gateways: Any) -> None:
    """Envoy drops the counters of a replaced script, except those a request under way still holds."""
    source = gateways(ONE)
    await step(pages, source, one=requests(offered=1000, limited=700))
    report = await step(pages, source, one=requests(offered=1040, limited=30))
    assert report.traffic is not None
    assert report.traffic[KEY].offered_per_s == 40.0
    assert report.traffic[KEY].limited_per_s == 30.0
    await step(pages, source, one=requests(limited=40))
    report = await step(pages, source, one=requests(offered=20, limited=45))
    assert report.traffic is not None
    assert report.traffic[KEY].offered_per_s == 20.0
    assert report.traffic[KEY].limited_per_s == 5.0


async def test_a_silent_gateway_counts_with_its_last_rates_and_then_not(pages: Any, gateways: Any) -> None:
    source = gateways(ONE, TWO)
    await step(pages, source, one=requests(offered=0), two=requests(offered=0))
    await step(pages, source, one=requests(offered=10), two=requests(offered=20))
    report = await step(pages, source, one=requests(offered=20), two=None)
    assert report.traffic is not None
    assert report.traffic[KEY].offered_per_s == 30.0
    await step(pages, source, after_s=11.0, one=requests(offered=130))
    report = await step(pages, source, one=requests(offered=140))
    assert report.traffic is not None
    assert report.traffic[KEY].offered_per_s == 10.0
    assert TWO in report.problems


async def test_when_most_gateways_are_silent_traffic_is_unknown_not_zero(pages: Any, gateways: Any) -> None:
    source = gateways(ONE, TWO, THREE)
    await step(pages, source, one=requests(offered=0))
    report = await step(pages, source, one=requests(offered=10))
    assert report.traffic is None
    assert report.answered == 1


async def test_our_own_rejections_are_no_failures_of_the_model(pages: Any, gateways: Any) -> None:
    source = gateways(ONE)
    await step(pages, source, one=cluster())
    report = await step(pages, source, one=cluster(ok=63, failed=16, overflow=12) + requests(limited=500))
    reading = report.readings[POOL.id]["failure_ratio"]
    assert reading.value == pytest.approx(4 / 67)
    assert reading.count == 67


async def test_no_requests_is_no_failure_ratio(pages: Any, gateways: Any) -> None:
    source = gateways(ONE)
    await step(pages, source, one=cluster(ok=5))
    report = await step(pages, source, one=cluster(ok=5))
    reading = report.readings[POOL.id]["failure_ratio"]
    assert reading.value is None
    assert "no requests" in reading.absent


async def test_latency_and_first_byte_come_in_seconds(pages: Any, gateways: Any) -> None:
    def page(n: float) -> str:
        whole = histogram("envoy_cluster_upstream_rq_time", CLUSTER, {"500": 0, "1000": n, "+Inf": n})
        first = histogram(
            "envoy_http_lua_tg_ttfb_ms", 'model_version="llama-3.1:v1"', {"200": 0, "400": n, "+Inf": n}
        )
        return whole + first + f"envoy_cluster_upstream_rq_time_count{{{CLUSTER}}} {n:g}\n"

    source = gateways(ONE)
    await step(pages, source, one=page(0))
    found = (await step(pages, source, after_s=2.0, one=page(100))).readings[POOL.id]
    assert found["latency_p95_s"].value == pytest.approx(0.975)
    assert found["ttft_p95_s"].value == pytest.approx(0.39)
    assert found["completed_per_s"].value == pytest.approx(50.0)


async def test_running_is_per_endpoint_over_all_gateways(pages: Any, gateways: Any) -> None:
    source = gateways(ONE, TWO)
    report = await step(pages, source, one=cluster(active=6), two=cluster(active=4))
    assert report.readings[POOL.id]["running_requests"].value == 5.0


async def test_a_pool_that_no_gateway_knows_is_absent_and_not_missed(pages: Any, gateways: Any) -> None:
    source = gateways(ONE)
    report = await step(pages, source, one="envoy_server_uptime 5\n")
    for reading in report.readings[POOL.id].values():
        assert reading.value is None
        assert reading.absent
        assert not reading.not_exposed


async def test_a_real_envoys_page_reads(pages: Any, gateways: Any, samples: Any) -> None:
    text = (samples / "envoy_1.40_stats_prometheus.txt").read_text(encoding="utf-8")
    source = gateways(ONE)
    own = text.replace("model_llama-3-8b_v2", "llama-3.1~v1")
    await step(pages, source, one=own)
    report = await step(pages, source, one=own)
    assert report.answered == 1
    assert report.readings[POOL.id]["running_requests"].value == 0


def test_only_the_statistics_that_are_read_are_asked_for() -> None:
    assert filtered("http://gw:9901/stats/prometheus").startswith("http://gw:9901/stats/prometheus?filter=")
    assert filtered("http://gw/stats/prometheus?filter=x") == "http://gw/stats/prometheus?filter=x"


async def test_after_the_clock_stepped_back_rates_are_neither_inflated_nor_held_for_an_hour(
    pages: Any, gateways: Any
) -> None:
    source = gateways(ONE)
    await step(pages, source, one=requests(offered=0))
    await step(pages, source, one=requests(offered=10))
    await step(pages, source, after_s=-3600, one=requests(offered=20))
    report = await step(pages, source, one=requests(offered=30))
    assert report.traffic is not None
    assert report.traffic[KEY].offered_per_s == 10.0
    await step(pages, source, after_s=-3600, one=None)
    report = await step(pages, source, after_s=20)
    assert report.traffic is None


async def test_counters_that_begin_anew_at_every_change_of_limits_still_tell_the_rate(
    pages: Any, gateways: Any
) -> None:
    """At a steady rate a new counter reaches in a second just what the old one had."""
    source = gateways(ONE)
    await step(pages, source, one=requests(offered=0))
    for _ in range(3):
        report = await step(pages, source, one=requests(offered=26, limited=5))
        pages.pages[ONE] = requests(offered=1)
        await source.read_behind_push()
        assert report.traffic is not None
        assert report.traffic[KEY].offered_per_s == 26.0
        assert report.traffic[KEY].limited_per_s == 5.0


async def test_counters_that_outlive_a_change_of_limits_are_not_counted_twice(
    pages: Any, gateways: Any
) -> None:
    source = gateways(ONE)
    await step(pages, source, one=requests(offered=1000))
    pages.pages[ONE] = requests(offered=1003)
    await source.read_behind_push()
    report = await step(pages, source, one=requests(offered=1020))
    assert report.traffic is not None
    assert report.traffic[KEY].offered_per_s == 20.0
