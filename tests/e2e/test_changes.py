"""Make or break: whatever changes, no token is given away and no stream is cut; by the real product."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import live_site
import pytest
from live_site import Site, admitted, line_of, statuses

from controlplane.sim import control

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

LIMIT_PER_S = 8.0


@pytest.fixture
async def site(tmp_path: Path, envoy_path: Path) -> AsyncIterator[Site]:
    async with live_site.site(tmp_path, envoy_path) as made:
        made.files.tenants["acme"] = f"limit: {LIMIT_PER_S:g}"
        made.write()
        await control.set_gpu(made.http, made.fleet.pods[0], util_percent=10.0)
        yield made


def _edits(site: Site) -> AsyncIterator[str]:
    """Changes that have nothing to do with the limit of acme, one after the other, for ever."""
    files = site.files

    async def made() -> AsyncIterator[str]:
        for number in itertools.count():
            match number % 6:
                case 0:
                    files.tenants |= {f"guest{n}": "" for n in range(5)}
                case 1:
                    files.origins = f"'https://a{number}.example'"
                case 2:
                    files.tenants = {id: more for id, more in files.tenants.items() if "guest" not in id}
                case 3:
                    files.rate = ", curve: linear" if not files.rate else ""
                case 4:
                    files.idle_timeout_s = 200 + number
                case 5:
                    files.tenants["globex"] = f"weight: {1 + number % 2}"
            yield f"edit {number}"

    return made()


async def test_a_storm_of_edits_gives_nothing_away_and_cuts_nothing(site: Site) -> None:
    async with site.control_plane(), site.envoy(), site.watched() as watch:
        await site.until_rate("acme", LIMIT_PER_S)
        await site.drain("acme")
        # The first change to a longer burst class brings a bucket of that class, full; none after it does.
        site.files.tenants |= {f"guest{n}": "" for n in range(5)}
        site.write()
        await asyncio.sleep(1.0)
        await site.drain("acme")
        stream = asyncio.create_task(site.stream("globex", tokens=200))
        await asyncio.sleep(0.3)
        load = asyncio.create_task(site.offer("acme", 40, 9.0))
        edits = _edits(site)
        for _ in range(40):
            await anext(edits)
            site.write()
            await asyncio.sleep(0.2)
        sent = await load
        assert await stream == (200, True)
        xds = await live_site.fetch(site.http, f"{site.admin}/v1/xds")
    assert xds is not None
    assert xds["nacks"] == 0
    assert statuses(sent).keys() <= {200, 429}
    allowed = line_of(watch, "acme").integral(sent[0].at_s, sent[-1].at_s)
    assert admitted(sent) <= 1.05 * allowed + 2
    assert admitted(sent) >= 0.7 * allowed
