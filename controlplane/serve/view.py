"""What the admin API, the metrics and the live table may see of a running control plane.

`View` is implemented by whatever wires the rooms together. It is read-only but for `freeze` and `set_mode`,
and everything it returns is frozen, so that a scrape never sees half a tick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controlplane.model.decision import Decision
from controlplane.model.policy import Mode, Policy
from controlplane.model.signal import Observation
from controlplane.serve.cache import CacheStatus
from controlplane.serve.changes import Change


class ProblemLine(Protocol):
    """One error or warning of the operator's files."""

    @property
    def severity(self) -> str: ...  # error | warning
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def path(self) -> str: ...  # tenants[2].limits[0].tokens
    @property
    def message(self) -> str: ...
    @property
    def expected(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigStatus:
    """Which files are in force, and what is wrong with what was read last."""

    loaded_at_s: float | None = None  # of the policy in force; None: none yet
    files: Sequence[str] = ()
    problems: Sequence[ProblemLine] = ()  # of the newest read, in force or not
    in_force: bool = False  # False: the newest read had errors, an older policy (or none) is in force
    reloads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The two switches, and who set them last."""

    mode: Mode = Mode.ENFORCE
    frozen: bool = False
    by: str = "configuration"
    reason: str = ""
    since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One tick, taken together so that it belongs together: `decision` is indexed like `policy.keys`."""

    policy: Policy
    decision: Decision
    observation: Observation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class XdsTotals:
    """What went to gateways since the start."""

    pushes: int = 0
    nacks: int = 0
    visible_to_acked_s: Sequence[float] = ()  # the last thousand: from a new signal value to its limits ACKed


class View(Protocol):
    """A running control plane, as seen from outside."""

    def now_s(self) -> float:
        """Unix seconds, on the clock that ticks and samples are dated with."""

    def policy(self) -> Policy | None:
        """The policy in force; None before the first."""

    def moment(self) -> Moment | None:
        """The last tick; None before the first."""

    def xds_status(self) -> CacheStatus:
        """The gateways and what they accepted."""

    def xds_totals(self) -> XdsTotals:
        """Pushes, rejections and reaction times since the start."""

    def config_status(self) -> ConfigStatus:
        """The operator's files."""

    def control(self) -> Control:
        """The switches."""

    def ready(self) -> tuple[bool, Sequence[str]]:
        """Whether configuration is loaded and a first snapshot published, and what is still missing."""

    def recent_changes(self, limit: int) -> Sequence[Change]:
        """The newest automatic changes, newest first, at most `limit`."""

    def freeze(self, on: bool, *, reason: str, by: str) -> None:
        """Hold every rate where it is, or let go again."""

    def set_mode(self, mode: Mode, *, reason: str, by: str) -> None:
        """Enforce limits, or only count what would have been refused."""


class QuotaDesk(Protocol):
    """LLM-token quotas, as the admin API shows and adjusts them."""

    async def show(self, tenant: str | None, model_version: str | None) -> dict[str, Any]:
        """The selected quotas as a document."""

    async def adjust(self, wanted: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        """Grant or reset, as `wanted` says. Raises ValueError for what is wrong with it, ConnectionError when
        the store is away."""
