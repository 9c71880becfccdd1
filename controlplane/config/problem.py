"""What is wrong with the operator's files, said so that it can be found and mended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PathParts = tuple[str | int, ...]

# What stands below these fields may be a credential put in the wrong place: it is never repeated.
_CONFIDENTIAL = ("api_keys", "headers", "query_params")
_OPEN_NAMES = ("sha256", "file")


class Severity(StrEnum):
    """An `error` keeps the thing it is about from taking effect; a `warning` does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding. `path` reads like `tenants[2].limits[0].tokens`, empty for the whole file."""

    severity: Severity
    file: str  # relative to the configuration directory
    line: int  # 1-based
    path: str
    message: str
    expected: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        wanted = f" (expected {self.expected})" if self.expected else ""
        return f"{self.file}:{self.line}: {self.severity}: {where}{self.message}{wanted}"


def dotted(parts: Sequence[str | int]) -> str:
    """`("tenants", 2, "limits", 0)` as `tenants[2].limits[0]`."""
    text = ""
    for place, part in enumerate(parts):
        if isinstance(part, str) and part not in _OPEN_NAMES and is_confidential(parts[:place]):
            return text
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part or any(mark in part for mark in ".[]: "):
            text += f"[{part!r}]"
        else:
            text += f".{part}" if text else part
    return text


def is_confidential(parts: Sequence[str | int]) -> bool:
    """True below a field whose values are not to be shown."""
    return any(part in _CONFIDENTIAL for part in parts)


def shown(parts: Sequence[str | int], text: str) -> str:
    """`text` shortened to 40 characters for a message, or a placeholder where it may be a credential."""
    return "(not shown)" if is_confidential(parts) else text[:40]


def has_errors(problems: Sequence[Problem]) -> bool:
    """True when one of `problems` is an error."""
    return any(problem.severity is Severity.ERROR for problem in problems)


def in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """`problems` without repetitions: by file, line, path, and errors before warnings."""
    return tuple(
        sorted(set(problems), key=lambda p: (p.file, p.line, p.path, p.severity, p.message, p.expected))
    )
