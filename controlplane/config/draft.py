"""The main file while it is judged: what it says, where, and its compiled form without tenants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from controlplane.config.document import Document
from controlplane.config.problem import PathParts, Problem, Severity
from controlplane.config.schema import MainFile
from controlplane.model.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One main file of the right shape."""

    main: MainFile
    document: Document
    policy: Policy
    directory: Path

    def error(self, path: PathParts, message: str, expected: str = "") -> Problem:
        """A finding that keeps the whole main file from taking effect."""
        return self.document.problem(path, message, expected)

    def warning(self, path: PathParts, message: str, expected: str = "") -> Problem:
        """A finding that does not."""
        return self.document.problem(path, message, expected, severity=Severity.WARNING)
