"""From outside, through everything: what starts first, a metric that vanishes, failures that are told on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import live_site
import pytest
from live_site import Site, statuses

from controlplane.sim import control

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

LOAD = "vllm:kv_cache_usage_perc", "vllm:num_requests_waiting"


@pytest.fixture
async def site(tmp_path: Path, envoy_path: Path) -> AsyncIterator[Site]:
    async with live_site.site(tmp_path, envoy_path) as made:
        yield made


async def test_nothing_is_served_before_the_first_configuration_and_then_at_once(site: Site) -> None:
    """[first] Envoy is there before its control plane: nobody listens. Then the first answer is real."""
    site.files.tenants["acme"] = "pin: 1"
    site.write()
    async with site.envoy(wait=False):
        for _ in range(5):
            assert (await site.ask()).status == 0
            await asyncio.sleep(0.1)
        async with site.control_plane():
            started_s, sent = time.monotonic(), []
            while not (sent and sent[-1].status == 429):
                sent.append(await site.ask())
                assert time.monotonic() - started_s < 15.0, statuses(sent)
                await asyncio.sleep(0.05)
            assert set(statuses(sent)) <= {0, 200, 429}
            assert statuses(sent)[200] <= 4 + 1 + int(time.monotonic() - started_s)  # a burst of 4 s
            assert (await site.ask(None)).status == 401
            async with site.http.get(f"{site.url}/healthz") as response:
                assert response.status == 200


async def test_a_renamed_metric_is_seen_and_loosens_nothing(site: Site) -> None:
    """[renamed] Held, then on the way down to the contract rate; absent in /metrics and /v1/signals."""
    site.files.rate = ", signal: effective, contract_rate: 20, max_age_s: 1, hold_s: 1, decay_s: 1.5"
    site.write()
    (pod,) = site.fleet.pods
    await control.set_faults(site.http, pod, kv_reserved_ratio=0.30)
    async with site.control_plane():
        rates = [await _settled_rate(site)]
        assert rates[0] > 40.0
        await control.set_faults(site.http, pod, rename_metrics={name: f"{name}_v2" for name in LOAD})
        states: list[str] = []
        until_s = time.monotonic() + 12.0
        while not states or states[-1] != "contract":
            made = await _pool(site)
            rates.append(made["rate_per_s"])
            states.append(made["state"])
            assert time.monotonic() < until_s, (states, rates)
            await asyncio.sleep(0.1)
        signals = await live_site.fetch(site.http, f"{site.admin}/v1/signals")
        async with site.http.get(f"{site.admin}/metrics") as response:
            metrics = await response.text()
    assert rates == sorted(rates, reverse=True)  # never up
    assert rates[-1] == pytest.approx(20.0)
    assert [s for i, s in enumerate(states) if i == 0 or s != states[i - 1]] == [
        "live",
        "held",
        "decaying",
        "contract",
    ]
    assert signals is not None
    absent = signals["pools"][0]["signals"]
    for name in ("kv_cache_usage_ratio", "waiting_requests"):
        assert absent[name]["value"] is None
        assert absent[name]["absent"]
        line = next(
            text
            for text in metrics.splitlines()
            if text.startswith("tidegate_signal_absent{") and f'signal="{name}"' in text
        )
        assert line.endswith(" 1.0")


async def test_model_servers_are_told_of_their_failures(site: Site) -> None:
    """`resilience.failure-rate`: insufficient at first, then what the gateway counted in ten seconds."""
    site.files.breaker = "failure_rate_threshold: 0.9"  # it would open, and hide what is measured here
    site.write()
    (pod,) = site.fleet.pods
    await control.set_gpu(site.http, pod, util_percent=10.0)
    await control.set_faults(site.http, pod, failure_ratio=0.25)
    async with site.control_plane(), site.envoy():
        sent = await site.offer("acme", 30, 4.0)
    told = (await control.fetch_seen(site.http, pod))["headers"]["resilience.failure-rate"]["values"]
    assert set(statuses(sent)) == {200, 500}
    assert told.pop("insufficient") >= 20
    assert sum(told.values()) >= 30
    assert all(float(value) == pytest.approx(0.25, abs=0.06) for value in told)


async def _pool(site: Site) -> dict[str, Any]:
    document: dict[str, Any] = dict(await site.decisions())
    return dict(document["pools"][0])


async def _settled_rate(site: Site) -> float:
    """The rate of the pool once its signal leads."""
    for _ in range(100):
        made = await _pool(site)
        if made["state"] == "live":
            await asyncio.sleep(1.1)
            return float((await _pool(site))["rate_per_s"])
        await asyncio.sleep(0.1)
    raise AssertionError(f"never live: {made}")
