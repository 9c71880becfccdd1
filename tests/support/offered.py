"""A client that offers requests at a fixed rate, whatever becomes of them, and keeps every answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from policies import api_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request: when it was sent (s from the start of the offer) and what came back."""

    at_s: float
    status: int
    headers: dict[str, str]
    body: str


def admitted(answers: Sequence[Answer]) -> int:
    """Requests that reached the model server."""
    return sum(answer.status == 200 for answer in answers)


def span_s(answers: Sequence[Answer]) -> float:
    """From the start of the offer to its last request; a busy machine stretches it."""
    return max(answer.at_s for answer in answers)


def per_second(answers: Sequence[Answer]) -> list[int]:
    """Admitted requests by the second they were sent in, for messages."""
    if not answers:
        return []
    counts = [0] * (int(max(answer.at_s for answer in answers)) + 1)
    for answer in answers:
        counts[int(answer.at_s)] += answer.status == 200
    return counts


class Client:
    """Sends chat completions to the gateways of a test. `urls` are used in turn."""

    def __init__(self, http: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self._http = http
        self._urls = urls
        self._sent = 0

    async def send(
        self,
        tenant: str | None,
        *,
        model: str = "m",
        path: str = "/v1/chat/completions",
        at_s: float = 0.0,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> Answer:
        url = self._urls[self._sent % len(self._urls)]
        self._sent += 1
        credential = {} if tenant is None else {"authorization": f"Bearer {api_key(tenant)}"}
        message = {"model": model, **body} if method == "POST" else None
        async with self._http.request(
            method, url + path, json=message, headers=credential | (headers or {})
        ) as answer:
            text = await answer.text()
            found = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(at_s=at_s, status=answer.status, headers=found, body=text)

    async def drain(self, tenant: str, requests: int, **what: Any) -> int:
        """Send that many at once; returns how many were admitted."""
        return admitted(await asyncio.gather(*(self.send(tenant, **what) for _ in range(requests))))

    async def offer(self, tenant: str, *, rate_per_s: float, duration_s: float, **what: Any) -> list[Answer]:
        """Evenly spaced requests for `duration_s`; returns their answers in the order of sending."""
        start_s = time.monotonic()
        tasks = []
        for number in range(round(rate_per_s * duration_s)):
            await asyncio.sleep(max(0.0, start_s + number / rate_per_s - time.monotonic()))
            at_s = time.monotonic() - start_s
            tasks.append(asyncio.create_task(self.send(tenant, at_s=at_s, **what)))
        return list(await asyncio.gather(*tasks))
