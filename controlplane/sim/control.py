"""Scripting simulated pods from outside: what should break, what the GPU counter shows, what arrived."""

from __future__ import annotations

from typing import Any

import aiohttp

from controlplane.sim.fleet import Pod


async def set_gpu(session: aiohttp.ClientSession, pod: Pod, **script: Any) -> None:
    """Replace the GPU script (fields of `surface.GpuScript`); none: the counter shows what is done."""
    await _post(session, pod, "gpu", script)


async def set_faults(session: aiohttp.ClientSession, pod: Pod, **faults: Any) -> None:
    """Change some faults (fields of `physics.Faults`); the others stay."""
    await _post(session, pod, "faults", faults)


async def reset(session: aiohttp.ClientSession, pod: Pod) -> None:
    """No faults, no GPU script, nothing seen."""
    await _post(session, pod, "reset", {})


async def restart(session: aiohttp.ClientSession, pod: Pod) -> None:
    """A new engine: counters at zero, requests in flight lost, warm-up from the start."""
    await _post(session, pod, "restart", {})


async def fetch_seen(session: aiohttp.ClientSession, pod: Pod) -> dict[str, Any]:
    """Counts of trusted header values that reached the pod (see `seen`)."""
    return await _get(session, pod, "seen")


async def fetch_state(session: aiohttp.ClientSession, pod: Pod) -> dict[str, Any]:
    """What the engine holds now: ready, running, waiting, kv_usage_ratio, busy_ratio."""
    return await _get(session, pod, "state")


async def _post(session: aiohttp.ClientSession, pod: Pod, what: str, document: dict[str, Any]) -> None:
    async with session.post(f"{pod.url}/sim/{what}", json=document) as response:
        if response.status != 200:
            raise ValueError(f"{pod.name} /sim/{what}: {response.status} {await response.text()}")


async def _get(session: aiohttp.ClientSession, pod: Pod, what: str) -> dict[str, Any]:
    async with session.get(f"{pod.url}/sim/{what}") as response:
        response.raise_for_status()
        return dict(await response.json())
