"""Runs the whole test suite: pure tests in parallel, then those with real servers one after the other.

`python tools/run_tests.py [--report FILE] [pytest arguments]`. Time is part of what is tested on real
servers, so they do not share the machine. Exit status 1 when anything failed or nothing ran.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REAL = "envoy or prometheus or redis or slow"
NO_TESTS_COLLECTED = 5


def run(phase: str, arguments: list[str], counts: Counter[str]) -> int:
    """Run pytest with visible progress; add its outcomes to `counts`; its exit status."""
    print(f"\n--- {phase}", flush=True)
    with tempfile.NamedTemporaryFile(suffix=".xml") as junit:
        command = [sys.executable, "-m", "pytest", f"--junitxml={junit.name}", *arguments]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        counts.update(_outcomes(Path(junit.name)))
    return status


def _outcomes(junit: Path) -> Counter[str]:
    if junit.stat().st_size == 0:
        return Counter(errors=1)
    suites = ElementTree.parse(junit).getroot().iter("testsuite")
    return sum((_suite(suite) for suite in suites), Counter[str]())


def _suite(suite: ElementTree.Element) -> Counter[str]:
    return Counter({name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")})


def _write_report(path: Path, statuses: list[int], counts: Counter[str]) -> int:
    sys.path.insert(0, str(ROOT))
    from controlplane.report import Criterion, Report, write

    broken = counts["failures"] + counts["errors"]
    criteria = (
        Criterion.at_least("tests", 1, counts["tests"] - counts["skipped"], "tests run"),
        Criterion.equal("failed", 0, broken, "tests"),
        Criterion.equal("pytest", True, set(statuses) <= {0, NO_TESTS_COLLECTED}, "clean exits"),
    )
    report = Report(criteria=criteria, details={"counts": dict(counts)})
    write(report, path)
    return report.exit_code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path)
    options, extra = parser.parse_known_args()
    subprocess.run([sys.executable, ROOT / "tools/real_components.py", "--fetch"], check=False)
    counts: Counter[str] = Counter()
    workers = str(min(4, os.cpu_count() or 1))
    statuses = [
        run("pure tests", ["-q", "-n", workers, "-m", f"not ({REAL})", *extra], counts),
        run("tests with real servers", ["-v", "--no-header", "-m", REAL, *extra], counts),
    ]
    if options.report:
        return _write_report(options.report, statuses, counts)
    ran = [status for status in statuses if status != NO_TESTS_COLLECTED]
    return 0 if ran and not any(ran) else 1


if __name__ == "__main__":
    sys.exit(main())
