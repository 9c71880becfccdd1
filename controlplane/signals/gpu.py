"""GPU samples (DCGM) -> the GPUs of each pool, joined by pod and namespace.

Who uses a GPU is written in one of three label layouts: `pod` (the exporter's own page, or honorLabels:
true), `exported_pod` (a Prometheus with the chart's default honorLabels: false, where `pod` is the exporter
itself), and `pod_name` (exporters before 2.x). An exporter knows nothing about models, so GPUs reach a pool
only through the pods of its endpoints; averaging by node instead would mix tenants that share a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from controlplane.model.policy import Endpoint, Pool
from controlplane.model.signal import Reading
from controlplane.signals.catalogue import Candidate, Catalogue
from controlplane.signals.join import absent, fresh
from controlplane.signals.measure import join
from controlplane.signals.text import Sample


class Layout(StrEnum):
    """Where the labels say who uses a GPU."""

    POD = "pod"
    EXPORTED_POD = "exported_pod"
    POD_NAME = "pod_name"
    NONE = "none"  # no Kubernetes labels, or the GPU is idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One value of one GPU (or MIG slice) that a pod uses."""

    id: str
    pod: str
    namespace: str
    metric: str
    value: float
    time_s: float


_LAYOUTS: tuple[tuple[Layout, str, str], ...] = (
    (Layout.EXPORTED_POD, "exported_pod", "exported_namespace"),
    (Layout.POD, "pod", "namespace"),
    (Layout.POD_NAME, "pod_name", "pod_namespace"),
)


def owner(labels: Mapping[str, str]) -> tuple[Layout, str, str]:
    """(layout, pod, namespace) of a sample; layout `none` when no pod is named."""
    for layout, pod, namespace in _LAYOUTS:
        if labels.get(pod):
            return layout, labels[pod], labels.get(namespace, "")
    return Layout.NONE, "", ""


@dataclass(slots=True)
class Gpus:
    """All GPUs of all exporters at one time, by signal; and what was dropped, for people."""

    by_signal: dict[str, dict[str, Gpu]]
    layouts: dict[Layout, int]
    dropped: dict[str, str]
    exposed: set[str]  # signals of which at least one series was on a page

    def of(self, signal: str) -> Iterable[Gpu]:
        """The GPUs with a usable value of `signal`."""
        return self.by_signal.get(signal, {}).values()


def gather(pages: Sequence[tuple[Mapping[str, Sequence[Sample]], float]], catalogue: Catalogue) -> Gpus:
    """The usable GPU values of `pages` (samples by name, time). The newest value of a GPU wins."""
    gpus = Gpus(by_signal={}, layouts={}, dropped={}, exposed=set())
    for samples, time_s in pages:
        for name, candidates in catalogue.engine("dcgm").signals.items():
            found = next((each for each in candidates if samples.get(each.metric)), None)
            if found is not None:
                gpus.exposed.add(name)
                _take(gpus, name, found, samples[found.metric], time_s, catalogue)
    return gpus


def _take(
    gpus: Gpus, name: str, found: Candidate, samples: Sequence[Sample], page_s: float, catalogue: Catalogue
) -> None:
    signal = catalogue.signals[name]
    kept = gpus.by_signal.setdefault(name, {})
    for sample in samples:
        layout, pod, namespace = owner(sample.labels)
        gpus.layouts[layout] = gpus.layouts.get(layout, 0) + 1
        value = signal.admit(sample.value * found.scale)
        if value is None:
            gpus.dropped[name] = f"{found.metric} = {sample.value:g} is outside {signal.limits}"
        elif pod:
            time_s = page_s if sample.time_s is None else min(sample.time_s, page_s)
            id = _id(sample.labels)
            key = f"{id}|{namespace}|{pod}"  # a time-sliced GPU serves several pods
            old = kept.get(key)
            if old is None or old.time_s <= time_s:
                kept[key] = Gpu(
                    id=id, pod=pod, namespace=namespace, metric=found.metric, value=value, time_s=time_s
                )


def _id(labels: Mapping[str, str]) -> str:
    """What tells one GPU or MIG slice from another."""
    device = labels.get("UUID") or f"{labels.get('Hostname', '')}/{labels.get('gpu', '')}"
    return f"{device}/{labels.get('GPU_I_ID', '')}"


def readings(
    pool: Pool, gpus: Gpus, catalogue: Catalogue, *, fresh_s: float, source: str, problem: str = ""
) -> dict[str, Reading]:
    """The GPU signals of `pool`; absent with the reason when no GPU of its pods is known."""
    return {
        name: _reading(pool, name, gpus, catalogue, fresh_s=fresh_s, source=source, problem=problem)
        for name in catalogue.engine("dcgm").signals
    }


def _reading(
    pool: Pool, name: str, gpus: Gpus, catalogue: Catalogue, *, fresh_s: float, source: str, problem: str
) -> Reading:
    mine = [gpu for gpu in gpus.of(name) if any(_uses(endpoint, gpu) for endpoint in pool.endpoints)]
    spaces = {gpu.namespace for gpu in mine}
    if len(spaces) > 1 and any(endpoint.pod and not endpoint.namespace for endpoint in pool.endpoints):
        why = f"its pods are in several namespaces ({', '.join(sorted(spaces))}); set `namespace`"
        return absent([why], source=source)
    chosen = fresh(mine, lambda gpu: gpu.time_s, fresh_s)
    if not chosen:
        signal = catalogue.signals[name]
        gone = bool(gpus.exposed) and name not in gpus.exposed and not signal.optional
        return absent([_why(pool, name, gpus, catalogue, problem)], source=source, not_exposed=gone)
    value = join(catalogue.signals[name].across, [gpu.value for gpu in chosen])
    metrics = " or ".join(sorted({gpu.metric for gpu in chosen}))
    oldest_s = min(gpu.time_s for gpu in chosen)
    return Reading(value=value, sampled_at_s=oldest_s, count=len(chosen), source=f"{source} {metrics}")


def _uses(endpoint: Endpoint, gpu: Gpu) -> bool:
    return bool(endpoint.pod) and endpoint.pod == gpu.pod and endpoint.namespace in (None, "", gpu.namespace)


def _why(pool: Pool, name: str, gpus: Gpus, catalogue: Catalogue, problem: str) -> str:
    """Why a pool has no GPU value, most specific first."""
    if problem:
        return problem
    pods = [endpoint.pod for endpoint in pool.endpoints if endpoint.pod]
    if not pods:
        return "no endpoint names its pod, which joins GPUs to it; set `pod`"
    if name not in gpus.exposed:
        tried = ", ".join(each.metric for each in catalogue.engine("dcgm").signals[name])
        return f"no GPU exporter exposes it; tried {tried}"
    if name in gpus.dropped:
        return gpus.dropped[name]
    if set(gpus.layouts) == {Layout.NONE}:
        return "GPU metrics name no pod: run the exporter with DCGM_EXPORTER_KUBERNETES=true"
    return f"no GPU of pods {', '.join(pods[:3])} among {len(list(gpus.of(name)))} GPUs"
