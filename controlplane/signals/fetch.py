"""URLs -> pages, within a time and a size, and never more than a few at once.

A target that hangs must not hold up the tick: `fetch_within` starts what is not already under way, waits a
little, and returns; what comes later is delivered at a later call.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import aiohttp

from controlplane.signals.text import ACCEPT

CONCURRENCY = 64
PAGE_MAX_BYTES = 32 * 1024 * 1024
_REDIRECTS_MAX = 2  # a server mounts its metrics at /metrics/ and redirects
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One attempt. `text` is None when it failed, and `problem` says how."""

    url: str
    time_s: float
    text: str | None = None
    problem: str = ""


class Fetcher:
    """Fetches metric pages with one HTTP session."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        timeout_s: float = 1.0,
        page_max_bytes: int = PAGE_MAX_BYTES,
        concurrency: int = CONCURRENCY,
    ) -> None:
        """`clock` gives Unix seconds; `timeout_s` bounds each page as a whole."""
        self._clock = clock
        self.timeout_s = timeout_s
        self._page_max_bytes = page_max_bytes
        self._concurrency = concurrency
        self._session: aiohttp.ClientSession | None = None
        self._under_way: dict[str, asyncio.Task[Fetched]] = {}

    async def fetch_within(self, urls: Iterable[str], patience_s: float) -> list[Fetched]:
        """What arrived for `urls` within `patience_s`, late answers to earlier calls included."""
        wanted = list(dict.fromkeys(urls))
        self._forget(wanted)
        late = self._done(wanted)
        for url in wanted:
            if url not in self._under_way:
                self._under_way[url] = asyncio.create_task(self._fetch(url))
        if wanted:
            await asyncio.wait([self._under_way[url] for url in wanted], timeout=patience_s)
        return late + self._done(wanted)

    def _done(self, urls: list[str]) -> list[Fetched]:
        """What has arrived for `urls`, each delivered once."""
        done = [url for url in urls if url in self._under_way and self._under_way[url].done()]
        return [self._under_way.pop(url).result() for url in done]

    def _forget(self, wanted: list[str]) -> None:
        """Stop what nobody waits for any more, since a reload took its URL away."""
        for url in self._under_way.keys() - set(wanted):
            self._under_way.pop(url).cancel()

    async def close(self) -> None:
        """Stop what is under way and close the session."""
        tasks = list(self._under_way.values())
        self._under_way.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _fetch(self, url: str) -> Fetched:
        try:
            async with asyncio.timeout(self.timeout_s):
                text = await self._text(url)
            return Fetched(url=url, time_s=self._clock(), text=text)
        except TimeoutError:
            problem = f"no answer within {self.timeout_s:g} s"
        except aiohttp.ClientConnectorError as error:
            problem = os.strerror(error.os_error.errno) if error.os_error.errno else str(error.os_error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            problem = str(error) or type(error).__name__
        return Fetched(url=url, time_s=self._clock(), problem=problem)

    async def _text(self, url: str) -> str:
        session = self._open()
        async with session.get(url, max_redirects=_REDIRECTS_MAX) as response:
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}")
            if response.content_type == "text/html":
                raise ValueError("a page for people (text/html) instead of metrics")
            body = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > self._page_max_bytes:
                    raise ValueError(f"page above {self._page_max_bytes} bytes")
        return body.decode("utf-8", errors="replace")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._concurrency)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers={"Accept": ACCEPT},
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session
