"""One answer as it grows: pushed by a backend, awaited by the HTTP surface."""

from __future__ import annotations

import asyncio


class Generation:
    """Tokens of one request. One reader at most; `push` belongs to the reader's event loop."""

    __slots__ = ("_waiter", "_wants_all", "finish", "prompt_tokens", "request", "tokens")

    def __init__(self, *, request: int, prompt_tokens: int) -> None:
        self.request = request
        self.prompt_tokens = prompt_tokens
        self.tokens: list[str] = []
        self.finish: str | None = None  # why it ended; None while more will come
        self._waiter: asyncio.Future[None] | None = None
        self._wants_all = False

    def push(self, token: str, finish: str | None) -> None:
        """The next token; with `finish` it is the last one (its text may be empty: an end mark)."""
        if self.finish is not None:
            return  # a token that was under way when the engine restarted
        self.tokens.append(token)
        self.finish = finish
        wake = finish is not None or not self._wants_all
        if wake and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def more(self, than: int) -> None:
        """Return when there are more tokens than `than`, or when it has ended."""
        while len(self.tokens) <= than and self.finish is None:
            await self._wait()

    async def all(self) -> None:
        """Return when it has ended, without a wake-up for each token."""
        self._wants_all = True
        while self.finish is None:
            await self._wait()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
