"""`tidegate simulate`: what a configuration would do to a scenario, on simulated pods."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from controlplane.cli.simulate_screen import screen
from controlplane.config import Loaded, Severity, load
from controlplane.model.policy import Policy
from controlplane.report import Report, write
from controlplane.sim.des.page import Page, page
from controlplane.sim.des.scenario import scenario as scenario_named
from controlplane.sim.des.study import Run, Settings, Study, prepare
from controlplane.sim.des.summary import summaries


class ScenarioName(StrEnum):
    """What happens in the run."""

    S1 = "s1"
    S2 = "s2"
    S4 = "s4"
    S6 = "s6"
    S7 = "s7"
    TRACE = "trace"


def simulate(
    config: Annotated[Path, typer.Option(help="Directory with tidegate.yaml and tenants/.")],
    scenario: Annotated[
        ScenarioName,
        typer.Option(
            help="s1: step to 1.6 of capacity; s2: bursts; s4: a pod lost; s6: one tenant at 10 times its "
            "part; s7: noisy metrics; trace: recorded conversations."
        ),
    ] = ScenarioName.S1,
    seconds: Annotated[float, typer.Option(help="Simulated seconds.", min=60, max=21600)] = 300,
    seed: Annotated[int, typer.Option(help="Of all random numbers.", min=0)] = 1,
    pods: Annotated[
        int | None, typer.Option(help="Pods of each model version (default: its endpoints).", min=1, max=256)
    ] = None,
    pod_rate: Annotated[
        float | None,
        typer.Option(help="Requests/s that one pod serves (default: 6.7).", min=0.01, max=1000),
    ] = None,
    lag: Annotated[
        float | None,
        typer.Option(help="Age of metrics in s (default: 0.5, or 10 from Prometheus).", min=0, max=300),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What this other configuration would have done.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also no limit, a static one, and the bare formula.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write all figures as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots.")] = None,
) -> None:
    """Run a configuration against a scenario: the judgement of production, simulated pods, no waiting."""
    policy, other = _policy(config), None if compare is None else _policy(compare)
    try:
        study = prepare(
            policy,
            scenario_named(scenario.value, seconds),
            Settings(seconds=seconds, seed=seed, pods=pods, pod_rate_per_s=pod_rate, lag_s=lag),
        )
    except ValueError as error:
        _leave(f"{config}: {error}")
    shown = [study.play_policy(_name(config), policy)]
    if compare is not None and other is not None:
        name = _name(compare) if _name(compare) != shown[0].name else str(compare)
        shown.append(study.play_policy(name if name != shown[0].name else f"{name} (again)", other))
    others = [study.play(name, gate) for name, gate in study.rivals().items()] if baselines else []
    Console().print(screen(study, shown, others))
    found = _report(study, shown, others)
    try:
        if report is not None:
            write(found, report)
        if html is not None:
            html.parent.mkdir(parents=True, exist_ok=True)
            html.write_text(
                page(Page(study=study, facts=_facts(study), shown=shown, others=others)), encoding="utf-8"
            )
    except OSError as error:
        _leave(str(error))
    raise typer.Exit(found.exit_code)


def _policy(directory: Path) -> Policy:
    """The policy of a directory; leaves with every error when there is none."""
    loaded: Loaded = load(directory)
    errors = [problem for problem in loaded.problems if problem.severity is Severity.ERROR]
    if loaded.policy is None or errors:
        for problem in errors:
            typer.echo(str(problem), err=True)
        _leave(f"{directory}: {len(errors)} error(s); tidegate check {directory} shows all")
    return loaded.policy


def _leave(why: str) -> NoReturn:
    typer.echo(f"tidegate simulate: {why}", err=True)
    raise typer.Exit(2)


def _name(directory: Path) -> str:
    return directory.resolve().name or str(directory)


def _facts(study: Study) -> list[str]:
    platform = study.platform
    sensor = platform.sensor
    return [
        f"{platform.seconds:g} s",
        f"seed {platform.seed}",
        f"{platform.gateways} gateway(s)",
        f"a pod serves {study.pod_capacity_per_s:.3g} requests/s",
        f"metrics every {sensor.interval_s:g} s, {sensor.lag_s:g} s late, "
        f"{100 * sensor.noise_ratio:g} % noise, {100 * sensor.lost_ratio:g} % lost",
    ]


def _report(study: Study, shown: list[Run], others: list[Run]) -> Report:
    runs = [*shown, *others]
    criteria = tuple(
        replace(criterion, id=f"{criterion.id}[{run.name}]") if len(runs) > 1 else criterion
        for run in runs
        for criterion in run.criteria
    )
    platform = study.platform
    return Report(
        criteria=criteria,
        details={
            "scenario": asdict(platform.scenario),
            "seconds": platform.seconds,
            "seed": platform.seed,
            "pods": dict(platform.pods),
            "capacity_per_s": study.capacity_per_s,
            "physics": asdict(platform.physics),
            "sensor": asdict(platform.sensor),
            "notes": study.notes(),
            "runs": [
                {
                    "name": run.name,
                    "model_versions": [
                        asdict(line) for pool in platform.pods for line in summaries([run], pool)
                    ],
                    "tenants": [asdict(row) for row in run.rows],
                    "preemptions": run.preemptions,
                    "over_time": [asdict(line) for line in run.lines],
                }
                for run in runs
            ],
        },
    )
