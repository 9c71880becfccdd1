"""The statistics of the real Envoy, with the product's own bootstrap and scripts, read as traffic and
readings.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from sample_policy import decision_of, policy_of
from still_gateway import StillGateway, still_gateway

from controlplane.model.policy import Pool
from controlplane.model.signal import KeyTraffic
from controlplane.signals.catalogue import load_catalogue
from controlplane.signals.gateway import GatewaySource

pytestmark = pytest.mark.envoy

KEY = [("authorization", "Bearer sk-acme")]
MINI = "chat|acme|mini:2024.06"  # a version with a dot: Envoy cuts stat names at dots
LLAMA = "chat|acme|llama:r2"


def reader(gateway: StillGateway, pools: tuple[Pool, ...]) -> GatewaySource:
    url = f"{gateway.envoy.admin_url}/stats/prometheus"
    return GatewaySource(pools, [url], load_catalogue(), clock=time.time, patience_s=2.0)


def total(traffic: Mapping[str, KeyTraffic], key: str, seconds: float) -> tuple[float, float]:
    found = traffic[key]
    return found.offered_per_s * seconds, found.limited_per_s * seconds


async def test_offered_limited_failures_and_latency_are_read_from_a_real_gateway(
    envoy_path: Path, tmp_path: Path
) -> None:
    policy = policy_of()
    decision = decision_of(policy, {MINI: 5.0, LLAMA: 100.0})
    async with still_gateway(envoy_path, tmp_path, policy, decision) as gateway:
        source = reader(gateway, policy.pools)
        await asyncio.sleep(1.1)
        first_s = time.time()
        assert (await source.read(first_s)).traffic is None
        for _ in range(12):
            await gateway.ask({"model": "mini"}, headers=KEY)
        for number in range(6):
            await gateway.ask({"model": "llama", "stream": number % 2 == 0}, headers=KEY)
        await asyncio.sleep(2.2)  # histograms are merged once per flush
        second_s = time.time()
        report = await source.read(second_s)
        await source.close()
        assert report.traffic is not None
        elapsed_s = second_s - first_s
        offered, limited = total(report.traffic, MINI, elapsed_s)
        assert offered == pytest.approx(12, rel=0.05)
        assert 5.7 <= limited <= 7.3
        assert total(report.traffic, LLAMA, elapsed_s) == (pytest.approx(6, rel=0.05), 0.0)
        mini, llama = report.readings["mini:2024.06"], report.readings["llama:r2"]
        assert mini["failure_ratio"].value == 0.0, "our own 429s are no failures of the model"
        assert llama["failure_ratio"].count == 6
        assert llama["ttft_p95_s"].count == 6
        assert 0 < (llama["ttft_p95_s"].value or 0) < 2
        assert 0 < (llama["latency_p95_s"].value or 0) < 5
        assert llama["completed_per_s"].count == 6


async def test_a_model_server_that_is_down_shows_as_failures(envoy_path: Path, tmp_path: Path) -> None:
    policy = policy_of()
    async with still_gateway(envoy_path, tmp_path, policy, decision_of(policy), upstream_port=1) as gateway:
        source = reader(gateway, policy.pools)
        await source.read(time.time())
        for _ in range(3):
            status, _, _ = await gateway.ask({"model": "llama"}, headers=KEY)
            assert status == 503
        await asyncio.sleep(1.1)
        report = await source.read(time.time())
        await source.close()
        assert report.readings["llama:r2"]["failure_ratio"].value == 1.0
