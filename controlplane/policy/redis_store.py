"""The store shared by any number of processes: one script call in Redis for each question.

Calendar windows are chosen by the clock of the Redis server, so processes whose clocks differ agree on them.
Questions asked at the same time travel in one pipeline. A question carries its deadline by the server's
clock: one that lay in the buffers of a server that stood still is not counted after its asker went on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from controlplane.model.policy import RedisStore as RedisStoreWords
from controlplane.policy import question
from controlplane.policy.calendar import around
from controlplane.policy.question import Around, Question, Reply
from controlplane.policy.quota import Account, Balance, Verdict
from controlplane.policy.script import Script
from controlplane.policy.store import Outcome, Reservation, Settled, Settlement, StoreError

PIPELINES_MAX = 4  # under way at once
PIPELINE_LENGTH_MAX = 256
LATE_S = 0.003  # a timer that fires so much too late was held up in this process


@dataclass(slots=True, kw_only=True)
class _Waiting:
    keys: Sequence[str]
    argument: str
    answer: asyncio.Future[Any]


class RedisStore:
    """Asks `client` (ours to close) with `script`. Unix seconds are the Redis server's; `guess` is what they
    are taken for until it has answered once. With `clock` they are those of a simulation.
    """

    def __init__(
        self,
        client: Redis,
        script: Script,
        *,
        lease_s: float,
        timeout_s: float,
        guess: Callable[[], float] = time.time,
        clock: Callable[[], float] | None = None,
        around: Around = around,
    ) -> None:
        self._client = client
        self._script = script
        self.lease_s = lease_s
        self._timeout_s = timeout_s
        self._guess = guess
        self._clock = clock
        self._around = around
        self._ahead_s: float | None = None  # the server's clock over our monotonic one; None: not heard of
        self._waiting: list[_Waiting] = []
        self._senders: set[asyncio.Task[None]] = set()
        self._sending = 0

    async def reserve(self, account: Account, reservation: Reservation) -> Verdict:
        reply = await self._ask(question.reserving(account, reservation), has_deadline=True)
        return Verdict(admitted=reply.status == "admitted", balances=reply.balances, now_s=reply.now_s)

    async def settle(self, account: Account, settlement: Settlement) -> Outcome:
        reply = await self._ask(question.settling(account, settlement))
        return Outcome(settled=Settled(reply.status), balances=reply.balances)

    async def show(self, account: Account) -> tuple[Balance, ...]:
        return (await self._ask(question.showing(account))).balances

    async def adjust(self, account: Account, period: str, *, grant_tokens: int | None) -> tuple[Balance, ...]:
        return (
            await self._ask(question.adjusting(account, period, grant_tokens), has_deadline=True)
        ).balances

    async def greet(self, timeout_s: float) -> None:
        """Bring it the script and hear its time. Raises StoreError when it does not answer in time."""
        try:
            async with asyncio.timeout(timeout_s), self._client.pipeline(transaction=False) as pipeline:
                pipeline.execute_command("SCRIPT", "LOAD", self._script.text)
                pipeline.time()
                _, (seconds, micros) = await pipeline.execute()
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreError(_said(error)) from error
        self._heard(seconds + micros / 1e6)

    async def close(self) -> None:
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        for one in self._waiting:
            _give(one.answer, StoreError("the store was closed"))
        await self._client.aclose()

    async def _ask(self, asked: Question, *, has_deadline: bool = False) -> Reply:
        for _ in range(2):
            reply = question.reply_of(asked.account, await self._call(asked, has_deadline=has_deadline))
            self._heard(reply.now_s)
            if reply.status == "late_question":
                raise StoreError("the question reached the store too late")
            if reply.status != "no_window":
                return reply
        raise StoreError("the store's clock is in none of the windows")

    async def _call(self, asked: Question, *, has_deadline: bool) -> Any:
        now_s = self._now_s()
        terms = question.terms(self.lease_s)
        if self._clock is not None:
            terms["now"] = now_s
        elif has_deadline and self._ahead_s is not None:
            terms["deadline"] = now_s + self._timeout_s
        argument = asked.argument(now_s, self._around, terms)
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(keys=asked.keys(), argument=argument, answer=answer))
        if self._sending < PIPELINES_MAX:
            self._sending += 1
            sender = asyncio.create_task(self._send())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await answer

    async def _send(self) -> None:
        """Send what waits, again and again until nothing does."""
        try:
            while self._waiting:
                batch = [one for one in self._waiting[:PIPELINE_LENGTH_MAX] if not one.answer.done()]
                del self._waiting[:PIPELINE_LENGTH_MAX]
                if batch:
                    await self._send_batch(batch)
        finally:
            self._sending -= 1

    async def _send_batch(self, batch: Sequence[_Waiting]) -> None:
        answers: Sequence[Any]
        try:
            answers = await self._in_time(asyncio.create_task(self._evaluate(batch)))
        except (RedisError, OSError) as error:
            answers = [StoreError(_said(error))] * len(batch)
        except TimeoutError:
            late = StoreError(f"the store did not answer within {self._timeout_s * 1000:.0f} ms")
            batch, self._waiting = [*batch, *self._waiting], []  # what waits behind would only wait longer
            answers = [late] * len(batch)
        for one, answer in zip(batch, answers, strict=True):
            _give(one.answer, answer)

    async def _in_time(self, asking: asyncio.Task[list[Any]]) -> list[Any]:
        """Its answers within the time-out; a little later when this process itself was held up: they may lie
        in its own buffers. Raises TimeoutError."""
        clock = asyncio.get_running_loop().time
        for wait_s in (self._timeout_s, self._timeout_s / 2):
            due_s = clock() + wait_s
            try:
                done, _ = await asyncio.wait([asking], timeout=wait_s)
            except asyncio.CancelledError:
                asking.cancel()
                raise
            if done:
                return asking.result()
            if clock() - due_s < LATE_S:
                break
        asking.cancel()
        await asyncio.wait([asking])
        raise TimeoutError

    async def _evaluate(self, batch: Sequence[_Waiting]) -> list[Any]:
        answers = await self._pipeline(batch, by_digest=True)
        missing = [place for place, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:  # the first question ever, or somebody flushed the scripts
            again = await self._pipeline([batch[place] for place in missing], by_digest=False)
            for place, answer in zip(missing, again, strict=True):
                answers[place] = answer
        return answers

    async def _pipeline(self, batch: Sequence[_Waiting], *, by_digest: bool) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for one in batch:
                what = ("EVALSHA", self._script.digest) if by_digest else ("EVAL", self._script.text)
                pipeline.execute_command(*what, len(one.keys), *one.keys, one.argument)
            return list(await pipeline.execute(raise_on_error=False))

    def _now_s(self) -> float:
        if self._clock is not None:
            return self._clock()
        return self._guess() if self._ahead_s is None else time.monotonic() + self._ahead_s

    def _heard(self, server_s: float) -> None:
        self._ahead_s = server_s - time.monotonic()


def connect(where: RedisStoreWords, *, timeout_s: float) -> Redis:
    """A client of the operator's Redis: no retries of its own, and no wait longer than `timeout_s` (at least
    a quarter of a second to connect). Raises StoreError when a file cannot be read."""
    options: dict[str, Any] = {"username": where.username, "password": _text(where.password_file)}
    if where.ca_file is not None:
        options["ssl_ca_certs"] = where.ca_file
    return Redis.from_url(
        where.url,
        socket_timeout=2 * timeout_s,
        socket_connect_timeout=max(0.25, timeout_s),
        retry=Retry(NoBackoff(), 0),
        max_connections=2 * PIPELINES_MAX,
        **{name: value for name, value in options.items() if value is not None},
    )


def _text(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: {error}") from error


def _give(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, RedisError):
        future.set_exception(StoreError(_said(answer)))
    elif isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
