"""Breakers -> the table of the limits script: pools whose breaker is not closed, and for how long.

A gateway goes on by itself when it hears nothing more: what is open becomes half-open when its dwell ends,
and half-open becomes closed after a while. Times are durations from the moment the script arrives, so the
clocks of gateways need not agree with ours.
"""

from __future__ import annotations

from controlplane.model.decision import BreakerDecision, BreakerState, Decision
from controlplane.model.policy import Mode
from controlplane.xds import lua_text

HALF_OPEN_S = 90  # that an open breaker stays half-open in a gateway that hears nothing more


def breakers(decision: Decision, mode: Mode) -> str:
    """The Lua table by Pool.id; what it does not list is closed."""
    listed = sorted(decision.breakers.items())
    entries = {pool: _entry(made, mode) for pool, made in listed if made.state is not BreakerState.CLOSED}
    return "{" + ",".join(f"[{lua_text.string(pool)}]={entry}" for pool, entry in entries.items()) + "}"


def _entry(made: BreakerDecision, mode: Mode) -> str:
    open_s = made.retry_after_s if made.state is BreakerState.OPEN else 0
    half_s = open_s + (made.believed_s or HALF_OPEN_S)
    return lua_text.record(
        open_s=str(open_s),
        half_s=str(half_s),
        share=f"{made.probe_ratio:.3f}",
        enforced=lua_text.scalar(mode is Mode.ENFORCE),
    )
