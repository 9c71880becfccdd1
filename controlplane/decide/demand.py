"""Gateway counters -> the work each key offers, refused requests included.

A rise counts at once, so that an owner gets its share back with the next tick; a fall is followed over
about five seconds. Unknown stays unknown (nan): a key without counters is shared out as if it wanted its
weight's part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controlplane.decide.fill import Floats
from controlplane.model.signal import KeyTraffic

TAU_S = 5.0
FORGET_S = 15.0  # without counters for this long, demand is unknown
_SETTLED_RATIO = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """Offered work by key, arrays like Policy.keys."""

    offered_per_s: Floats  # filtered; nan: unknown
    silent_s: float = 0.0  # since the last counters


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Counters of one tick as arrays like Policy.keys; nan where a counter was junk."""

    offered_per_s: Floats
    admitted_per_s: Floats


def read_traffic(index: Mapping[str, int], traffic: Mapping[str, KeyTraffic]) -> Traffic:
    """`traffic` by position. A key that was not counted has sent nothing; unknown keys are left out."""
    offered, limited = np.zeros(len(index)), np.zeros(len(index))
    for key_id, counted in traffic.items():
        position = index.get(key_id)
        if position is not None:
            offered[position] = counted.offered_per_s
            limited[position] = counted.limited_per_s + counted.shed_per_s
    offered[~(np.isfinite(offered) & (offered >= 0))] = np.nan
    limited[~(np.isfinite(limited) & (limited >= 0))] = np.nan
    return Traffic(offered_per_s=offered, admitted_per_s=np.maximum(offered - limited, 0.0))


def follow(demand: Demand, traffic: Traffic | None, dt_s: float) -> Demand:
    """The demand after `dt_s` more seconds; a junk counter leaves what was known."""
    if traffic is None:
        silent_s = demand.silent_s + dt_s
        known = demand.offered_per_s if silent_s <= FORGET_S else np.full_like(demand.offered_per_s, np.nan)
        return Demand(offered_per_s=known, silent_s=silent_s)
    old, new = demand.offered_per_s, traffic.offered_per_s
    falling = old + (1.0 - math.exp(-dt_s / TAU_S)) * (new - old)
    at_once = np.isnan(old) | (new >= old) | (np.abs(falling - new) <= _SETTLED_RATIO * np.maximum(new, 1.0))
    followed = np.where(at_once, new, falling)
    return Demand(offered_per_s=np.where(np.isnan(new), old, followed))
