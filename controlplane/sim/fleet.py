"""Which servers to simulate (a spec), and where they listen once they do (a fleet). Both are plain JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from controlplane.sim.dcgm_text import Layout
from controlplane.sim.physics import Physics
from controlplane.sim.surface import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """One simulated server. `aliases`: further model names it answers to."""

    name: str
    model: str
    version: str
    port: int = 0  # 0: any free one
    namespace: str = "default"
    gpus: int = 1
    aliases: tuple[str, ...] = ()
    real: bool = False  # a real transformer instead of the physics (extra `real-model`)
    physics: Physics = field(default_factory=Physics)

    @property
    def identity(self) -> Identity:
        models = (self.model, f"{self.model}:{self.version}", *self.aliases)
        return Identity(name=self.name, models=models, namespace=self.namespace, gpus=self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """The servers of one process, and the DCGM exporter of the node they run on."""

    pods: tuple[PodSpec, ...]
    host: str = "127.0.0.1"
    time_scale: float = 1.0  # 10: everything ten times as fast
    dcgm_port: int | None = 0  # None: no exporter beside the pods' own /dcgm/metrics
    dcgm_layout: Layout = Layout.POD
    idle_gpus: int = 0  # GPUs of the node that nobody uses

    @staticmethod
    def from_json(document: dict[str, Any]) -> FleetSpec:
        """The inverse of `dataclasses.asdict`; an unknown field is a TypeError."""
        pods = tuple(
            PodSpec(
                **{
                    **pod,
                    "physics": Physics(**pod.get("physics", {})),
                    "aliases": tuple(pod.get("aliases", ())),
                }
            )
            for pod in document["pods"]
        )
        layout = Layout(document.get("dcgm_layout", Layout.POD))
        return FleetSpec(**{**document, "pods": pods, "dcgm_layout": layout})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Where one simulated server listens."""

    name: str
    model: str
    version: str
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Where the servers of one process listen; `dcgm_url` is the exporter's /metrics."""

    pods: tuple[Pod, ...]
    dcgm_url: str | None

    def pod(self, name: str) -> Pod:
        return next(pod for pod in self.pods if pod.name == name)

    @staticmethod
    def from_json(document: dict[str, Any]) -> Fleet:
        return Fleet(pods=tuple(Pod(**pod) for pod in document["pods"]), dcgm_url=document["dcgm_url"])
