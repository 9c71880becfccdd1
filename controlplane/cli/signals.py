"""`tidegate signals --config DIR`: what every source gives now, how old it is, and what is absent and why."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controlplane.cli.table import age, rate
from controlplane.config import load
from controlplane.model.policy import Policy
from controlplane.model.signal import SIGNALS, Observation, Reading
from controlplane.signals.catalogue_file import CatalogueError
from controlplane.signals.feed import Feed
from controlplane.signals.gateway import GatewayReport
from controlplane.signals.gpu import Layout

_UNITS: Mapping[str, str] = {
    "gpu_util_percent": "%",
    "ttft_p95_s": "s",
    "latency_p95_s": "s",
    "completed_per_s": "/s",
}
_LAYOUTS: Mapping[Layout, str] = {
    Layout.POD: "`pod` is the GPU's user (the exporter's own page, or honorLabels: true)",
    Layout.EXPORTED_POD: "`exported_pod` is the GPU's user (honorLabels: false)",
    Layout.POD_NAME: "`pod_name` is the GPU's user (an exporter before 2.x)",
    Layout.NONE: "no pod named (idle GPUs, or DCGM_EXPORTER_KUBERNETES is not set)",
}
_NAME_COLUMNS = max(map(len, SIGNALS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look at all sources found."""

    observation: Observation
    layouts: Mapping[Layout, int]
    gateways: GatewayReport
    gateways_configured: int


def signals(
    config: Annotated[
        Path, typer.Option("--config", metavar="DIR", help="Directory with tidegate.yaml and tenants/.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until interrupted.")] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.2, help="Time between two looks; rates are over it.")
    ] = 2.0,
) -> None:
    """Show every signal of every model version: value, age, source, or why it is absent."""
    loaded = load(config)
    if loaded.policy is None:
        for problem in loaded.problems:
            typer.echo(str(problem), err=True)
        raise typer.Exit(1)
    try:
        asyncio.run(_show(loaded.policy, seconds=seconds, as_json=as_json, watch=watch))
    except CatalogueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


async def _show(policy: Policy, *, seconds: float, as_json: bool, watch: bool) -> None:
    console = Console()
    if not watch:
        seen = [each async for each in _looks(policy, seconds, at_most=2)][-1]
        if as_json:
            typer.echo(json.dumps(document(seen), indent=2, ensure_ascii=False))
        else:
            console.print(screen(seen))
        return
    if as_json:
        async for seen in _looks(policy, seconds):
            typer.echo(json.dumps(document(seen), ensure_ascii=False))
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        async for seen in _looks(policy, seconds):
            live.update(screen(seen), refresh=True)


async def _looks(policy: Policy, seconds: float, at_most: int | None = None) -> AsyncIterator[Seen]:
    """One look at all sources after the other, `seconds` apart. The first cannot know any rate."""
    feed = Feed(policy, clock=time.time, patience_s=_longest_s(policy))
    done = 0
    try:
        while True:
            observation = await feed.read(time.time())
            yield Seen(
                observation=observation,
                layouts=feed.source.layouts,
                gateways=feed.report,
                gateways_configured=len(policy.gateways.stats_urls),
            )
            done += 1
            if at_most is not None and done >= at_most:
                return
            await asyncio.sleep(seconds)
    finally:
        await feed.close()


def _longest_s(policy: Policy) -> float:
    prometheus = policy.signals.prometheus
    return max(policy.signals.timeout_s, prometheus.timeout_s if prometheus else 0.0) + 0.1


def screen(seen: Seen) -> RenderableType:
    """Per model version what is measured and what is absent, then a line about GPU labels and gateways."""
    now_s = seen.observation.now_s
    tables = [
        Group(_measured(pool, load.readings, now_s), *_absent(load.readings), Text())
        for pool, load in sorted(seen.observation.loads.items())
    ]
    return Group(*tables, *(Text(line) for line in notes(seen)))


def _measured(pool: str, readings: Mapping[str, Reading], now_s: float) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        expand=True,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=pool,
        title_justify="left",
        title_style="bold",
    )
    table.add_column("signal", no_wrap=True, width=_NAME_COLUMNS)
    table.add_column("value", justify="right", no_wrap=True, width=8)
    table.add_column("age", justify="right", no_wrap=True, width=5)
    table.add_column("count", justify="right", no_wrap=True, width=5)
    table.add_column("source", ratio=1, overflow="fold")
    for name in SIGNALS:
        reading = readings.get(name)
        if reading is not None and reading.value is not None:
            table.add_row(
                name,
                f"{_value(reading.value)} {_UNITS.get(name, '')}".rstrip(),
                age(reading.age_s(now_s)),
                str(reading.count),
                Text(reading.source, style="dim"),
            )
    return table


def _absent(readings: Mapping[str, Reading]) -> list[Table]:
    """Signals without a value; those with the same reason side by side with it, told once."""
    unmeasured = Reading(absent="no source measures it")
    found: dict[tuple[str, bool], list[str]] = {}
    for name in SIGNALS:
        reading = readings.get(name, unmeasured)
        if reading.value is None:
            found.setdefault((reading.absent, reading.not_exposed), []).append(name)
    return [_reason(names, *key) for key, names in found.items()]


def _reason(names: list[str], why: str, not_exposed: bool) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(no_wrap=True, width=_NAME_COLUMNS)
    grid.add_column(ratio=1)
    style = "bold red" if not_exposed else "yellow"
    grid.add_row("\n".join(names), Text(f"absent: {why}", style=style))
    return grid


def _value(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else rate(value)


def notes(seen: Seen) -> list[str]:
    """What the tables do not say: how GPUs name their pods, and which gateways answer."""
    layouts = [f"{count} series: {_LAYOUTS[layout]}" for layout, count in sorted(seen.layouts.items())]
    lines = [f"DCGM labels: {'; '.join(layouts) or 'no GPU metrics found'}"]
    if seen.gateways_configured:
        answered = f"{seen.gateways.answered} of {seen.gateways_configured} gateways answer"
        problems = [f"{url.partition('?')[0]}: {why}" for url, why in seen.gateways.problems.items()]
        lines.append("; ".join([answered, *problems]))
    else:
        lines.append("No gateway is read (gateways.stats): demand and failures are unknown")
    return lines


def document(seen: Seen) -> dict[str, Any]:
    """The same for programs; ages in seconds."""
    now_s = seen.observation.now_s
    traffic = seen.observation.traffic
    return {
        "at": now_s,
        "pools": {
            pool: {name: _plain(reading, now_s) for name, reading in load.readings.items()}
            for pool, load in sorted(seen.observation.loads.items())
        },
        "gpu_label_layouts": {layout.value: count for layout, count in sorted(seen.layouts.items())},
        "gateways": {
            "configured": seen.gateways_configured,
            "answered": seen.gateways.answered,
            "problems": dict(seen.gateways.problems),
        },
        "traffic": None
        if traffic is None
        else {
            key: {
                "offered_per_s": each.offered_per_s,
                "limited_per_s": each.limited_per_s,
                "would_limit_per_s": each.would_limit_per_s,
            }
            for key, each in sorted(traffic.items())
        },
    }


def _plain(reading: Reading, now_s: float) -> dict[str, Any]:
    return {
        "value": reading.value,
        "age_s": reading.age_s(now_s),
        "count": reading.count,
        "source": reading.source,
        "absent": reading.absent,
        "not_exposed": reading.not_exposed,
    }
