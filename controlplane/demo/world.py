"""What the demo is made of: two versions of one model, three tenants, and the files that say so. Pure.

The configuration is written as an operator would write it, so `--keep` leaves something to edit and to
learn from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.demo.story import BASE_RATE_PER_S, Phase
from controlplane.sim.load_spec import LoadKey, LoadSpec
from controlplane.sim.physics import Physics
from controlplane.sim.pods import Fleet, FleetSpec, PodSpec

MODEL = "tide-chat"
VERSIONS = ("2024-06-01", "2024-07-15")
ROUTE = "chat"
PATH = "/v1/chat/completions"
REAL_MODEL, REAL_VERSION = "smollm2", "135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTenant:
    """A tenant with the API key that the demo's client uses."""

    id: str
    weight: int

    @property
    def api_key(self) -> str:
        """For this machine and this demo only; configuration holds nothing but its digest."""
        return f"sk-demo-{self.id}"


# No share is so small that its floor asks for a longer burst class than one second: a phase of a few seconds
# could not empty such a bucket before it is measured.
TENANTS = (
    DemoTenant(id="acme", weight=4),
    DemoTenant(id="globex", weight=3),
    DemoTenant(id="initech", weight=2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the demo's own servers listen, all on loopback."""

    gateway: int
    gateway_admin: int
    admin: int
    xds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteKey:
    """One (tenant, model version) of the demo's only route."""

    tenant: DemoTenant
    version: str

    @property
    def id(self) -> str:
        """As in `model.policy.Key.id`."""
        return f"{ROUTE}|{self.tenant.id}|{MODEL}:{self.version}"

    @property
    def weight_share(self) -> float:
        """Its part of the pool's rate when everybody wants more than that."""
        return self.tenant.weight / sum(tenant.weight for tenant in TENANTS)


def route_keys() -> tuple[RouteKey, ...]:
    """Every key, tenant by tenant."""
    return tuple(RouteKey(tenant=tenant, version=version) for tenant in TENANTS for version in VERSIONS)


def fleet_spec(*, real_model: bool) -> FleetSpec:
    """Two pods for each version; with `real_model` a real transformer serves the light, unmeasured model."""
    physics = Physics(
        max_num_seqs=256, step_base_s=0.010, step_per_seq_s=0.0001, prefill_tokens_per_s=100_000
    )
    pods = [
        PodSpec(name=f"{MODEL}-{version}-{number}", model=MODEL, version=version, physics=physics)
        for version in VERSIONS
        for number in (0, 1)
    ]
    if real_model:
        pods.append(PodSpec(name=f"{REAL_MODEL}-0", model=REAL_MODEL, version=REAL_VERSION, real=True))
    return FleetSpec(pods=tuple(pods))


def files(fleet: Fleet, ports: Ports, *, guards: bool) -> dict[str, str]:
    """Relative file name -> text of the whole configuration directory."""
    found = {"tidegate.yaml": _main_file(fleet, ports, guards=guards)}
    for tenant in TENANTS:
        digest = hashlib.sha256(tenant.api_key.encode()).hexdigest()
        found[f"tenants/{tenant.id}.yaml"] = (
            f"id: '{tenant.id}'\nweight: {tenant.weight}\nidentity:\n  api_keys:\n    - sha256: '{digest}'\n"
        )
    return found


def _main_file(fleet: Fleet, ports: Ports, *, guards: bool) -> str:
    switch = "on" if guards else "off"
    return f"""\
listener: {{address: 127.0.0.1, port: {ports.gateway}}}
gateways: {{min: 1, max: 1, stats: ['http://127.0.0.1:{ports.gateway_admin}/stats/prometheus']}}
admin: {{address: 127.0.0.1, port: {ports.admin}}}
xds: {{address: 127.0.0.1, port: {ports.xds}}}
signals:
  source: scrape
  interval_s: 0.5
  gpu_exporters: ['{fleet.dcgm_url}']
defaults:
  rate:
    base_rate: {BASE_RATE_PER_S:g}
    signal: gpu_util
    base_mode: static
    guards: {switch}
models:
{_models(fleet)}
routes:
  - {{id: {ROUTE}, path: {PATH}}}
  - {{id: models, path: /v1/models, models: [{MODEL}], model_from: fixed, fixed_model: {MODEL}, free: true}}
"""


def _models(fleet: Fleet) -> str:
    by_model: dict[str, dict[str, list[str]]] = {}
    for pod in fleet.pods:
        line = f"{{address: {pod.host}, port: {pod.port}, pod: '{pod.name}', namespace: default}}"
        by_model.setdefault(pod.model, {}).setdefault(pod.version, []).append(line)
    lines = []
    for model, versions in by_model.items():
        lines += [f"  {model}:", f"    default_version: '{min(versions)}'", "    versions:"]
        for version, endpoints in versions.items():
            lines += [f"      '{version}':", "        endpoints:"]
            lines += [f"          - {endpoint}" for endpoint in endpoints]
    return "\n".join(lines)


def load_spec(phases: tuple[Phase, ...], ports: Ports, start_at_s: float) -> LoadSpec:
    """The replayed trace, compressed phase by phase to what the story offers."""
    starts = phase_starts(phases)
    total_s = sum(phase.seconds for phase in phases)
    keys = tuple(
        LoadKey(
            name=key.id,
            model=f"{MODEL}:{key.version}",
            schedule=tuple(
                (starts[phase.id], phase.pool_offered_per_s * key.weight_share) for phase in phases
            ),
            headers=(("authorization", f"Bearer {key.tenant.api_key}"), ("x-env", "demo")),
            path=PATH,
            weight=key.tenant.weight,
        )
        for key in route_keys()
    )
    return LoadSpec(
        host="127.0.0.1",
        port=ports.gateway,
        keys=keys,
        duration_s=total_s,
        start_at_s=start_at_s,
        stream_ratio=0.3,
        spoof=True,
        evenness=0.5,
    )


def phase_starts(phases: tuple[Phase, ...]) -> Mapping[str, float]:
    """Phase id -> second of the story at which it starts."""
    at_s, starts = 0.0, {}
    for phase in phases:
        starts[phase.id] = at_s
        at_s += phase.seconds
    return starts
