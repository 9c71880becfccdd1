"""Random input for as long as it is told, to everything that reads what others wrote.

    make fuzz SECONDS=600 [ARGS="session yaml"]

The targets are `tests/support/fuzzing.py`; each gets its share of the time, in portions of new examples. Ends
with status 1 and the smallest failing input when something breaks, or when memory grows from portion to
portion.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from fuzzing import TARGETS, Target  # noqa: E402
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402

PORTION = 500
GROWTH_BYTES_MAX = 150 * 1024 * 1024  # after the first portion, which imports and fills what is cached


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def portion(target: Target, number: int) -> None:
    """Some hundred new examples; raises with the smallest one that fails."""

    @seed(number)
    @settings(
        max_examples=PORTION,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def run(given_input: object) -> None:
        target.check(given_input)

    run()


def fuzz(name: str, seconds: float, first_seed: int) -> bool:
    """True when nothing broke within `seconds`."""
    target, portions, baseline = TARGETS[name], 0, 0
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        try:
            portion(target, first_seed + portions)
        except Exception:
            print(f"{name}: broken with seed {first_seed + portions}\n{traceback.format_exc()}", flush=True)
            return False
        portions += 1
        gc.collect()
        baseline = baseline or rss_bytes()
    grown = rss_bytes() - baseline if baseline else 0
    print(f"{name}: {portions * PORTION} inputs in {seconds:.0f} s, memory {grown / 1e6:+.0f} MB", flush=True)
    return grown <= GROWTH_BYTES_MAX


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}")
    chosen = arguments.targets or list(TARGETS)
    good = [fuzz(name, arguments.seconds / len(chosen), arguments.seed) for name in chosen]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
