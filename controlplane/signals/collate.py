"""The readings of several sources -> one Observation. Pure.

Sources come in order of preference (the engine's own metrics, then the gateways'). For each signal the
first value that is fresh enough for its pool wins; if none is, the youngest value; if there is none, the
reasons of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controlplane.model.policy import Pool
from controlplane.model.signal import SIGNALS, Calls, KeyTraffic, Load, Observation, Reading

NOBODY = "no metric of this engine means it; gateway counters may (gateways.stats)"

Readings = Mapping[str, Mapping[str, Reading]]  # by Pool.id, then signal


def collate(
    pools: Sequence[Pool],
    sources: Sequence[Readings],
    *,
    traffic: Mapping[str, KeyTraffic] | None,
    gateways: int,
    now_s: float,
    calls: Mapping[str, Calls] | None = None,
) -> Observation:
    """All that is known at `now_s`: every signal of every pool, with a value or with reasons."""
    loads = {
        pool.id: Load(
            readings={
                name: choose(
                    [source.get(pool.id, {}).get(name) for source in sources], pool.rate.max_age_s, now_s
                )
                for name in SIGNALS
            }
        )
        for pool in pools
    }
    return Observation(now_s=now_s, loads=loads, traffic=traffic, gateways=gateways, calls=calls)


def choose(candidates: Sequence[Reading | None], max_age_s: float, now_s: float) -> Reading:
    """The reading to believe out of `candidates`, which are in order of preference."""
    given = [reading for reading in candidates if reading is not None]
    valued = [(age_s, each) for each in given if (age_s := _age_s(each, now_s)) is not None]
    for age_s, reading in valued:
        if age_s <= max_age_s:
            return reading
    if valued:
        return min(valued, key=lambda pair: pair[0])[1]
    reasons = [f"{each.source}: {each.absent}" if each.source else each.absent for each in given]
    return Reading(
        absent="; ".join(dict.fromkeys(reason for reason in reasons if reason)) or NOBODY,
        not_exposed=any(each.not_exposed for each in given),
    )


def _age_s(reading: Reading, now_s: float) -> float | None:
    return None if reading.value is None else reading.age_s(now_s)
