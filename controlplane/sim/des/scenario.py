"""What happens in a run: how much is offered, by whom, what breaks. Loads are parts of a pool's capacity."""

from __future__ import annotations

from dataclasses import dataclass

EVENT_AT = 0.2  # of the run: when the scripted thing happens
RETURN_AT = 0.6
WARMUP_S = 60.0  # of a pod that replaces a lost one: weights, graphs, first requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A script for every pool of a policy. Times are seconds from the start of a run."""

    name: str
    title: str
    loads: tuple[tuple[float, float], ...]  # (from this second on, offered / capacity)
    event_s: float | None = None  # when the thing happens that the scenario is about
    noisy_ratio: float = 1.0  # from the event on, the lightest tenant offers this many times its part
    pod_lost: bool = False  # at the event, of each pool
    pod_back_s: float | None = None  # when its replacement is warm
    noise_ratio: float | None = None  # of the metrics; None: as the sensor says
    lost_ratio: float | None = None
    trace: bool = False  # the recorded trace's pattern and sizes instead of Poisson and log-normal


def scenario(name: str, seconds: float) -> Scenario:
    """The scenario of this name for a run of this length. Raises KeyError when there is none."""
    event_s = EVENT_AT * seconds
    match name:
        case "s1":
            title = "step from 0.6 to 1.6 of capacity"
            return Scenario(name=name, title=title, loads=((0.0, 0.6), (event_s, 1.6)), event_s=event_s)
        case "s2":
            title = "0.7 of capacity, bursts to 3 times it for 15 s of every 60"
            return Scenario(name=name, title=title, loads=_bursts(seconds, event_s), event_s=event_s)
        case "s4":
            return Scenario(
                name=name,
                title="1.1 of capacity, one pod of each pool lost, a warm one back later",
                loads=((0.0, 1.1),),
                event_s=event_s,
                pod_lost=True,
                pod_back_s=RETURN_AT * seconds + WARMUP_S,
            )
        case "s6":
            title = "0.7 of capacity, then one tenant at 10 times its part"
            return Scenario(name=name, title=title, loads=((0.0, 0.7),), event_s=event_s, noisy_ratio=10.0)
        case "s7":
            title = "0.85 of capacity, metrics with 30 % noise, every tenth scrape lost"
            return Scenario(name=name, title=title, loads=((0.0, 0.85),), noise_ratio=0.3, lost_ratio=0.1)
        case "trace":
            title = "the recorded conversation trace at 1.2 times capacity"
            return Scenario(name=name, title=title, loads=((0.0, 1.2),), trace=True)
    raise KeyError(name)


NAMES = ("s1", "s2", "s4", "s6", "s7", "trace")


def steady(load: float) -> Scenario:
    """A constant load, nothing else."""
    return Scenario(name="steady", title=f"{load:g} of capacity", loads=((0.0, load),))


def _bursts(seconds: float, first_s: float) -> tuple[tuple[float, float], ...]:
    loads, at_s = [(0.0, 0.7)], first_s
    while at_s < seconds:
        loads += [(at_s, 3.0), (at_s + 15.0, 0.7)]
        at_s += 60.0
    return tuple(loads)
