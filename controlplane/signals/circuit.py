"""Failures in a row -> whether to ask again now. Pure; time is an argument.

A backend that is down is asked less and less often, so that no threads pile up behind it and its return is
not met by everything that waited.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FAILURES_MAX = 3
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """`failures` in a row; nothing is asked before `retry_at_s`."""

    failures: int = 0
    retry_at_s: float = 0.0
    why: str = ""

    def allows(self, now_s: float) -> bool:
        """Whether a request may be sent."""
        return (
            now_s >= self.retry_at_s or self.retry_at_s - now_s > LONGEST_PAUSE_S
        )  # a clock that stepped back

    def failed(self, now_s: float, why: str) -> Circuit:
        """After one more failure: from the third on, a pause that doubles from 1 s to 15 s."""
        failures = self.failures + 1
        over = failures - FAILURES_MAX
        pause_s = 0.0 if over < 0 else min(FIRST_PAUSE_S * 2.0 ** min(over, 10), LONGEST_PAUSE_S)
        return replace(self, failures=failures, retry_at_s=now_s + pause_s, why=why)

    def succeeded(self) -> Circuit:
        """After an answer."""
        return Circuit()
