"""What the admin API, the metrics and the live table may see of a running control plane.

`View` is implemented by whatever wires the rooms together. It is read-only but for `freeze` and `set_mode`,
and everything it returns is frozen, so that a scrape never sees half a tick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from controlplane.model.decision import Decision
from controlplane.model.policy import Mode, Policy
from controlplane.model.signal import Observation
from controlplane.serve.changes import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeStatus:
    """One xDS type on one gateway's stream."""

    resources: int = 0  # how many it was sent
    pushes: int = 0
    acks: int = 0
    nacks: int = 0
    waiting: bool = False  # sent, neither ACKed nor NACKed yet
    last_nack: str = ""  # Envoy's words, empty when the last answer was an ACK


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """One connected Envoy."""

    node: str
    address: str = ""
    protocol: str = "delta"  # delta | sotw
    connected_at_s: float = 0.0
    types: Mapping[str, TypeStatus] = field(
        default_factory=dict
    )  # by short name: CDS, EDS, LDS, RDS, ECDS, RTDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A resource that Envoy rejected; its last good version is served instead."""

    type: str  # short name
    name: str
    version: str
    origin: str  # file:line behind it
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class XdsStatus:
    """Who is connected and what they accepted."""

    gateways: Sequence[GatewayStatus] = ()
    quarantined: Sequence[Quarantined] = ()
    published: int = 0  # snapshots published since the start
    resources: Mapping[str, int] = field(default_factory=dict)  # in the current snapshot, by short type name


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


class View(Protocol):
    """A running control plane, as seen from outside."""

    def now_s(self) -> float:
        """Unix seconds, on the clock that ticks and samples are dated with."""

    def policy(self) -> Policy | None:
        """The policy that `decision` belongs to; None before the first."""

    def decision(self) -> Decision | None:
        """The decision of the last tick; None before the first."""

    def observation(self) -> Observation | None:
        """The observation of the last tick; None before the first."""

    def xds_status(self) -> XdsStatus:
        """The gateways and what they accepted."""

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
