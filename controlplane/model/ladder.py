"""The burst classes: how many seconds of its rate a key may take at once.

Judgement chooses a class for each key, translation gives each class one bucket of the same fill, so both
must agree on the classes and on their names. A class is a property of the policy alone: a key that changed
its class would find another, full bucket.
"""

from __future__ import annotations

LADDER_S: tuple[float, ...] = (0.1, 1.0, 4.0, 6.0, 15.0, 60.0, 240.0, 360.0, 1000.0)
"""Every class (s). 6 and 360 are a tenth of a minute and of an hour, for the bursts of window limits."""

ADAPTIVE_LADDER_S: tuple[float, ...] = (0.1, 1.0, 4.0, 15.0, 60.0, 240.0, 1000.0)
"""The classes that adaptive keys may have (s)."""

UNITS_PER_S = 1_000_000
"""Fill of every bucket in cost units per second: a key of r requests/s pays UNITS_PER_S / r for each."""

COST_MAX = 1_000_000_000
"""The largest cost Envoy accepts; above every bucket, so a key that pays it is closed."""


def class_name(burst_s: float) -> str:
    """The descriptor value of a class: `0.1`, `1`, `1000`."""
    return f"{burst_s:g}"
