"""All sources of one policy, read together -> one Observation per tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from controlplane.model.policy import Policy
from controlplane.model.signal import Observation, Reading
from controlplane.signals.catalogue import load_catalogue
from controlplane.signals.collate import collate
from controlplane.signals.gateway import GatewayReport, GatewaySource
from controlplane.signals.gpu import Layout
from controlplane.signals.prometheus import PrometheusSource
from controlplane.signals.scrape import ScrapeSource

_PATIENCE = 0.4  # of a tick: what answers later counts in the next one


class Source(Protocol):
    """Where readings come from. A source that fails gives absent readings with reasons; it never raises."""

    @property
    def layouts(self) -> Mapping[Layout, int]:
        """Which label layouts the GPU metrics have, by number of series."""

    async def read(self, now_s: float) -> Mapping[str, Mapping[str, Reading]]:
        """Readings by Pool.id and signal."""

    async def close(self) -> None:
        """Let go of sessions and threads."""


class Feed:
    """The sources of a policy. Rates need two reads, so the first observation has none."""

    def __init__(
        self, policy: Policy, *, clock: Callable[[], float], patience_s: float | None = None
    ) -> None:
        """`clock` gives Unix seconds; a read waits `patience_s` for slow sources (default: part of a tick).

        Raises CatalogueError when the operator's catalogue file is wrong.
        """
        self._clock = clock
        self._patience_s = patience_s
        self._catalogue = load_catalogue(policy.signals.catalogue_file)
        self._policy = policy
        self.source: Source = self._open_source()
        self._gateways = GatewaySource(
            policy.pools,
            policy.gateways.stats_urls,
            self._catalogue,
            clock=clock,
            timeout_s=policy.signals.timeout_s,
            patience_s=patience_s,
        )
        self.report = GatewayReport(readings={}, traffic=None)

    async def read(self, now_s: float, *, gateways: int = 1) -> Observation:
        """Read everything once. `gateways` is the number of Envoys that share the limits."""
        own, self.report = await asyncio.gather(self.source.read(now_s), self._gateways.read(now_s))
        sources = [own, self.report.readings] if self._policy.gateways.stats_urls else [own]
        return collate(
            self._policy.pools,
            sources,
            traffic=self.report.traffic,
            gateways=gateways,
            now_s=now_s,
            calls=self.report.calls,
        )

    async def read_behind_push(self) -> None:
        """Limits changed: see which of the gateways' counters began anew."""
        await self._gateways.read_behind_push()

    async def retarget(self, policy: Policy) -> None:
        """Take over a reloaded policy; what is known of endpoints and gateways that stay is kept.

        Raises CatalogueError, and then goes on with the old policy.
        """
        catalogue = load_catalogue(policy.signals.catalogue_file)
        old, self._policy = self._policy, policy
        replaced = None
        scrapes = isinstance(self.source, ScrapeSource)
        if scrapes and policy.signals.source == "scrape" and catalogue == self._catalogue:
            assert isinstance(self.source, ScrapeSource)
            self.source.retarget(policy.pools, policy.signals)
        elif (policy.signals, policy.pools) != (old.signals, old.pools) or catalogue != self._catalogue:
            self._catalogue, replaced = catalogue, self.source
            self.source = self._open_source()
        self._gateways.retarget(policy.pools, policy.gateways.stats_urls, timeout_s=policy.signals.timeout_s)
        if replaced is not None:
            await replaced.close()

    async def close(self) -> None:
        """Let go of sessions and threads."""
        await self.source.close()
        await self._gateways.close()

    def _open_source(self) -> Source:
        policy, pools = self._policy.signals, self._policy.pools
        if policy.source == "prometheus" and policy.prometheus is not None:
            patience_s = self._patience_s
            if patience_s is None:
                patience_s = min(policy.prometheus.timeout_s, _PATIENCE * policy.interval_s)
            return PrometheusSource(
                pools, policy.prometheus, self._catalogue, clock=self._clock, patience_s=patience_s
            )
        return ScrapeSource(pools, policy, self._catalogue, clock=self._clock, patience_s=self._patience_s)
