"""One question to the real language model, through the gateway: is it a model that answers there?

Asked when the replay has ended: thinking costs the processor that the story's own measures need.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import aiohttp

from controlplane.demo.world import PATH, REAL_MODEL, REAL_VERSION
from controlplane.report import Criterion
from controlplane.sim.fleet import Fleet

QUESTION = "What is the capital of France?"
LOADED_WITHIN_S = 120.0
ANSWERED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RealAnswer:
    """A streamed answer of the real model. `chunks`: events with text in them."""

    text: str = ""
    chunks: int = 0
    first_chunk_s: float | None = None
    status: int = 0  # 0: no answer at all
    ended: bool = False  # by the stream's own [DONE]

    def criterion(self) -> Criterion:
        """Holds when an answer was streamed as more than one piece, to its end."""
        return Criterion(
            id="real_model",
            must="SmolLM2 streams an answer",
            measured=self.chunks,
            unit="chunks",
            holds=self.status == 200 and self.chunks > 1 and self.ended,
        )


async def until_loaded(http: aiohttp.ClientSession, fleet: Fleet) -> None:
    """Until every real model of the fleet has its weights; RuntimeError when it takes too long."""
    deadline_s = time.monotonic() + LOADED_WITHIN_S
    for pod in fleet.pods:
        while pod.model == REAL_MODEL and not await _healthy(http, pod.url):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{pod.name} did not load its weights within {LOADED_WITHIN_S:.0f} s")
            await asyncio.sleep(0.2)


async def _healthy(http: aiohttp.ClientSession, url: str) -> bool:
    async with http.get(f"{url}/health") as response:
        return response.status == 200


async def ask(http: aiohttp.ClientSession, gateway_url: str, api_key: str) -> RealAnswer:
    """The answer to QUESTION; an empty one when there was none in time."""
    body = {
        "model": f"{REAL_MODEL}:{REAL_VERSION}",
        "stream": True,
        "max_tokens": 24,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    headers = {"authorization": f"Bearer {api_key}"}
    timeout = aiohttp.ClientTimeout(total=ANSWERED_WITHIN_S)
    try:
        async with http.post(gateway_url + PATH, json=body, headers=headers, timeout=timeout) as response:
            return await _read(response)
    except (aiohttp.ClientError, TimeoutError):
        return RealAnswer()


async def _read(response: aiohttp.ClientResponse) -> RealAnswer:
    started_s, first_s = time.perf_counter(), None
    pieces: list[str] = []
    async for line in response.content:
        event = line.decode().strip().removeprefix("data: ")
        if event == "[DONE]":
            return RealAnswer(
                text="".join(pieces),
                chunks=len(pieces),
                first_chunk_s=first_s,
                status=response.status,
                ended=True,
            )
        if piece := _text(event):
            first_s = first_s or time.perf_counter() - started_s
            pieces.append(piece)
    return RealAnswer(text="".join(pieces), chunks=len(pieces), first_chunk_s=first_s, status=response.status)


def _text(event: str) -> str:
    try:
        choices = json.loads(event)["choices"]
    except (ValueError, KeyError, TypeError):
        return ""
    return "".join(choice["delta"].get("content") or "" for choice in choices)
