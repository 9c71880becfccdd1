"""One run: clients, gateways, pods, metrics and a gate on one virtual clock.

    arrivals -> gate -> pod with the fewer requests of two -> first token, completion -> counters
                 ^                                                                          |
                 +-- limits <- decide.step, once a tick <- readings, late and noisy <-------+

Nothing here knows the time of day or draws a number that does not follow from the seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.model.policy import Key
from controlplane.model.signal import KeyTraffic, Observation
from controlplane.sim.des.arrivals import Arrival
from controlplane.sim.des.gate import FORBIDDEN, Gate
from controlplane.sim.des.job import Job, Outcome
from controlplane.sim.des.physics import PodPhysics
from controlplane.sim.des.pod import Pod
from controlplane.sim.des.scenario import Scenario
from controlplane.sim.des.sensor import Sensor, SensorSpec

PATIENCE_S = 10.0  # a client without a first token leaves
DETECT_S = 3.0  # until a lost pod gets no more requests
SAMPLE_S = 1.0  # of the record


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What is simulated, whatever decides at the gateway."""

    keys: Sequence[Key]
    pods: Mapping[str, int]  # by Pool.id
    physics: PodPhysics
    sensor: SensorSpec
    scenario: Scenario
    seconds: float
    seed: int
    tick_s: float = 1.0
    gateways: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A pool at one second of a run, as it really was."""

    at_s: float
    in_flight: int
    waiting: float  # per pod
    kv_usage_ratio: float
    gpu_util_ratio: float
    pods_up: int
    rate_per_s: float | None  # None: no limit that the gate would name
    factor: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All that happened."""

    jobs: tuple[Job, ...]
    moments: Mapping[str, tuple[Moment, ...]]  # by Pool.id
    held: Mapping[str, float]  # requests in the pods of each pool, on average over the run
    left_in_pods: int  # requests that the pods hold at the end
    preemptions: int
    overdrawn_ratio: float


@dataclass(slots=True)
class _PoolWorld:
    pods: list[Pod]
    routable: list[Pod]
    sensor: Sensor
    busy_s: float = 0.0  # of all its pods at the last sample
    moments: list[Moment] = field(default_factory=list)
    lost: list[Pod] = field(default_factory=list)
    held_request_s: float = 0.0  # requests in its pods, integrated over time ...
    held_until_s: float = 0.0  # ... up to here

    def hold(self, now_s: float) -> None:
        """Integrate up to now; to be called before a pod takes or gives up a request."""
        self.held_request_s += sum(pod.load for pod in self.pods) * (now_s - self.held_until_s)
        self.held_until_s = now_s


class World:
    """The state of a run; `run` plays it to its end."""

    def __init__(self, platform: Platform, gate: Gate) -> None:
        self._platform = platform
        self._gate = gate
        self._dice = random.Random(platform.seed)
        self._pools = {
            pool: self._pool(number, pods) for number, (pool, pods) in enumerate(platform.pods.items())
        }
        self._pool_of = [self._pools[key.pool] for key in platform.keys]
        self._jobs: list[Job] = []
        self._impatient: deque[Job] = deque()
        self._steps: list[tuple[float, int, Pod, _PoolWorld]] = []
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0
        self._rates: dict[str, tuple[float | None, float | None]] = dict.fromkeys(platform.pods, (None, None))
        count = len(platform.keys)
        self._offered, self._limited, self._would_limit = [0] * count, [0] * count, [0] * count

    def _pool(self, number: int, pods: int) -> _PoolWorld:
        platform = self._platform
        made = [Pod(platform.physics, n) for n in range(pods)]
        rng = np.random.default_rng([platform.seed, number, 1])
        return _PoolWorld(pods=made, routable=list(made), sensor=Sensor(platform.sensor, rng))

    def run(self, arrivals: Sequence[Arrival]) -> Record:
        """Play `arrivals`, in order of time, against the gate."""
        platform = self._platform
        self._at(0.0, self._tick)
        self._at(platform.sensor.interval_s, self._scrape)
        self._at(SAMPLE_S, self._sample)
        if platform.scenario.pod_lost and platform.scenario.event_s is not None:
            self._at(platform.scenario.event_s, self._lose_pods)
        self._play(arrivals)
        for pool in self._pools.values():
            pool.hold(platform.seconds)
        pods = [pod for pool in self._pools.values() for pod in (*pool.pods, *pool.lost)]
        return Record(
            jobs=tuple(self._jobs),
            moments={name: tuple(pool.moments) for name, pool in self._pools.items()},
            held={name: pool.held_request_s / platform.seconds for name, pool in self._pools.items()},
            left_in_pods=sum(pod.load for pod in pods),
            preemptions=sum(pod.preemptions for pod in pods),
            overdrawn_ratio=self._gate.overdrawn_ratio,
        )

    def _play(self, arrivals: Sequence[Arrival]) -> None:
        """Whatever is next: an event, the end of a step, a client leaving, an arrival; so at a tie."""
        place, end_s = 0, self._platform.seconds
        while True:
            arrival_s = arrivals[place].at_s if place < len(arrivals) else math.inf
            step_s = self._steps[0][0] if self._steps else math.inf
            event_s = self._events[0][0] if self._events else math.inf
            leave_s = self._next_to_leave_s()
            now_s = min(arrival_s, step_s, event_s, leave_s)
            if now_s > end_s:
                return
            if now_s == event_s:
                _, _, act = heapq.heappop(self._events)
                act(now_s)
            elif now_s == step_s:
                _, _, pod, pool = heapq.heappop(self._steps)
                self._finish_step(now_s, pod, pool)
            elif now_s == leave_s:
                self._leave(now_s)
            else:
                self._arrive(arrivals[place])
                place += 1

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_s, self._order, act))

    # Requests

    def _arrive(self, arrival: Arrival) -> None:
        now_s = arrival.at_s
        job = Job(arrival.key, now_s, arrival.prompt_tokens, arrival.answer_tokens)
        self._jobs.append(job)
        gateway = self._dice.randrange(self._platform.gateways)
        rule = self._gate.refusal(now_s, gateway, job)
        if rule == FORBIDDEN:
            job.outcome, job.end_s = Outcome.FORBIDDEN, now_s
            return
        self._offered[job.key] += 1
        if rule is not None and self._gate.enforced:
            self._limited[job.key] += 1
            job.outcome, job.end_s = Outcome.LIMITED, now_s
            return
        if rule is not None:
            self._would_limit[job.key] += 1
            job.would_limit = True
        self._send(now_s, job, self._pool_of[job.key])

    def _send(self, now_s: float, job: Job, pool: _PoolWorld) -> None:
        """To the pod with fewer requests of two drawn at random, as Envoy's LEAST_REQUEST does."""
        if not pool.routable:
            self._fail(now_s, job, pool)
            return
        pod, other = self._dice.choice(pool.routable), self._dice.choice(pool.routable)
        if other.load < pod.load:
            pod = other
        if not pod.up or not pod.fits(job):
            self._fail(now_s, job, pool)
            return
        pool.hold(now_s)
        was_idle = pod.next_s == math.inf
        pod.submit(job, now_s)
        self._impatient.append(job)
        if was_idle:
            self._expect(pod, pool)

    def _expect(self, pod: Pod, pool: _PoolWorld) -> None:
        if pod.next_s < math.inf:
            self._order += 1
            heapq.heappush(self._steps, (pod.next_s, self._order, pod, pool))

    def _finish_step(self, now_s: float, pod: Pod, pool: _PoolWorld) -> None:
        if not pod.up or pod.next_s != now_s:
            return  # of a pod that is gone
        pool.hold(now_s)
        for job in pod.finish_step():
            pool.sensor.ended(job)
        self._expect(pod, pool)

    def _next_to_leave_s(self) -> float:
        waiting = self._impatient
        while waiting and (waiting[0].first_s >= 0 or waiting[0].outcome is not Outcome.OPEN):
            waiting.popleft()
        return waiting[0].arrived_s + PATIENCE_S if waiting else math.inf

    def _leave(self, now_s: float) -> None:
        job = self._impatient.popleft()
        pool = self._pool_of[job.key]
        pool.hold(now_s)
        pool.pods[job.pod].abort(job)
        job.outcome, job.end_s = Outcome.GAVE_UP, now_s
        pool.sensor.ended(job)

    def _fail(self, now_s: float, job: Job, pool: _PoolWorld) -> None:
        job.outcome, job.end_s = Outcome.FAILED, now_s
        pool.sensor.ended(job)

    # What happens by itself

    def _tick(self, now_s: float) -> None:
        platform = self._platform
        pools = self._gate.tick(
            Observation(
                now_s=now_s,
                loads={name: pool.sensor.load(now_s) for name, pool in self._pools.items()},
                traffic=self._traffic(),
                gateways=platform.gateways,
            )
        )
        for name, decided in pools.items():
            self._rates[name] = (decided.rate_per_s, decided.factor)
        self._at(now_s + platform.tick_s, self._tick)

    def _traffic(self) -> dict[str, KeyTraffic]:
        """The gateways' counters since the last tick; they are local, so neither late nor noisy."""
        tick_s = self._platform.tick_s
        traffic = {
            key.id: KeyTraffic(
                offered_per_s=self._offered[n] / tick_s,
                limited_per_s=self._limited[n] / tick_s,
                would_limit_per_s=self._would_limit[n] / tick_s,
            )
            for n, key in enumerate(self._platform.keys)
            if self._offered[n]
        }
        for counter in (self._offered, self._limited, self._would_limit):
            counter[:] = [0] * len(counter)
        return traffic

    def _scrape(self, now_s: float) -> None:
        for pool in self._pools.values():
            pool.sensor.scrape(now_s, pool.pods)
        self._at(now_s + self._platform.sensor.interval_s, self._scrape)

    def _sample(self, now_s: float) -> None:
        for name, pool in self._pools.items():
            up = [pod for pod in pool.pods if pod.up]
            busy_s = sum(pod.busy_s(now_s) for pod in (*pool.pods, *pool.lost))
            rate, factor = self._rates[name]
            moment = Moment(
                at_s=now_s,
                in_flight=sum(pod.load for pod in up),
                waiting=sum(pod.waiting for pod in up) / max(1, len(up)),
                kv_usage_ratio=sum(pod.kv_usage_ratio for pod in up) / max(1, len(up)),
                gpu_util_ratio=min(1.0, (busy_s - pool.busy_s) / SAMPLE_S / max(1, len(up))),
                pods_up=len(up),
                rate_per_s=rate,
                factor=factor,
            )
            pool.busy_s = busy_s
            pool.moments.append(moment)
        self._at(now_s + SAMPLE_S, self._sample)

    def _lose_pods(self, now_s: float) -> None:
        """One pod of each pool dies with all it holds; gateways notice later."""
        for pool in self._pools.values():
            pod = pool.pods[0]
            pool.hold(now_s)
            for job in pod.lose(now_s):
                self._fail(now_s, job, pool)
        self._at(now_s + DETECT_S, self._notice)
        if self._platform.scenario.pod_back_s is not None:
            self._at(self._platform.scenario.pod_back_s, self._return_pods)

    def _notice(self, now_s: float) -> None:
        del now_s
        for pool in self._pools.values():
            pool.routable = [pod for pod in pool.routable if pod.up]

    def _return_pods(self, now_s: float) -> None:
        del now_s
        for pool in self._pools.values():
            pool.lost.append(pool.pods[0])
            pool.pods[0] = Pod(self._platform.physics, 0)
            pool.routable = list(pool.pods)
