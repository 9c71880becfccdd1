"""What a demo, a bench or a test run found, in the one shape every `--report FILE.json` has.

Criteria -> `{"verdict", "criteria": [{"id", "must", "measured", "unit", "holds"}, ...], ...details}`; the
exit status of the command follows the verdict. A report without criteria fails: nothing was shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One thing that must hold. `must` reads like `<= 20`; `measured` is None when nothing was measured."""

    id: str
    must: str
    measured: float | int | str | bool | None
    unit: str
    holds: bool

    @staticmethod
    def at_most(id: str, limit: float, measured: float | None, unit: str) -> Criterion:
        """Holds when `measured` is a number and <= `limit`."""
        holds = measured is not None and math.isfinite(measured) and measured <= limit
        return Criterion(id=id, must=f"<= {limit:g}", measured=measured, unit=unit, holds=holds)

    @staticmethod
    def at_least(id: str, limit: float, measured: float | None, unit: str) -> Criterion:
        """Holds when `measured` is a number and >= `limit`."""
        holds = measured is not None and math.isfinite(measured) and measured >= limit
        return Criterion(id=id, must=f">= {limit:g}", measured=measured, unit=unit, holds=holds)

    @staticmethod
    def equal(id: str, wanted: float | int | str | bool, measured: Any, unit: str = "") -> Criterion:
        """Holds when `measured` is exactly `wanted`."""
        return Criterion(id=id, must=f"= {wanted}", measured=measured, unit=unit, holds=measured == wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Criteria and whatever details help a reader; details never decide the verdict."""

    criteria: tuple[Criterion, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return bool(self.criteria) and all(criterion.holds for criterion in self.criteria)

    @property
    def exit_code(self) -> int:
        """0 only if everything held."""
        return 0 if self.passed else 1

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready values; a detail may not hide the verdict or the criteria."""
        shape: dict[str, Any] = {
            "verdict": "pass" if self.passed else "fail",
            "criteria": [asdict(criterion) for criterion in self.criteria],
        }
        return shape | {key: item for key, item in self.details.items() if key not in shape}


def write(report: Report, path: Path) -> None:
    """Write `report` to `path` as JSON; numbers JSON does not know (nan, inf) become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(report.to_dict()), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """`value` with non-finite floats replaced by None and numpy scalars and tuples by plain ones."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
