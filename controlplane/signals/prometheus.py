"""A Prometheus-compatible backend -> readings by pool.

Only what Prometheus has to compute (rates and quantiles over minutes) is computed there; gauges come as raw
samples with their own times, so that ages are true, blank values are dropped before anything is averaged,
and both GPU label layouts join the same way as in a direct scrape. Whatever goes wrong (no host, a slow
one, a partial answer, an empty vector, NaN) makes readings absent, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TypeVar

from controlplane.model.policy import Pool, PrometheusPolicy
from controlplane.model.signal import SIGNALS, Reading
from controlplane.signals import promql
from controlplane.signals.answer import Answer, Readings, plan, readings
from controlplane.signals.backend import Backend, PartialAnswer, SignalError
from controlplane.signals.catalogue import Catalogue
from controlplane.signals.circuit import Circuit
from controlplane.signals.gpu import Layout
from controlplane.signals.matching import Matcher, series_of

SOURCE = "prometheus"

T = TypeVar("T")


class PrometheusSource:
    """Readings out of one backend, asked at most once at a time."""

    def __init__(
        self,
        pools: Sequence[Pool],
        policy: PrometheusPolicy,
        catalogue: Catalogue,
        *,
        clock: Callable[[], float],
        patience_s: float | None = None,
        backend: Backend | None = None,
    ) -> None:
        """`patience_s` is how long a read waits before it repeats the last readings (default: the time-
        out).
        """
        self._pools = tuple(pools)
        self._policy = policy
        self._catalogue = catalogue
        self._clock = clock
        self._patience_s = policy.timeout_s + 0.25 if patience_s is None else patience_s
        self._backend = backend or Backend(policy)
        engines = {pool.engine: catalogue.engine(pool.engine) for pool in pools}
        self._matcher = Matcher(self._pools, engines, policy.match)
        asked = [*engines.values(), catalogue.engine("dcgm"), catalogue.engine("envoy")]
        self._names = frozenset[str]().union(*(promql.names(engine) for engine in asked))
        self._under_way: asyncio.Task[Readings] | None = None
        self._circuit = Circuit()
        self._last: Readings | None = None
        self.layouts: Mapping[Layout, int] = {}

    async def read(self, now_s: float) -> Readings:
        """The readings of now, or the last ones (growing old) while an answer is late."""
        if self._under_way is None:
            if not self._circuit.allows(now_s):
                retry_s = self._circuit.retry_at_s - now_s
                return self._absent(
                    f"{self._circuit.why} ({self._circuit.failures} times; next try in {retry_s:.0f} s)"
                )
            self._under_way = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait([self._under_way], timeout=self._patience_s)
        if not done:
            return self._last or self._absent(f"no answer within {self._patience_s:g} s")
        answered, self._under_way = self._under_way, None
        self._last = answered.result()
        return self._last

    async def close(self) -> None:
        """Give up what is under way; its thread ends by the time-out."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
        self._backend.close()

    async def _ask(self) -> Readings:
        try:
            answer = await _in_thread(self._question)
        except SignalError as error:
            why = f"{self._policy.url}: {error}"
            partial = isinstance(error, PartialAnswer)
            self._circuit = self._circuit.succeeded() if partial else self._circuit.failed(self._clock(), why)
            return self._absent(why)
        self._circuit = self._circuit.succeeded()
        found, self.layouts = readings(
            answer, self._pools, self._catalogue, self._policy, now_s=self._clock()
        )
        return found

    def _question(self) -> Answer:
        """Both queries, within one time-out. Runs in the thread."""
        policy, deadline = self._policy, self._backend.deadline()
        try:
            return self._answer(policy, deadline)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise SignalError(f"unusable rows: {type(error).__name__}: {error}") from error

    def _answer(self, policy: PrometheusPolicy, deadline: float) -> Answer:
        first = promql.latest(self._names, lookback_s=policy.lookback_s, matchers=policy.matchers)
        series, interval_s = series_of(self._backend.query(first, deadline))
        asked = plan(series, interval_s, self._matcher, self._pools, self._catalogue, policy)
        values: dict[int, float] = {}
        problem = ""
        try:
            for query in promql.combined([each.branch for each in asked.branches]):
                for row in self._backend.query(query, deadline):
                    values[int(row["metric"][promql.BRANCH])] = float(row["value"][1])
        except SignalError as error:  # the gauges of the first answer are whole all the same
            values, problem = {}, f"{policy.url}: {error}"
        return Answer(series=series, interval_s=interval_s, plan=asked, values=values, problem=problem)

    def _absent(self, why: str) -> Readings:
        reading = Reading(source=SOURCE, absent=why)
        return {pool.id: dict.fromkeys(SIGNALS, reading) for pool in self._pools}


async def _in_thread(ask: Callable[[], T]) -> T:
    """`ask()` in a thread that nobody waits for at the end of the process, as an executor's would be."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[T] = loop.create_future()

    def settle(done: Callable[[], None]) -> None:
        if not answered.done():
            done()

    def run() -> None:
        try:
            result = ask()
        except Exception as error:
            given = partial(answered.set_exception, error)
        else:
            given = partial(answered.set_result, result)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, given)

    Thread(target=run, name="prometheus", daemon=True).start()
    return await answered
