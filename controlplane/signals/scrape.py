"""Endpoints and GPU exporters, scraped directly -> readings by pool.

One `read` is one scrape of everything. Windows of counters and last values live here between reads;
`retarget` keeps them for endpoints that a reload leaves in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from controlplane.model.policy import Endpoint, Pool, SignalPolicy
from controlplane.model.signal import Reading
from controlplane.signals import gpu
from controlplane.signals.catalogue import Catalogue
from controlplane.signals.fetch import Fetched, Fetcher
from controlplane.signals.join import readings
from controlplane.signals.measure import of_pool
from controlplane.signals.target import Target
from controlplane.signals.text import Page, Reader, Sample, TooManySeries, exactly

WINDOW_S = 30.0
# Of one page: a vLLM server shows 50 kB and a hundred series of interest, an exporter one for each GPU.
PAGE_MAX_BYTES = 8 * 1024 * 1024
SERIES_MAX = 10_000
STARTED = "process_start_time_seconds"

Readings = Mapping[str, Mapping[str, Reading]]


class ScrapeSource:
    """Readings from the model servers' and GPU exporters' own pages."""

    def __init__(
        self,
        pools: Sequence[Pool],
        policy: SignalPolicy,
        catalogue: Catalogue,
        *,
        clock: Callable[[], float],
        window_s: float = WINDOW_S,
        patience_s: float | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        """`window_s` is the span of rates and quantiles; `patience_s` how long a read waits for slow
        targets.
        """
        self._catalogue = catalogue
        self._window_s = window_s
        self._fetcher = fetcher or Fetcher(clock=clock, page_max_bytes=PAGE_MAX_BYTES)
        self._patience_s = patience_s
        self._readers: dict[str, Reader] = {}
        self._targets: dict[tuple[str, str], Target] = {}  # by (pool, url)
        self._started: dict[str, float] = {}
        self._gpu_pages: dict[str, tuple[Page, float]] = {}
        self._gpu_problems: dict[str, str] = {}
        self.layouts: Mapping[gpu.Layout, int] = {}
        self.retarget(pools, policy)

    def retarget(self, pools: Sequence[Pool], policy: SignalPolicy) -> None:
        """Take over a reloaded policy: what is known of endpoints that stay is kept."""
        self._pools = tuple(pools)
        self._policy = policy
        self._fetcher.timeout_s = policy.timeout_s
        self._by_url: dict[str, list[Pool]] = {}
        for pool in pools:
            for endpoint in pool.endpoints:
                if endpoint.metrics_url:
                    self._by_url.setdefault(endpoint.metrics_url, []).append(pool)
        wanted = {
            (pool.id, endpoint.metrics_url): Target(name=target_name(endpoint))
            for pool in pools
            for endpoint in pool.endpoints
            if endpoint.metrics_url
        }
        self._targets = {key: self._targets.get(key, new) for key, new in wanted.items()}
        engines = {"dcgm", *(pool.engine for pool in pools)}
        names = {STARTED}.union(*(self._catalogue.engine(name).sample_names for name in engines))
        naming = exactly(frozenset(names))
        self._readers = {
            url: Reader(naming, series_max=SERIES_MAX) for url in (*self._by_url, *policy.gpu_exporter_urls)
        }
        gpu_urls = policy.gpu_exporter_urls
        self._started = {url: at_s for url, at_s in self._started.items() if url in self._by_url}
        self._gpu_pages = {url: page for url, page in self._gpu_pages.items() if url in gpu_urls}
        self._gpu_problems = {url: why for url, why in self._gpu_problems.items() if url in gpu_urls}

    async def read(self, now_s: float) -> Readings:
        """Scrape everything once. Slow targets are waited for only a little, and count when they answer."""
        for target in self._targets.values():
            target.not_after(now_s)
        self._gpu_pages = {url: (page, min(at_s, now_s)) for url, (page, at_s) in self._gpu_pages.items()}
        patience_s = self._patience_s
        if patience_s is None:
            patience_s = min(self._policy.timeout_s, 0.4 * self._policy.interval_s)
        for fetched in await self._fetcher.fetch_within(self._readers, patience_s):
            if fetched.url in self._readers:
                self._take(fetched)
        return self._readings()

    async def close(self) -> None:
        """Stop scraping."""
        await self._fetcher.close()

    def _take(self, fetched: Fetched) -> None:
        page, problem = None, fetched.problem
        if fetched.text is not None:
            try:
                page = self._readers[fetched.url].read(fetched.text)
            except TooManySeries as error:
                problem = str(error)
        if fetched.url in self._by_url:
            self._take_endpoint(fetched, page, problem)
        if fetched.url in self._policy.gpu_exporter_urls:
            self._take_gpus(fetched, page, problem)

    def _take_endpoint(self, fetched: Fetched, page: Page | None, problem: str) -> None:
        started = None if page is None else _only(page.samples.get(STARTED, ()))
        restarted = started is not None and started != self._started.get(fetched.url, started)
        if started is not None:
            self._started[fetched.url] = started
        for pool in self._by_url[fetched.url]:
            target = self._targets[pool.id, fetched.url]
            if page is None:
                target.miss(problem)
                continue
            engine = self._catalogue.engine(pool.engine)
            others = {name: series for name, series in page.samples.items() if name != STARTED}
            samples, why = of_pool(others, engine, pool)
            target.observe(
                samples,
                fetched.time_s,
                engine,
                self._catalogue,
                window_s=self._window_s,
                restarted=restarted,
                problem=why,
            )

    def _take_gpus(self, fetched: Fetched, page: Page | None, problem: str) -> None:
        if page is None:
            self._gpu_problems[fetched.url] = f"{fetched.url}: {problem}"
            return
        self._gpu_problems.pop(fetched.url, None)
        self._gpu_pages[fetched.url] = (page, fetched.time_s)

    def _readings(self) -> Readings:
        fresh_s = 2.0 * self._policy.interval_s + self._policy.timeout_s
        pages = [(page.samples, time_s) for page, time_s in self._gpu_pages.values()]
        gpus = gpu.gather(pages, self._catalogue)
        self.layouts = gpus.layouts
        targets_of: dict[str, list[Target]] = {}
        for (id, _), target in self._targets.items():
            targets_of.setdefault(id, []).append(target)
        result: dict[str, Mapping[str, Reading]] = {}
        for pool in self._pools:
            targets = targets_of.get(pool.id, [])
            engine = self._catalogue.engine(pool.engine)
            own = readings(targets, engine, self._catalogue, fresh_s=fresh_s, source="scrape")
            result[pool.id] = {**own, **self._gpu_readings(pool, gpus, own, fresh_s)}
        return result

    def _gpu_readings(
        self, pool: Pool, gpus: gpu.Gpus, own: Mapping[str, Reading], fresh_s: float
    ) -> Mapping[str, Reading]:
        """GPU signals, except those that the engine itself reports."""
        if not self._policy.gpu_exporter_urls:
            problem = "no GPU exporter is configured (signals.gpu_exporters)"
        else:
            problem = "; ".join(self._gpu_problems.values()) if not self._gpu_pages else ""
        found = gpu.readings(pool, gpus, self._catalogue, fresh_s=fresh_s, source="scrape", problem=problem)
        return {
            name: reading for name, reading in found.items() if name not in own or own[name].value is None
        }


def target_name(endpoint: Endpoint) -> str:
    """How an endpoint is called in reasons: host and port of its metrics."""
    netloc = urlsplit(endpoint.metrics_url or "").netloc.rpartition("@")[2]
    return netloc or f"{endpoint.address}:{endpoint.port}"


def _only(samples: Sequence[Sample]) -> float | None:
    return samples[0].value if samples else None
