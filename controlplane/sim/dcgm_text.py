"""`/metrics` as NVIDIA's dcgm-exporter shows it: GPUs in, families out.

Two layouts of the same truth. `pod`: the exporter's own text, where `pod` is the GPU's user. `exported_pod`:
the series as a Prometheus keeps them under `honorLabels: false` (the chart's default), where `pod` is the
exporter and the user has moved to `exported_pod`. A GPU nobody uses has empty user labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from controlplane.sim.exposition import Family, Labels

BLANK = 9223372036854775794  # DCGM's "not supported": a number, to whoever does not know it


class Layout(StrEnum):
    """Which labels name the pod that uses a GPU."""

    POD = "pod"
    EXPORTED_POD = "exported_pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU at one moment; `pod` is None while nobody uses it, a None value is not exported."""

    index: int
    pod: str | None
    namespace: str = "default"
    container: str = "vllm"
    util_percent: float | int | None = 0
    sm_active_ratio: float | None = None
    memory_used_ratio: float = 0.9
    memory_total_mib: int = 24576


def families(gpus: list[Gpu], *, layout: Layout = Layout.POD, hostname: str = "gpu-node-0") -> list[Family]:
    """GPU_UTIL (percent), memory (MiB) and, where known, SM_ACTIVE (ratio; not exported by default)."""
    labelled = [(gpu, _labels(gpu, layout, hostname)) for gpu in gpus]
    used = {gpu.index: int(gpu.memory_used_ratio * gpu.memory_total_mib) for gpu in gpus}
    return [
        Family(
            "DCGM_FI_DEV_GPU_UTIL",
            "gauge",
            "GPU utilization (in %).",
            tuple((labels, gpu.util_percent) for gpu, labels in labelled if gpu.util_percent is not None),
        ),
        Family(
            "DCGM_FI_DEV_FB_USED",
            "gauge",
            "Framebuffer memory used (in MiB).",
            tuple((labels, used[gpu.index]) for gpu, labels in labelled),
        ),
        Family(
            "DCGM_FI_DEV_FB_FREE",
            "gauge",
            "Framebuffer memory free (in MiB).",
            tuple((labels, gpu.memory_total_mib - used[gpu.index]) for gpu, labels in labelled),
        ),
        Family(
            "DCGM_FI_PROF_SM_ACTIVE",
            "gauge",
            "The ratio of cycles an SM has at least 1 warp assigned.",
            tuple(
                (labels, gpu.sm_active_ratio) for gpu, labels in labelled if gpu.sm_active_ratio is not None
            ),
        ),
    ]


def _labels(gpu: Gpu, layout: Layout, hostname: str) -> Labels:
    hardware = (
        ("gpu", str(gpu.index)),
        ("UUID", f"GPU-00000000-0000-0000-0000-{gpu.index:012d}"),
        ("pci_bus_id", f"00000000:{gpu.index:02X}:00.0"),
        ("device", f"nvidia{gpu.index}"),
        ("modelName", "NVIDIA L4"),
        ("Hostname", hostname),
        ("DCGM_FI_DRIVER_VERSION", "550.144.03"),
    )
    user = (
        ("container", gpu.container if gpu.pod else ""),
        ("namespace", gpu.namespace if gpu.pod else ""),
        ("pod", gpu.pod or ""),
    )
    if layout is Layout.POD:
        return (*hardware, *user)
    exporter = (
        ("container", "nvidia-dcgm-exporter"),
        ("namespace", "gpu-operator"),
        ("pod", "nvidia-dcgm-exporter-x7k2p"),
    )
    # Prometheus drops empty labels, so an idle GPU has no `exported_` labels at all.
    return (*hardware, *exporter, *((f"exported_{name}", value) for name, value in user if value))
