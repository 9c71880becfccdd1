"""Make or break: whatever changes, no token is given away and no stream is cut; by the real product."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import live_site
import pytest
from live_site import Site, admitted, line_of, statuses

from controlplane.sim import control

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

LIMIT_PER_S = 8.0
_SHARE_OF_A_NEW_GATEWAY = LIMIT_PER_S / 2  # of a burst of 1 s; a fresh Envoy begins with full buckets


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
                    files.tenants |= {f"guest{n}": "" for n in range(30)}
                case 1:
                    files.origins = f"'https://a{number}.example'"
                case 2:
                    files.tenants = {id: more for id, more in files.tenants.items() if "guest" not in id}
                case 3:
                    files.rate = ", curve: linear" if not files.rate else ""
                case 4:
                    files.idle_timeout_s = 200 + number
                case 5:
                    files.tenants["globex"] = f"weight: {1 + number % 7}"
            yield f"edit {number}"

    return made()


async def test_a_storm_of_edits_gives_nothing_away_and_cuts_nothing(site: Site) -> None:
    async with site.control_plane(), site.envoy(), site.watched() as watch:
        await site.until_rate("acme", LIMIT_PER_S)
        await site.drain("acme")
        stream = asyncio.create_task(site.stream("globex", tokens=160))
        await asyncio.sleep(0.3)
        load = asyncio.create_task(site.offer("acme", 40, 7.5))
        edits = _edits(site)
        for _ in range(32):
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


async def test_a_fleet_and_a_control_plane_that_come_and_go_give_nothing_away(site: Site) -> None:
    """One gateway, then two, the control plane killed and started anew, then one again; all under load."""
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(site.control_plane())
        await stack.enter_async_context(site.envoy(1))
        watch = await stack.enter_async_context(site.watched())
        await site.until_rate("acme", LIMIT_PER_S)
        await site.drain("acme")
        stream = asyncio.create_task(site.stream("globex", tokens=190))
        await asyncio.sleep(0.3)
        load = asyncio.create_task(site.offer("acme", 40, 9.5, new_connections=True))
        await asyncio.sleep(1.0)
        async with site.envoy(2):
            await asyncio.sleep(1.5)
            plane.kill()
            await plane.wait()
            await asyncio.sleep(0.5)
            await stack.enter_async_context(site.control_plane())
            await asyncio.sleep(1.0)
        sent = await load
        assert await stream == (200, True)
    seen = statuses(sent)
    assert seen.keys() <= {0, 200, 429}
    assert seen[0] <= 5  # connections that the kernel had given to the gateway that left
    allowed = line_of(watch, "acme").integral(sent[0].at_s, sent[-1].at_s)
    assert admitted(sent) <= 1.05 * allowed + _SHARE_OF_A_NEW_GATEWAY + 1
    assert admitted(sent) >= 0.4 * allowed  # a gateway that left keeps its half for 30 s


@pytest.mark.parametrize("switch", ["mode", "pin", "limit"])
async def test_a_switch_and_back_leaves_a_drained_tenant_drained(site: Site, switch: str) -> None:
    """While it asks for five times its limit, a tenant has what was reported, whatever is switched."""
    async with site.control_plane(), site.envoy(), site.watched() as watch:
        await site.until_rate("acme", LIMIT_PER_S)
        await site.drain("acme")
        was = site.files.tenants["acme"]
        load = asyncio.create_task(site.offer("acme", 40, 6.5))
        for on in (True, False) * 3:
            if switch == "mode":
                site.files.mode = "observe" if on else "enforce"
            else:
                site.files.tenants["acme"] = f"{switch}: 2" if on else was
            site.write()
            await asyncio.sleep(1.0)
        sent = await load
    assert statuses(sent).keys() <= {200, 429}
    if switch == "mode":  # observed: everything passed and nothing was saved; enforced: the rate
        enforced = [one for one in sent if one.at_s >= sent[-1].at_s - 1.0]
        assert admitted(enforced) <= 1.2 * LIMIT_PER_S + 2
        assert admitted(sent) > 3 * LIMIT_PER_S * 6.5 / 2
    else:
        allowed = line_of(watch, "acme").integral(sent[0].at_s, sent[-1].at_s)
        assert admitted(sent) <= 1.05 * allowed + 2
