"""How much later the first chunk of a stream arrives through the gateway than straight from a pod."""

from __future__ import annotations

import asyncio
import statistics
import time

import aiohttp

from controlplane.demo.world import MODEL, PATH, VERSIONS

PAIRS = 25


async def added_first_chunk_ms(
    http: aiohttp.ClientSession, gateway_url: str, pod_url: str, api_key: str
) -> float | None:
    """Median of the differences over alternating pairs, milliseconds; None when no pair succeeded."""
    differences = []
    for _ in range(PAIRS):
        direct_s = await _first_chunk_s(http, pod_url, {})
        gated_s = await _first_chunk_s(http, gateway_url, {"authorization": f"Bearer {api_key}"})
        if direct_s is not None and gated_s is not None:
            differences.append((gated_s - direct_s) * 1000)
        await asyncio.sleep(0.02)
    return statistics.median(differences) if differences else None


async def _first_chunk_s(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> float | None:
    body = {
        "model": f"{MODEL}:{VERSIONS[0]}",
        "stream": True,
        "max_tokens": 2,
        "messages": [{"role": "user", "content": "How high is the tide?"}],
    }
    started_s = time.perf_counter()
    try:
        async with http.post(url + PATH, json=body, headers=headers) as response:
            if response.status != 200:
                return None
            async for _ in response.content.iter_any():
                first_s = time.perf_counter() - started_s
                await response.read()
                return first_s
    except aiohttp.ClientError:
        return None
    return None
