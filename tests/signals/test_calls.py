"""What model servers answered, as totals over gateways that come, go and begin anew."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.model.policy import Endpoint, Pool
from controlplane.model.signal import Calls
from controlplane.signals.calls import GAP_S, CallBook, Pages
from controlplane.signals.catalogue import Catalogue
from controlplane.signals.gateway import GatewaySource, filtered
from controlplane.signals.text import Sample

POOL = "llama:v1"
ANSWERS = "envoy_cluster_upstream_rq_xx"


def page(
    ok: float = 0, failed: float = 0, client: float = 0, overflow: float = 0, fast: float = 0, slow: float = 0
) -> dict[str, dict[str, tuple[Sample, ...]]]:
    classes = {"2": ok, "4": client, "5": failed}
    first_bytes = {"100": fast, "800": fast, "+Inf": fast + slow}
    return {
        POOL: {
            ANSWERS: tuple(
                Sample({"envoy_response_code_class": kind}, count, None) for kind, count in classes.items()
            ),
            "envoy_cluster_upstream_rq_pending_overflow": (Sample({}, overflow, None),),
            "envoy_http_lua_tg_ttfb_ms_bucket": tuple(
                Sample({"le": bound}, count, None) for bound, count in first_bytes.items()
            ),
        }
    }


def totals(book: CallBook) -> tuple[float, float, int]:
    calls = book.calls([POOL])[POOL]
    return calls.answered, calls.failed, calls.failures_in_a_row


def test_the_first_page_only_sets_the_start() -> None:
    book, gateway = CallBook(), Pages()
    book.add(gateway, 0.0, page(ok=1000, failed=500))
    assert totals(book) == (0, 0, 0)
    book.add(gateway, 1.0, page(ok=1010, failed=502))
    assert totals(book) == (12, 2, 0)


def test_a_pool_that_appears_began_at_zero() -> None:
    book, gateway = CallBook(), Pages()
    book.add(gateway, 0.0, {POOL: {}})
    book.add(gateway, 1.0, page(failed=3))
    assert totals(book) == (3, 3, 3)


def test_the_clients_own_errors_are_neither_good_nor_bad() -> None:
    book, gateway = CallBook(), Pages()
    book.add(gateway, 0.0, page())
    book.add(gateway, 1.0, page(client=50))
    book.add(gateway, 2.0, page(client=90, failed=2))
    assert totals(book) == (2, 2, 2)


def test_our_own_503_of_a_full_pool_is_no_failure() -> None:
    book, gateway = CallBook(), Pages()
    book.add(gateway, 0.0, page())
    book.add(gateway, 1.0, page(ok=10, failed=7, overflow=7))
    assert totals(book) == (10, 0, 0)


def test_failures_in_a_row_end_with_a_good_answer() -> None:
    book, gateway = CallBook(), Pages()
    for second, (ok, failed) in enumerate([(0, 0), (0, 3), (0, 3), (0, 5), (1, 9), (1, 11)]):
        book.add(gateway, second, page(ok=ok, failed=failed))
    assert totals(book)[2] == 2


def test_gateways_are_summed_and_one_that_restarts_begins_at_zero() -> None:
    book, one, two = CallBook(), Pages(), Pages()
    book.add(one, 0.0, page(ok=100))
    book.add(two, 0.0, page(ok=900))
    book.add(one, 1.0, page(ok=110))
    book.add(two, 1.0, page(ok=905))
    assert totals(book)[0] == 15
    book.add(one, 2.0, page(ok=4), restarted=True)
    book.add(two, 2.0, page(ok=3))
    assert totals(book)[0] == 22


def test_a_script_that_was_exchanged_begins_its_histogram_anew() -> None:
    book, gateway = CallBook(), Pages()
    book.add(gateway, 0.0, page(fast=50, slow=5))
    book.add(gateway, 1.0, page(fast=60, slow=6))
    book.add(gateway, 2.0, page(fast=2, slow=3))
    calls = book.calls([POOL])[POOL]
    assert calls.bounds_s == (0.1, 0.8, math.inf)
    assert calls.within == (12, 12, 16)


def test_what_happened_in_a_long_silence_is_not_now() -> None:
    book, gateway = CallBook(), Pages()
    book.add(gateway, 0.0, page())
    book.add(gateway, GAP_S + 1, page(failed=500))
    assert totals(book) == (0, 0, 0)
    book.add(gateway, GAP_S + 2, page(ok=1, failed=500))
    assert totals(book) == (1, 0, 0)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -1.0, 1e300])
def test_junk_counts_are_left_out(junk: float) -> None:
    book, gateway = CallBook(), Pages()
    book.add(gateway, 0.0, page())
    book.add(gateway, 1.0, page(ok=junk, failed=5))
    assert totals(book) == (0, 0, 0)


def test_pools_that_left_are_forgotten() -> None:
    book, gateway = CallBook(), Pages()
    book.add(gateway, 0.0, page())
    book.add(gateway, 1.0, page(ok=5))
    book.keep(["other:v1"])
    assert totals(book) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), max_size=30))
def test_totals_never_fall(steps: list[tuple[int, int, bool]]) -> None:
    book, gateway, ok, failed = CallBook(), Pages(), 0, 0
    before = Calls(answered=0, failed=0)
    for second, (more, bad, restarted) in enumerate(steps):
        ok, failed = (more, bad) if restarted else (ok + more, failed + bad)
        book.add(gateway, second, page(ok=ok, failed=failed, fast=ok), restarted=restarted)
        now = book.calls([POOL])[POOL]
        assert now.answered >= before.answered
        assert now.failed >= before.failed
        assert list(now.within) == sorted(now.within)
        before = now


# In the source that reads gateways


async def test_too_few_gateways_are_unknown_and_not_zero(pages: Any, catalogue: Catalogue) -> None:
    pool = Pool(model="llama", version="v1", endpoints=(Endpoint(address="x", port=1),))
    urls = [f"http://gw-{n}:9901/stats/prometheus" for n in range(3)]
    source = GatewaySource([pool], urls, catalogue, clock=lambda: pages.now_s, fetcher=pages)
    assert (await source.read(pages.now_s)).calls is None
    for count in (0, 5):
        pages.now_s += 1
        for url in urls[:2]:
            text = (
                'envoy_cluster_upstream_rq_xx{envoy_response_code_class="5",envoy_cluster_name="llama~v1"}'
                f" {count}\n"
            )
            pages.pages[filtered(url)] = text
        report = await source.read(pages.now_s)
    assert report.calls is not None
    assert (report.calls[POOL].answered, report.calls[POOL].failures_in_a_row) == (10, 10)
    pages.pages.clear()
    pages.now_s += 11
    assert (await source.read(pages.now_s)).calls is None
