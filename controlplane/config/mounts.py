"""Which files are mount points of their own: a `subPath` mount never changes, whatever its ConfigMap does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from controlplane.config.problem import Problem, Severity

MOUNTINFO = Path("/proc/self/mountinfo")


def mount_points(mountinfo: Path = MOUNTINFO) -> frozenset[str]:
    """Every mount point of this process; empty where the system does not tell."""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return frozenset()
    fields = (line.split(" ") for line in lines)
    return frozenset(_unescaped(parts[4]) for parts in fields if len(parts) > 4)


def frozen_files(directory: Path, names: Iterable[str], points: frozenset[str]) -> list[Problem]:
    """A warning for each of `names` (in `directory`) that is mounted as a single file."""
    if not points:
        return []
    base = os.path.realpath(directory)
    return [
        Problem(
            severity=Severity.WARNING,
            file=name,
            line=1,
            path="",
            message="is mounted as a single file (subPath): changes will not arrive",
            expected="the directory mounted as a whole",
        )
        for name in names
        if os.path.join(base, name) in points or os.path.realpath(os.path.join(base, name)) in points
    ]


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and backslashes as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
