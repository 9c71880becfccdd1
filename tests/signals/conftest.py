"""Pages without sockets: a world whose servers show what a test tells them to show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from controlplane.model.policy import Endpoint, Pool, SignalPolicy
from controlplane.model.signal import Reading
from controlplane.signals.catalogue import Catalogue, load_catalogue
from controlplane.signals.fetch import Fetched, Fetcher
from controlplane.signals.scrape import ScrapeSource
from controlplane.sim import dcgm_text, exposition
from controlplane.sim.stats import Stats
from controlplane.sim.vllm_text import Occupancy, families

SAMPLES = Path(__file__).parent / "samples"


class Pages(Fetcher):
    """A Fetcher of pages held in memory: a missing page is a refused connection."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self.pages: dict[str, str] = {}
        self.silent: set[str] = set()

    async def fetch_within(self, urls: Iterable[str], patience_s: float) -> list[Fetched]:
        return [self._one(url) for url in urls if url not in self.silent]

    async def close(self) -> None:
        pass

    def _one(self, url: str) -> Fetched:
        text = self.pages.get(url)
        problem = "" if text is not None else "connection refused"
        return Fetched(url=url, time_s=self.now_s, text=text, problem=problem)


@dataclass
class Server:
    """A vLLM server in numbers."""

    model: str = "llama"
    running: int = 0
    waiting: int = 0
    kv_ratio: float = 0.0
    stats: Stats = field(default_factory=lambda: Stats(max_model_len=4096))

    def text(self, *, hide: tuple[str, ...] = (), rename: dict[str, str] | None = None) -> str:
        now = Occupancy(
            running=self.running,
            waiting=self.waiting,
            kv_usage_ratio=self.kv_ratio,
            kv_blocks=100,
            block_tokens=16,
        )
        return exposition.text(families(self.stats, now, model_name=self.model), hide=hide, rename=rename)

    def answer(self, ttft_s: float, e2e_s: float, count: int = 1) -> None:
        """`count` requests finished."""
        for _ in range(count):
            self.stats.ttft_s.observe(ttft_s)
            self.stats.e2e_s.observe(e2e_s)
            self.stats.finished["stop"] += 1


@dataclass
class World:
    """Pods `pod-0`, `pod-1`, ... of one pool, one GPU exporter, and a source that scrapes them."""

    catalogue: Catalogue
    pages: Pages
    pool: Pool
    source: ScrapeSource

    @property
    def urls(self) -> list[str]:
        return [endpoint.metrics_url or "" for endpoint in self.pool.endpoints]

    def show(self, *servers: Server | str | None) -> None:
        """What each pod shows from now on; None: it does not answer."""
        for url, server in zip(self.urls, servers, strict=True):
            if server is None:
                self.pages.pages.pop(url, None)
            else:
                self.pages.pages[url] = server if isinstance(server, str) else server.text()

    def show_gpus(self, *gpus: dcgm_text.Gpu, layout: dcgm_text.Layout = dcgm_text.Layout.POD) -> None:
        self.pages.pages["http://dcgm/metrics"] = exposition.text(
            dcgm_text.families(list(gpus), layout=layout)
        )

    async def read(self, after_s: float = 1.0) -> dict[str, Reading]:
        """The readings of the pool after some seconds."""
        self.pages.now_s += after_s
        found = await self.source.read(self.pages.now_s)
        return dict(found[self.pool.id])

    def age_s(self, reading: Reading) -> float | None:
        return reading.age_s(self.pages.now_s)


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def server() -> type[Server]:
    return Server


@pytest.fixture
def samples() -> Path:
    return SAMPLES


@pytest.fixture
def world(catalogue: Catalogue, pages: Pages) -> World:
    """Two pods of `llama:v1` on vLLM."""
    endpoints = tuple(
        Endpoint(
            address=f"10.0.0.{n}",
            port=8000,
            metrics_url=f"http://10.0.0.{n}:8000/metrics",
            pod=f"pod-{n}",
            namespace="default",
        )
        for n in range(2)
    )
    pool = Pool(model="llama", version="v1", endpoints=endpoints)
    policy = replace(SignalPolicy(), gpu_exporter_urls=("http://dcgm/metrics",))
    source = ScrapeSource([pool], policy, catalogue, clock=lambda: pages.now_s, fetcher=pages)
    return World(catalogue=catalogue, pages=pages, pool=pool, source=source)
