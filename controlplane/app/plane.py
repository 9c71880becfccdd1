"""A running control plane as the admin API sees it: `serve.view.View` on top of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controlplane.app.loop import Loop
from controlplane.model.policy import Mode, Policy
from controlplane.serve.cache import CacheStatus
from controlplane.serve.changes import Change
from controlplane.serve.view import ConfigStatus, Control, Moment, XdsTotals


class Plane:
    """Reads the loop; the two switches write to it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.config = ConfigStatus()

    def now_s(self) -> float:
        return self._loop.now_s()

    def policy(self) -> Policy | None:
        return self._loop.policy

    def moment(self) -> Moment | None:
        return self._loop.moment

    def xds_status(self) -> CacheStatus:
        return self._loop.cache.status()

    def xds_totals(self) -> XdsTotals:
        loop = self._loop
        return XdsTotals(pushes=loop.pushes, nacks=loop.nacks, visible_to_acked_s=tuple(loop.reactions_s))

    def config_status(self) -> ConfigStatus:
        return self.config

    def control(self) -> Control:
        return self._loop.control

    def ready(self) -> tuple[bool, Sequence[str]]:
        missing = []
        if self._loop.policy is None:
            missing.append("no valid configuration was loaded yet")
        if not self._loop.cache.ready:
            missing.append("no snapshot was published yet: the first tick is not done")
        return not missing, missing

    def recent_changes(self, limit: int) -> Sequence[Change]:
        return self._loop.trail.newest(limit)

    def freeze(self, on: bool, *, reason: str, by: str) -> None:
        old = self._loop.control.frozen
        self._loop.override(freeze=on)
        self._switched("freeze", str(old).lower(), str(on).lower(), reason, by)

    def set_mode(self, mode: Mode, *, reason: str, by: str) -> None:
        old = self._loop.control.mode
        self._loop.override(mode=mode)
        self._switched("mode", str(old), str(mode), reason, by)

    def _switched(self, what: str, old: str, new: str, reason: str, by: str) -> None:
        now_s = self._loop.now_s()
        self._loop.control = replace(self._loop.control, by=by, reason=reason, since_s=now_s)
        why = f"{by}: {reason}" if reason else by
        self._loop.note(Change(at_s=now_s, kind=what, subject="control", old=old, new=new, reason=why))
