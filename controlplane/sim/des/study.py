"""A policy and a scenario -> runs of the same requests under different gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from controlplane.model.policy import Policy, Pool
from controlplane.report import Criterion
from controlplane.sim.des import figures
from controlplane.sim.des.arrivals import Arrival, offered, sizes
from controlplane.sim.des.gate import Gate, OpenGate, PolicyGate, StaticGate, formula_policy
from controlplane.sim.des.physics import PodPhysics, capacity_per_s
from controlplane.sim.des.scenario import Scenario
from controlplane.sim.des.sensor import SensorSpec
from controlplane.sim.des.world import Platform, World

STATIC_RATIO = 0.9
FORMULA_BASE_RATIO = 2.0
PODS_BEHIND_A_NAME = 4  # a DNS name stands for several pods; how many, only the operator knows
_PROMETHEUS = SensorSpec(interval_s=5.0, lag_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is assumed of the world, beside the policy. None: taken from the policy."""

    seconds: float = 300.0
    seed: int = 1
    pods: int | None = None  # of each pool
    pod_rate_per_s: float | None = None  # what one pod serves of the scenario's requests
    lag_s: float | None = None
    physics: PodPhysics = field(default_factory=PodPhysics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One gate's run, in figures."""

    name: str
    rows: tuple[figures.Row, ...]
    lines: tuple[figures.Line, ...]
    served: tuple[figures.Served, ...]
    preemptions: int
    criteria: tuple[Criterion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A prepared platform and the requests that every gate of this study gets."""

    policy: Policy
    platform: Platform
    arrivals: Sequence[Arrival]
    pod_capacity_per_s: float
    ttft_slo_s: Mapping[str, float]

    @property
    def capacity_per_s(self) -> dict[str, float]:
        """Requests/s of each pool with all its pods."""
        return {pool: pods * self.pod_capacity_per_s for pool, pods in self.platform.pods.items()}

    def play(self, name: str, gate: Gate) -> Run:
        """The run of these requests through `gate`, which must be new."""
        record = World(self.platform, gate).run(self.arrivals)
        slo_s = self.ttft_slo_s
        return Run(
            name=name,
            rows=tuple(figures.rows(self.platform, record, slo_s)),
            lines=tuple(figures.lines(self.platform, record, slo_s)),
            served=tuple(figures.served(self.platform, record, slo_s, self.pod_capacity_per_s)),
            preemptions=record.preemptions,
            criteria=figures.criteria(self.platform, record, len(self.arrivals)),
        )

    def play_policy(self, name: str, policy: Policy) -> Run:
        """What this policy would have done."""
        return self.play(name, PolicyGate(policy, self.platform.keys))

    def rivals(self) -> dict[str, Gate]:
        """The plain alternatives, each with all the knowledge that an operator could give it beforehand."""
        capacity = self.capacity_per_s
        static = {pool: STATIC_RATIO * rate for pool, rate in capacity.items()}
        base = {pool: FORMULA_BASE_RATIO * rate for pool, rate in capacity.items()}
        return {
            "no limit": OpenGate(),
            f"static {STATIC_RATIO:g} of capacity": StaticGate(self.platform.keys, static),
            "M1 formula, raw counter": PolicyGate(formula_policy(self.policy, base), self.platform.keys),
        }

    def notes(self) -> list[str]:
        """What a reader should know before believing the figures."""
        found = []
        for pool in self.policy.pools:
            capacity = self.capacity_per_s.get(pool.id)
            if capacity is None:
                found.append(f"{pool.id}: no tenant may use it; not simulated")
                continue
            ratio = pool.rate.base_rate_per_s / capacity
            if not 0.5 <= ratio <= 3.0:
                found.append(
                    f"{pool.id}: its base rate of {pool.rate.base_rate_per_s:g}/s is {ratio:.2g} times what "
                    f"the simulated pods serve ({capacity:.3g}/s); --pod-rate says what one of yours serves"
                )
        return found


def prepare(policy: Policy, scenario: Scenario, settings: Settings) -> Study:
    """The platform that `policy` describes, under `scenario`. ValueError when nothing can be simulated."""
    keys = policy.keys
    if not keys:
        raise ValueError("the policy has no tenant that may use a model")
    used = {key.pool for key in keys}
    pools = {pool.id: _pods(pool, settings) for pool in policy.pools if pool.id in used}
    mean = sizes(scenario)
    physics = settings.physics
    if settings.pod_rate_per_s is not None:
        ratio = settings.pod_rate_per_s / capacity_per_s(physics, mean.prompt_tokens, mean.answer_tokens)
        physics = physics.faster(ratio)
    pod_capacity = capacity_per_s(physics, mean.prompt_tokens, mean.answer_tokens)
    capacity = {pool: pods * pod_capacity for pool, pods in pools.items()}
    return Study(
        policy=policy,
        platform=Platform(
            keys=keys,
            pods=pools,
            physics=physics,
            sensor=_sensor(policy, scenario, settings),
            scenario=scenario,
            seconds=settings.seconds,
            seed=settings.seed,
            tick_s=policy.signals.interval_s,
            gateways=policy.gateways.min_count,
        ),
        arrivals=offered(scenario, keys, capacity, seconds=settings.seconds, seed=settings.seed),
        pod_capacity_per_s=pod_capacity,
        ttft_slo_s={pool.id: pool.rate.ttft_slo_s for pool in policy.pools},
    )


def _pods(pool: Pool, settings: Settings) -> int:
    if settings.pods is not None:
        return settings.pods
    return PODS_BEHIND_A_NAME if pool.dns else max(1, len(pool.endpoints))


def _sensor(policy: Policy, scenario: Scenario, settings: Settings) -> SensorSpec:
    """As the policy reads its signals: scraped directly, or ten seconds late from Prometheus."""
    direct = SensorSpec(interval_s=policy.signals.interval_s)
    spec = _PROMETHEUS if policy.signals.source == "prometheus" else direct
    if settings.lag_s is not None:
        spec = replace(spec, lag_s=settings.lag_s)
    if scenario.noise_ratio is not None:
        spec = replace(spec, noise_ratio=scenario.noise_ratio)
    if scenario.lost_ratio is not None:
        spec = replace(spec, lost_ratio=scenario.lost_ratio)
    return spec
