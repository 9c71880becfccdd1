"""The growth of a histogram's buckets -> a quantile, as PromQL's histogram_quantile computes it.

Keys of a vector are the `le` labels as written ("0.5", "+Inf"); values are cumulative over the buckets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A quantile. `saturated`: it lies above the largest finite bound, so `value` is only a lower bound."""

    value: float
    count: float
    saturated: bool


def merge(vectors: Sequence[Mapping[str, float]]) -> dict[float, float]:
    """The sum of histograms over the bounds that all of them have; {} when they share no finite bound.

    Servers of one pool may have different bounds while a new release rolls out. A bound that one of them
    lacks cannot be summed; leaving it out makes the quantile coarser, never wrong.
    """
    parsed = [{float(bound): count for bound, count in vector.items()} for vector in vectors if vector]
    if not parsed:
        return {}
    shared = set(parsed[0]).intersection(*parsed[1:])
    if not any(math.isfinite(bound) for bound in shared):
        return {}
    return {bound: sum(each[bound] for each in parsed) for bound in sorted(shared)}


def quantile(q: float, buckets: Mapping[float, float]) -> Quantile | None:
    """The `q` quantile of cumulative `buckets`; None without observations or without a +Inf bucket."""
    bounds = sorted(buckets)
    if len(bounds) < 2 or bounds[-1] != math.inf:
        return None
    count = buckets[math.inf]
    if not count > 0:
        return None
    rank = q * count
    lower, below = 0.0, 0.0
    for bound in bounds[:-1]:
        cumulative = max(
            below, buckets[bound]
        )  # scrapes are not atomic: a bucket may lag behind the one below it
        if cumulative >= rank:
            return Quantile(
                value=_between(lower, bound, below, cumulative, rank), count=count, saturated=False
            )
        lower, below = bound, cumulative
    return Quantile(value=lower, count=count, saturated=True)


def _between(lower: float, upper: float, below: float, cumulative: float, rank: float) -> float:
    """Linear interpolation within one bucket; a lowest bucket that ends at or below zero has no lower end."""
    if upper <= 0 or cumulative <= below:
        return upper
    return lower + (upper - lower) * (rank - below) / (cumulative - below)
