"""What a client holds of one type, by name.

A client that holds exactly what is on offer needs no table of its own. With a wildcard nearly every stream
is in that state nearly always: a thousand of them share one table, copied when a client begins to differ.
"""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.model.resource import Resource


class Holdings:
    """`table` is to be read only; it may be shared."""

    __slots__ = ("_own", "table")

    def __init__(self) -> None:
        self._own: dict[str, Resource] | None = None
        self.table: Mapping[str, Resource] = {}

    def replace(self, table: dict[str, Resource]) -> None:
        """Hold `table`, which nobody else changes or reads."""
        self._own = self.table = table

    def share(self, table: Mapping[str, Resource]) -> None:
        """Hold `table`, which others hold too and nobody may change."""
        self._own, self.table = None, table

    def changeable(self) -> dict[str, Resource]:
        """The table, to be changed: a copy, where it was shared."""
        if self._own is None:
            self.replace(dict(self.table))
        assert self._own is not None
        return self._own
