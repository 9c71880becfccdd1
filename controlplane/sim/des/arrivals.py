"""Scenario -> requests: who asks when, how long the prompt is and how long the answer will be.

Every key has random numbers of its own, drawn from the seed and the key's name: another policy, or another
tenant more, leaves the requests of the others as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from zlib import crc32

import numpy as np

from controlplane.model.policy import Key
from controlplane.sim.des.scenario import Scenario
from controlplane.sim.trace import Trace, arrivals, read_trace

PROMPT_MEAN, PROMPT_SIGMA, PROMPT_MAX = 960.0, 0.9, 8000
ANSWER_MEAN, ANSWER_SIGMA, ANSWER_MAX = 230.0, 0.7, 2000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come; `key` is a position in the run's keys."""

    at_s: float
    key: int
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Mean tokens of the requests of a scenario."""

    prompt_tokens: float
    answer_tokens: float


def sizes(scenario: Scenario) -> Sizes:
    """Of what is drawn: the trace's own, or the log-normal's."""
    if not scenario.trace:
        return Sizes(prompt_tokens=PROMPT_MEAN, answer_tokens=ANSWER_MEAN)
    trace = read_trace()
    return Sizes(
        prompt_tokens=sum(request.prompt_tokens for request in trace) / len(trace),
        answer_tokens=sum(request.answer_tokens for request in trace) / len(trace),
    )


def noisy_tenant(keys: Sequence[Key]) -> str:
    """The tenant that misbehaves where a scenario has one: the first by name of the lightest."""
    weight: dict[str, float] = {}
    for key in keys:
        weight[key.tenant] = max(weight.get(key.tenant, 0.0), key.weight)
    return min(sorted(weight), key=lambda tenant: weight[tenant])


def shares(keys: Sequence[Key]) -> list[float]:
    """The part of its pool's load that each key offers: by weight, a ceiling not regarded."""
    total: dict[str, float] = {}
    for key in keys:
        total[key.pool] = total.get(key.pool, 0.0) + max(key.weight, 0.0)
    return [max(key.weight, 0.0) / total[key.pool] if total[key.pool] > 0 else 0.0 for key in keys]


def offered(
    scenario: Scenario,
    keys: Sequence[Key],
    capacity_per_s: Mapping[str, float],
    *,
    seconds: float,
    seed: int,
) -> list[Arrival]:
    """All requests of a run, in order of time. `capacity_per_s` is of each pool, all pods up."""
    trace = read_trace() if scenario.trace else None
    noisy = noisy_tenant(keys) if scenario.noisy_ratio != 1.0 else None
    found: list[Arrival] = []
    for number, (key, share) in enumerate(zip(keys, shares(keys), strict=True)):
        rng = np.random.default_rng([seed, crc32(key.id.encode())])
        loads = _loads(scenario, noisy=key.tenant == noisy)
        rates = [(at_s, load * share * capacity_per_s[key.pool]) for at_s, load in loads]
        if trace is None:
            found += _poisson(number, rates, seconds, rng)
        else:
            found += _replayed(number, rates, seconds, rng, trace)
    return sorted(found, key=lambda arrival: arrival.at_s)


def _loads(scenario: Scenario, *, noisy: bool) -> list[tuple[float, float]]:
    """The load factors of a key; those of the noisy tenant are multiplied from the event on."""
    if not noisy or scenario.event_s is None:
        return list(scenario.loads)
    event_s, ratio = scenario.event_s, scenario.noisy_ratio
    at_event = [load for at_s, load in scenario.loads if at_s <= event_s][-1]
    before = [(at_s, load) for at_s, load in scenario.loads if at_s < event_s]
    after = [(at_s, load * ratio) for at_s, load in scenario.loads if at_s > event_s]
    return [*before, (event_s, at_event * ratio), *after]


def _poisson(
    number: int, rates: Sequence[tuple[float, float]], seconds: float, rng: np.random.Generator
) -> list[Arrival]:
    """Arrivals without memory at a stepwise rate, by a change of time."""
    edges = np.array([at_s for at_s, _ in rates if at_s < seconds] + [seconds])
    steps = np.array([rate for at_s, rate in rates if at_s < seconds])
    integral = np.concatenate([[0.0], np.cumsum(steps * np.diff(edges))])
    count = int(rng.poisson(integral[-1]))
    times = np.sort(np.interp(rng.random(count) * integral[-1], integral, edges))
    prompts = _log_normal(rng, count, PROMPT_MEAN, PROMPT_SIGMA, PROMPT_MAX)
    answers = _log_normal(rng, count, ANSWER_MEAN, ANSWER_SIGMA, ANSWER_MAX)
    return [
        Arrival(at_s, number, prompt, answer)
        for at_s, prompt, answer in zip(times.tolist(), prompts, answers, strict=True)
    ]


def _log_normal(rng: np.random.Generator, count: int, mean: float, sigma: float, most: int) -> list[int]:
    drawn = rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    return [int(value) for value in np.clip(np.rint(drawn), 2, most)]


def _replayed(
    number: int, rates: Sequence[tuple[float, float]], seconds: float, rng: np.random.Generator, trace: Trace
) -> list[Arrival]:
    """The trace from a place of the key's own, so that tenants do not march in step."""
    start = int(rng.integers(len(trace)))
    span_s = trace[-1].at_s + trace[-1].at_s / max(1, len(trace) - 1)
    turned = trace[start:] + tuple(_later(trace[:start], span_s))
    return [
        Arrival(request.at_s, number, request.prompt_tokens, max(1, request.answer_tokens))
        for request in takewhile(lambda request: request.at_s < seconds, arrivals(turned, rates))
    ]


def _later(trace: Trace, by_s: float) -> Trace:
    return tuple(replace(request, at_s=request.at_s + by_s) for request in trace)
