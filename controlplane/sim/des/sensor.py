"""Pods -> what a control plane gets to know of them: late, noisy, and sometimes not at all.

A scrape reads every pod of a pool at once. Its time is honest (`sampled_at_s` is when the value was true), it
arrives `lag_s` later, its values are multiplied by 1 + noise, and some scrapes are lost. A lost scrape is
no reading, not a zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.model.signal import Load, Reading
from controlplane.sim.des.job import Job, Outcome
from controlplane.sim.des.pod import Pod

_WINDOW_S = 30.0  # of quantiles and of completed requests
_BOUNDED = {"gpu_util_percent": 100.0, "kv_cache_usage_ratio": 1.0, "failure_ratio": 1.0}
_EXACT = frozenset({"endpoints_up"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorSpec:
    """How well the pods can be seen."""

    interval_s: float = 1.0  # between scrapes
    lag_s: float = 0.5  # from a scrape to the judgement that may use it
    noise_ratio: float = 0.0  # standard deviation of a reading, as a part of it; a gauge is read exactly
    lost_ratio: float = 0.01  # scrapes that bring nothing


@dataclass(slots=True)
class _Window:
    """Requests that ended lately, and where the counters stood at the last scrape."""

    first_tokens: deque[Job] = field(default_factory=deque)
    ended: deque[Job] = field(default_factory=deque)
    busy_s: dict[int, float] = field(default_factory=dict)  # by pod
    at_s: float = 0.0


class Sensor:
    """The metrics of one pool."""

    def __init__(self, spec: SensorSpec, rng: np.random.Generator) -> None:
        self.spec = spec
        self._rng = rng
        self._window = _Window()
        self._coming: deque[tuple[float, Load]] = deque()
        self._load = Load()

    def ended(self, job: Job) -> None:
        """A request that completed, gave up or was lost."""
        self._window.ended.append(job)

    def scrape(self, now_s: float, pods: Sequence[Pod]) -> dict[str, float]:
        """Read the pods. Returns the truth; what is believed comes `lag_s` later, unless it gets lost."""
        truth = self._truth(now_s, pods)
        noise = self._rng.standard_normal(len(truth)) * self.spec.noise_ratio
        lost = self._rng.random() < self.spec.lost_ratio
        if not lost:
            readings = {
                name: Reading(
                    value=_noisy(name, value, dice), sampled_at_s=now_s, count=len(pods), source="sim"
                )
                for (name, value), dice in zip(truth.items(), noise, strict=True)
            }
            self._coming.append((now_s + self.spec.lag_s, Load(readings=readings)))
        return truth

    def load(self, now_s: float) -> Load:
        """The newest readings that have arrived."""
        while self._coming and self._coming[0][0] <= now_s:
            self._load = self._coming.popleft()[1]
        return self._load

    def _truth(self, now_s: float, pods: Sequence[Pod]) -> dict[str, float]:
        window = self._window
        for pod in pods:
            window.first_tokens.extend(pod.first_tokens)
            pod.first_tokens.clear()
        while window.first_tokens and window.first_tokens[0].first_s < now_s - _WINDOW_S:
            window.first_tokens.popleft()
        while window.ended and window.ended[0].end_s < now_s - _WINDOW_S:
            window.ended.popleft()
        up = [pod for pod in pods if pod.up]
        truth = {"endpoints_up": float(len(up))}
        if up:
            span_s = max(1e-9, now_s - window.at_s)
            busy_s = [pod.busy_s(now_s) - window.busy_s.get(id(pod), 0.0) for pod in up]
            truth |= {
                "gpu_util_percent": 100.0 * min(1.0, float(np.mean(busy_s)) / span_s),
                "kv_cache_usage_ratio": float(np.mean([pod.kv_usage_ratio for pod in up])),
                "waiting_requests": float(np.mean([pod.waiting for pod in up])),
                "running_requests": float(np.mean([pod.running for pod in up])),
            }
        window.busy_s, window.at_s = {id(pod): pod.busy_s(now_s) for pod in up}, now_s
        return truth | self._of_requests(now_s)

    def _of_requests(self, now_s: float) -> dict[str, float]:
        window = self._window
        done = [job for job in window.ended if job.outcome is Outcome.DONE]
        found = {"completed_per_s": len(done) / max(1.0, min(_WINDOW_S, now_s))}
        if window.ended:
            failed = sum(job.outcome is Outcome.FAILED for job in window.ended)
            found["failure_ratio"] = failed / len(window.ended)
        if window.first_tokens:
            found["ttft_p95_s"] = _p95([job.first_s - job.arrived_s for job in window.first_tokens])
        if done:
            found["latency_p95_s"] = _p95([job.end_s - job.arrived_s for job in done])
        return found


def _p95(durations_s: list[float]) -> float:
    return float(np.quantile(durations_s, 0.95))


def _noisy(name: str, value: float, dice: float) -> float:
    if name in _EXACT:
        return value
    return float(min(_BOUNDED.get(name, np.inf), max(0.0, value * (1.0 + dice))))
