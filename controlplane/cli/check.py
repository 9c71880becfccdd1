"""`tidegate check DIR` and `tidegate schema`: what is wrong with a configuration, what may be in it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from controlplane.config import Loaded, Problem, Severity, load
from controlplane.config.problem import in_order
from controlplane.config.reference import json_schema, markdown
from controlplane.signals.catalogue import load_catalogue
from controlplane.signals.catalogue_file import CatalogueError

_WHERE = re.compile(r"(?P<file>.+?):(?P<line>[0-9]+) (?P<path>[^:\s]*): (?P<message>.*)", re.DOTALL)


def check(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory with tidegate.yaml and tenants/.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """List everything that is wrong with a configuration. Exit status 1 when there are errors."""
    loaded = load(directory)
    problems = in_order([*loaded.problems, *catalogue_problems(loaded, directory)])
    errors = sum(problem.severity is Severity.ERROR for problem in problems)
    warnings = len(problems) - errors
    failed = errors > 0 or (strict and warnings > 0)
    if as_json:
        typer.echo(json.dumps(_report(loaded, problems, failed), indent=2, ensure_ascii=False))
    else:
        for problem in problems:
            typer.echo(str(problem))
        typer.echo(_summary(loaded, directory, errors, warnings))
    raise typer.Exit(1 if failed else 0)


def schema(
    tenant: Annotated[
        bool, typer.Option("--tenant", help="Of tenant files instead of tidegate.yaml.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Both, as a page of documentation.")
    ] = False,
) -> None:
    """Print the JSON Schema of the configuration, for editors."""
    text = markdown() if as_markdown else json.dumps(json_schema(tenant=tenant), indent=2) + "\n"
    typer.echo(text, nl=False)


def catalogue_problems(loaded: Loaded, directory: Path) -> list[Problem]:
    """What is wrong with the catalogue of signal names, and engines that it does not know."""
    policy = loaded.policy
    if policy is None:
        return []
    try:
        catalogue = load_catalogue(policy.signals.catalogue_file)
    except CatalogueError as error:
        return [_catalogue_problem(line, directory) for line in str(error).splitlines()]
    known = ", ".join(sorted(catalogue.engines))
    return [
        Problem(
            severity=Severity.ERROR,
            file=pool.ref.file,
            line=pool.ref.line,
            path=f"models.{pool.model}.versions.{pool.version}.engine",
            message=f"the catalogue of signals has no engine `{pool.engine}`",
            expected=f"one of {known}",
        )
        for pool in policy.pools
        if pool.engine not in catalogue.engines
    ]


def _catalogue_problem(line: str, directory: Path) -> Problem:
    found = _WHERE.fullmatch(line)
    file, number, path, message = found.groups() if found else (str(directory), "1", "", line)
    name = file.removeprefix(f"{directory.absolute()}/")
    return Problem(severity=Severity.ERROR, file=name, line=int(number), path=path, message=message)


def _report(loaded: Loaded, problems: tuple[Problem, ...], failed: bool) -> dict[str, object]:
    policy = loaded.policy
    return {
        "ok": not failed,
        "problems": [asdict(problem) for problem in problems],
        "models": [pool.id for pool in policy.pools] if policy else [],
        "routes": [route.id for route in policy.routes] if policy else [],
        "tenants": len(policy.tenants) if policy else 0,
        "keys": len(policy.keys) if policy else 0,
    }


def _summary(loaded: Loaded, directory: Path, errors: int, warnings: int) -> str:
    found = f"{errors} error(s), {warnings} warning(s)"
    policy = loaded.policy
    if policy is None:
        return f"{directory}: {found}; nothing can be served"
    served = f"{len(policy.pools)} model version(s), {len(policy.routes)} route(s)"
    return f"{directory}: {found}; {len(policy.tenants)} tenant(s), {served}, {len(policy.keys)} limit(s)"
