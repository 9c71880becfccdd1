"""Each gateway's /stats/prometheus -> the traffic of every key, and what pools look like from outside.

Failures are what the model server did: a 429 or 503 of our own never reaches a cluster's counters, except
an in-flight cap that overflows, which the catalogue subtracts. Latency is that of the whole answer, time to
first byte comes from the limits script. Envoy merges histograms once per flush (1 s in our bootstrap),
counters at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode, urlsplit, urlunsplit

from controlplane.model.policy import Pool
from controlplane.model.poolstat import pool_id
from controlplane.model.signal import Calls, KeyTraffic, Reading
from controlplane.signals.calls import CallBook, Pages
from controlplane.signals.catalogue import Catalogue
from controlplane.signals.fetch import Fetched, Fetcher
from controlplane.signals.join import readings
from controlplane.signals.measure import Samples
from controlplane.signals.target import Target
from controlplane.signals.text import Naming, Reader, Sample
from controlplane.signals.traffic import HOLD_S, Counters, Names, enough, key_traffic

WINDOW_S = 10.0  # what model servers are told of failures is that of the last ten seconds

# Every name that comes from the limits script; Envoy puts its own prefix before it.
REQUESTS = "tg_requests"
TTFB = "envoy_http_lua_tg_ttfb_ms"
TTFB_SUFFIX = "tg_ttfb_ms_bucket"
UPTIME = "envoy_server_uptime"
FILTER = (
    r"(\.tg_requests|\.tg_ttfb_ms"
    r"|\.upstream_rq_([1-5]xx|time|active|active_overflow|pending_overflow)$"
    r"|^server\.uptime$)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """What the gateways say at one time. `traffic` is None when too few of them are known."""

    readings: Mapping[str, Mapping[str, Reading]]
    traffic: Mapping[str, KeyTraffic] | None
    answered: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)  # by URL
    calls: Mapping[str, Calls] | None = None  # by Pool.id; None when too few gateways are known


@dataclass(slots=True)
class _Gateway:
    reader: Reader
    names: Names = field(default_factory=Names)
    counters: Counters = field(default_factory=Counters)
    targets: dict[str, Target] = field(default_factory=dict)  # by Pool.id
    pages: Pages = field(default_factory=Pages)
    uptime_s: float = 0.0
    problem: str = "not asked yet"


class GatewaySource:
    """Reads the statistics of every gateway."""

    def __init__(
        self,
        pools: Sequence[Pool],
        urls: Sequence[str],
        catalogue: Catalogue,
        *,
        clock: Callable[[], float],
        timeout_s: float = 1.0,
        window_s: float = WINDOW_S,
        patience_s: float | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        """`urls` are each gateway's /stats/prometheus; `window_s` is the span of quantiles and ratios."""
        self._catalogue = catalogue
        self._engine = catalogue.engine("envoy")
        self._window_s = window_s
        self._own_patience_s = patience_s
        self._fetcher = fetcher or Fetcher(clock=clock)
        self._gateways: dict[str, _Gateway] = {}
        self._book = CallBook()
        self.retarget(pools, urls, timeout_s=timeout_s)

    def retarget(self, pools: Sequence[Pool], urls: Sequence[str], *, timeout_s: float) -> None:
        """Take over a reloaded policy; what is known of gateways and pools that stay is kept."""
        self._fetcher.timeout_s = timeout_s
        self._patience_s = min(timeout_s, 0.4) if self._own_patience_s is None else self._own_patience_s
        self._pools = tuple(pools)
        self._ids = frozenset(pool.id for pool in pools)
        self._book.keep(self._ids)
        naming = _naming(self._engine.sample_names)
        asked = [filtered(url) for url in urls]
        self._gateways = {url: self._gateways.get(url) or _Gateway(reader=Reader(naming)) for url in asked}

    async def read(self, now_s: float) -> GatewayReport:
        """Ask every gateway once."""
        for gateway in self._gateways.values():
            gateway.counters.not_after(now_s)
            gateway.pages.not_after(now_s)
            for target in gateway.targets.values():
                target.not_after(now_s)
        for fetched in await self._fetcher.fetch_within(self._gateways, self._patience_s):
            if fetched.url in self._gateways:
                self._take(self._gateways[fetched.url], fetched)
        gateways = list(self._gateways.values())
        return GatewayReport(
            readings={pool.id: self._readings(pool, now_s) for pool in self._pools},
            traffic=key_traffic([gateway.counters for gateway in gateways], now_s),
            answered=sum(not gateway.problem for gateway in gateways),
            problems={url: gateway.problem for url, gateway in self._gateways.items() if gateway.problem},
            calls=self._calls(now_s),
        )

    def _calls(self, now_s: float) -> Mapping[str, Calls] | None:
        times = [gateway.pages.time_s for gateway in self._gateways.values()]
        known = sum(time_s is not None and now_s - time_s <= HOLD_S for time_s in times)
        return self._book.calls(self._ids) if enough(known, len(times)) else None

    async def read_behind_push(self) -> None:
        """Look at every gateway once more, after a change of the limits began some of its counters anew."""
        for fetched in await self._fetcher.fetch_within(self._gateways, self._patience_s):
            if fetched.url in self._gateways:
                self._take(self._gateways[fetched.url], fetched, regular=False)

    async def close(self) -> None:
        """Stop asking."""
        await self._fetcher.close()

    def _take(self, gateway: _Gateway, fetched: Fetched, *, regular: bool = True) -> None:
        gateway.problem = fetched.problem
        if fetched.text is None:
            for target in gateway.targets.values():
                target.miss(fetched.problem)
            return
        samples = gateway.reader.read(fetched.text).samples
        uptime_s = max((sample.value for sample in samples.get(UPTIME, ())), default=gateway.uptime_s)
        restarted = uptime_s < gateway.uptime_s
        gateway.uptime_s = uptime_s
        counts = gateway.names.counts_of(samples.get(REQUESTS, ()))
        if regular:
            gateway.counters.add(fetched.time_s, counts, restarted=restarted)
        else:
            gateway.counters.carry(counts, restarted=restarted)
        by_pool = self._by_pool(samples)
        self._book.add(gateway.pages, fetched.time_s, by_pool, restarted=restarted)
        for pool, own in by_pool.items():
            target = gateway.targets.setdefault(pool, Target(name=urlsplit(fetched.url).netloc))
            target.observe(
                own,
                fetched.time_s,
                self._engine,
                self._catalogue,
                window_s=self._window_s,
                restarted=restarted,
            )

    def _by_pool(self, samples: Samples) -> Mapping[str, Samples]:
        """The samples of each pool's cluster."""
        split: dict[str, dict[str, list[Sample]]] = {id: {} for id in self._ids}
        for name, series in samples.items():
            for sample in series:
                pool = self._pool_of(sample)
                if pool is not None:
                    split[pool].setdefault(name, []).append(sample)
        return split

    def _pool_of(self, sample: Sample) -> str | None:
        """The pool a cluster's or a script's series is about."""
        label = next((v for name in self._engine.model_labels if (v := sample.labels.get(name))), "")
        pool = label if ":" in label else pool_id(label)
        return pool if pool in self._ids else None

    def _readings(self, pool: Pool, now_s: float) -> Mapping[str, Reading]:
        """The signals of one pool, all gateways together; nothing of it is missed when it is absent."""
        gateways = self._gateways.values()
        targets = [target for each in gateways if (target := each.targets.get(pool.id)) is not None]
        found = readings(targets, self._engine, self._catalogue, fresh_s=HOLD_S, source="gateway")
        found.pop("endpoints_up")
        known = sum(t.time_s is not None and now_s - t.time_s <= HOLD_S for t in targets)
        if not enough(known, len(self._gateways)):
            answered = sum(not gateway.problem for gateway in gateways)
            why = f"{answered} of {len(self._gateways)} gateways answer"
            return {
                name: replace(each, value=None, absent=why, not_exposed=False) for name, each in found.items()
            }
        running = found["running_requests"]
        if running.value is not None and pool.endpoints:
            found["running_requests"] = replace(running, value=running.value / len(pool.endpoints))
        return {name: replace(each, not_exposed=False) for name, each in found.items()}


def filtered(url: str) -> str:
    """`url` asking only for the statistics read here; an operator's own query is left alone."""
    parts = urlsplit(url)
    return url if parts.query else urlunsplit(parts._replace(query=urlencode({"filter": FILTER})))


def _naming(names: frozenset[str]) -> Naming:
    """Names as they are, and script counters without whatever Envoy put before them."""

    def naming(name: str) -> str | None:
        if name in names or name == UPTIME:
            return name
        if name.endswith(REQUESTS):
            return REQUESTS
        return f"{TTFB}_bucket" if name.endswith(TTFB_SUFFIX) else None

    return naming
