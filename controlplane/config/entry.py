"""One tenant of a tenant file, as it was read: what it says, where it stands, which keys it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.config.document import Document
from controlplane.config.problem import PathParts, Problem, Severity
from controlplane.config.schema import TenantFile
from controlplane.config.schema.limit import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tenant whose own shape is right."""

    spec: TenantFile
    digests: tuple[str, ...]  # of its API keys, sorted
    file: str
    prefix: PathParts  # () in a file of its own, ("tenants", 2) in a list
    line: int
    window_lines: tuple[int, ...]  # of `limits`, then of `per_route_rate_limit`
    content: bytes  # the file, to find the line of whatever turns out wrong later

    @property
    def id(self) -> str:
        return str(self.spec.id)

    def windows(self) -> Iterator[tuple[str, Window, PathParts]]:
        """Each limit per window, with its name and path."""
        number = 0
        for field in ("limits", "per_route_rate_limit"):
            for index, window in enumerate(getattr(self.spec, field)):
                yield f"{self.id}/{window.name or number}", window, (field, index)
                number += 1

    def problem(
        self, path: PathParts, message: str, expected: str = "", *, severity: Severity = Severity.ERROR
    ) -> Problem:
        """A finding about `path` of this tenant."""
        document = Document(self.file, self.content)
        return document.problem((*self.prefix, *path), message, expected, severity=severity)

    def warning(self, path: PathParts, message: str, expected: str = "") -> Problem:
        """A finding that does not keep the tenant from taking effect."""
        return self.problem(path, message, expected, severity=Severity.WARNING)
