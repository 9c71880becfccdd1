"""Every benchmark, one after the other, each in a process of its own: their reports in, one report out.

    uv run python -m bench [NAME ...] [--report FILE.json]

A criterion is called `bench.criterion` in the joint report; the details of each benchmark are under its name.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from controlplane.report import Criterion, Report, write

ROOT = Path(__file__).resolve().parent.parent
NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def run(name: str, folder: Path) -> dict[str, Any]:
    """The report of one benchmark; one that wrote none has failed."""
    print(f"--- {name}", flush=True)
    path = folder / f"{name}.json"
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", "--report", str(path)], cwd=ROOT, check=False
    )
    if path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    ended = Criterion.equal("ended", 0, done.returncode, "exit status without a report")
    return Report(criteria=(ended, Criterion.equal("report", True, False))).to_dict()


def merged(reports: dict[str, dict[str, Any]]) -> Report:
    """All reports as one."""
    criteria = tuple(
        Criterion(**{**criterion, "id": f"{name}.{criterion['id']}"})
        for name, report in reports.items()
        for criterion in report["criteria"]
    )
    return Report(criteria=criteria, details={name: _details(report) for name, report in reports.items()})


def _details(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key not in ("verdict", "criteria")}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory() as folder:
        found = merged({name: run(name, Path(folder)) for name in given.names or NAMES})
    for criterion in found.criteria:
        mark = "ok  " if criterion.holds else "FAIL"
        print(f"{mark} {criterion.id}: {criterion.measured} {criterion.unit} (must be {criterion.must})")
    if given.report:
        write(found, given.report)
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
