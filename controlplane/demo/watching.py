"""Looking on: what the control plane says it enforces, polled while the load runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from controlplane.demo.verdict import RateLine

POLL_S = 0.2


@dataclass(slots=True)
class Watch:
    """The decisions of a run, oldest first; no decision twice."""

    decisions: list[dict[str, Any]] = field(default_factory=list)

    def add(self, document: dict[str, Any]) -> bool:
        """Remember a decision; False when it is known."""
        if self.decisions and self.decisions[-1]["at"] >= document["at"]:
            return False
        self.decisions.append(document)
        return True

    def line(self, key_id: str) -> RateLine:
        """The enforced rate of one key over time."""
        rows = [
            (document["at"], key)
            for document in self.decisions
            for key in document["keys"]
            if key["id"] == key_id
        ]
        return RateLine(
            times_s=[at_s for at_s, _ in rows],
            rates_per_s=[float(key["rate_per_s"]) for _, key in rows],
            burst_s=max((float(key["burst_s"]) for _, key in rows), default=1.0),
        )

    def first_with(self, utilisation_percent: float, since_s: float, pools: frozenset[str]) -> float | None:
        """When all of `pools` were first judged on this utilisation, at or after `since_s`."""
        for document in self.decisions:
            if document["at"] >= since_s and all(
                pool["inputs"].get("gpu_util_percent") == utilisation_percent
                for pool in document["pools"]
                if pool["model_version"] in pools
            ):
                return float(document["at"])
        return None


async def watch_decisions(
    http: aiohttp.ClientSession, admin_url: str, watch: Watch, on_new: Callable[[dict[str, Any]], None]
) -> None:
    """Poll until cancelled; a poll that fails is made again."""
    while True:
        document = await fetch(http, f"{admin_url}/v1/decisions")
        if document is not None and watch.add(document):
            on_new(document)
        await asyncio.sleep(POLL_S)


async def fetch(http: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """The JSON document at `url`; None when it does not answer."""
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=2)) as response:
            return dict(await response.json()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
