"""The demo's script: how GPU pressure and offered load move, phase by phase. Pure data.

The offered load of a limited phase is a multiple of the limit, or the measurement of the limit would prove
nothing; it falls with the limit, so that two cores can play the whole story.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

BASE_RATE_PER_S = 100.0
REFERENCE_S = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One scene. `pool_offered_per_s` is what all tenants together send to one model version."""

    id: str
    title: str
    seconds: float
    gpu_util_percent: float
    pool_offered_per_s: float
    reload_guards: bool = False  # the configuration is rewritten with guards on, a third into the scene
    limited: bool = True  # the limit binds, so it can be measured
    follows_slew: bool = False  # compared with the rate the control plane reports, not with the bare curve
    measured: bool = True


def story(total_s: float) -> tuple[Phase, ...]:
    """The scenes, scaled to `total_s` seconds (at least 30; a shorter measurement would prove little)."""
    scale = max(30.0, total_s) / REFERENCE_S
    scenes = (
        Phase(
            id="calm",
            title="calm: GPU at 15 %",
            seconds=6,
            gpu_util_percent=15,
            pool_offered_per_s=60,
            limited=False,
        ),
        Phase(
            id="pressure-60",
            title="pressure: GPU at 60 %",
            seconds=9,
            gpu_util_percent=60,
            pool_offered_per_s=110,
        ),
        Phase(
            id="pressure-95",
            title="pressure: GPU at 95 %",
            seconds=10,
            gpu_util_percent=95,
            pool_offered_per_s=40,
        ),
        Phase(
            id="recovery",
            title="recovery: GPU at 20 %",
            seconds=6,
            gpu_util_percent=20,
            pool_offered_per_s=60,
            limited=False,
        ),
        Phase(
            id="relapse",
            title="relapse: GPU at 95 %, then guards go on by a reload",
            seconds=4,
            gpu_util_percent=95,
            pool_offered_per_s=40,
            reload_guards=True,
            measured=False,
        ),
        Phase(
            id="guarded",
            title="guards on: GPU back at 60 %, the rate may rise 10 % per 5 s",
            seconds=10,
            gpu_util_percent=60,
            pool_offered_per_s=40,
            follows_slew=True,
        ),
    )
    return tuple(replace(scene, seconds=scene.seconds * scale) for scene in scenes)
