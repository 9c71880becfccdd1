"""GPUs reach a pool through the pods of its endpoints, in every label layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.model.policy import Endpoint, Pool
from controlplane.signals import gpu
from controlplane.signals.catalogue import load_catalogue
from controlplane.signals.text import Reader
from controlplane.sim.dcgm_text import BLANK, Gpu, Layout

LAYOUTS = pytest.mark.parametrize("layout", list(Layout), ids=lambda layout: layout.value)


def gpus(*rows: tuple[str | None, float | None]) -> list[Gpu]:
    return [Gpu(index=n, pod=pod, util_percent=util) for n, (pod, util) in enumerate(rows)]


@LAYOUTS
async def test_the_mean_is_over_the_gpus_of_the_pools_pods_only(world: Any, layout: Layout) -> None:
    world.show_gpus(*gpus(("pod-0", 80), ("pod-1", 40), ("other", 100), (None, 0)), layout=layout)
    reading = (await world.read())["gpu_util_percent"]
    assert reading.value == 60
    assert reading.count == 2
    assert reading.source == "scrape DCGM_FI_DEV_GPU_UTIL"


@LAYOUTS
async def test_the_layout_is_reported(world: Any, layout: Layout) -> None:
    world.show_gpus(*gpus(("pod-0", 80), (None, 0)), layout=layout)
    await world.read()
    assert gpu.Layout(layout.value) in world.source.layouts


@LAYOUTS
async def test_a_blank_gpu_is_dropped_and_does_not_move_the_mean(world: Any, layout: Layout) -> None:
    world.show_gpus(*gpus(("pod-0", 70), ("pod-1", BLANK)), layout=layout)
    reading = (await world.read())["gpu_util_percent"]
    assert (reading.value, reading.count) == (70, 1)


async def test_only_blank_gpus_are_no_value_with_the_reason(world: Any) -> None:
    world.show_gpus(*gpus(("pod-0", BLANK), ("pod-1", BLANK)))
    reading = (await world.read())["gpu_util_percent"]
    assert reading.value is None
    assert "DCGM_FI_DEV_GPU_UTIL = 9.22337e+18 is outside 0..100 percent" in reading.absent


async def test_gpus_of_a_pod_that_is_not_ours_say_nothing_about_us(world: Any) -> None:
    world.show_gpus(*gpus(("other", 95)))
    reading = (await world.read())["gpu_util_percent"]
    assert reading.value is None
    assert "no GPU of pods pod-0, pod-1 among 1 GPUs" in reading.absent


async def test_idle_gpus_without_labels_say_nothing(world: Any) -> None:
    world.show_gpus(*gpus((None, 0), (None, 0)))
    reading = (await world.read())["gpu_util_percent"]
    assert reading.value is None
    assert reading.absent


async def test_a_pod_of_the_same_name_in_another_namespace_is_another_pod(world: Any) -> None:
    own, foreign = gpus(("pod-0", 50), ("pod-1", 100))
    world.show_gpus(own, replace(foreign, namespace="elsewhere"))
    assert (await world.read())["gpu_util_percent"].value == 50


async def test_an_exporter_that_is_down_is_named(world: Any) -> None:
    reading = (await world.read())["gpu_util_percent"]
    assert reading.value is None
    assert "http://dcgm/metrics: connection refused" in reading.absent


async def test_an_exporter_that_falls_silent_leaves_its_last_value_to_age(world: Any) -> None:
    world.show_gpus(*gpus(("pod-0", 50)))
    await world.read()
    del world.pages.pages["http://dcgm/metrics"]
    reading = (await world.read(after_s=20.0))["gpu_util_percent"]
    assert reading.value == 50
    assert world.age_s(reading) == 20.0


async def test_sm_active_is_optional_and_not_missed(world: Any) -> None:
    world.show_gpus(*gpus(("pod-0", 50)))
    reading = (await world.read())["sm_active_ratio"]
    assert reading.value is None
    assert not reading.not_exposed


async def test_a_vanished_utilisation_is_flagged(world: Any) -> None:
    world.show_gpus(Gpu(index=0, pod="pod-0", util_percent=None, sm_active_ratio=0.5))
    found = await world.read()
    assert found["sm_active_ratio"].value == 0.5
    assert found["gpu_util_percent"].not_exposed


def pool(*endpoints: Endpoint) -> Pool:
    return Pool(model="llama", version="v1", endpoints=endpoints)


def gathered(text: str) -> gpu.Gpus:
    page = Reader(lambda name: name).read(text)
    return gpu.gather([(page.samples, 100.0)], load_catalogue())


def test_real_text_with_pod_labels_joins() -> None:
    text = 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a",container="worker",namespace="ray-llm",pod="ray-1"} 33\n'
    endpoint = Endpoint(address="x", port=1, pod="ray-1", namespace="ray-llm")
    found = gpu.readings(pool(endpoint), gathered(text), load_catalogue(), fresh_s=1.0, source="t")
    assert found["gpu_util_percent"].value == 33


def test_labels_of_exporters_before_2_join() -> None:
    text = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="a",pod_namespace="n",pod_name="p"} 33\n'
    endpoint = Endpoint(address="x", port=1, pod="p", namespace="n")
    found = gpu.readings(pool(endpoint), gathered(text), load_catalogue(), fresh_s=1.0, source="t")
    assert found["gpu_util_percent"].value == 33


def test_without_a_namespace_one_pod_is_found_and_two_are_refused() -> None:
    one = 'DCGM_FI_DEV_GPU_UTIL{UUID="a",namespace="n",pod="p"} 33\n'
    two = one + 'DCGM_FI_DEV_GPU_UTIL{UUID="b",namespace="m",pod="p"} 99\n'
    endpoint = Endpoint(address="x", port=1, pod="p")
    found = gpu.readings(pool(endpoint), gathered(one), load_catalogue(), fresh_s=1.0, source="t")
    assert found["gpu_util_percent"].value == 33
    found = gpu.readings(pool(endpoint), gathered(two), load_catalogue(), fresh_s=1.0, source="t")
    assert "several namespaces (m, n)" in found["gpu_util_percent"].absent


def test_endpoints_without_a_pod_say_what_to_set() -> None:
    endpoint = Endpoint(address="x", port=1)
    text = 'DCGM_FI_DEV_GPU_UTIL{UUID="a",namespace="n",pod="p"} 33\n'
    found = gpu.readings(pool(endpoint), gathered(text), load_catalogue(), fresh_s=1.0, source="t")
    assert "set `pod`" in found["gpu_util_percent"].absent


def test_an_exporter_without_kubernetes_labels_says_what_to_set() -> None:
    endpoint = Endpoint(address="x", port=1, pod="p")
    text = 'DCGM_FI_DEV_GPU_UTIL{UUID="a"} 33\n'
    found = gpu.readings(pool(endpoint), gathered(text), load_catalogue(), fresh_s=1.0, source="t")
    assert "DCGM_EXPORTER_KUBERNETES=true" in found["gpu_util_percent"].absent


@given(st.permutations([("pod-0", 10), ("pod-1", 20), ("other", 90), ("pod-0", 60)]))
def test_the_order_of_lines_changes_nothing(rows: list[tuple[str, int]]) -> None:
    text = "".join(
        f'DCGM_FI_DEV_GPU_UTIL{{UUID="{pod}{util}",namespace="n",pod="{pod}"}} {util}\n' for pod, util in rows
    )
    endpoints = [Endpoint(address="x", port=1, pod=f"pod-{n}", namespace="n") for n in range(2)]
    found = gpu.readings(pool(*endpoints), gathered(text), load_catalogue(), fresh_s=1.0, source="t")
    assert found["gpu_util_percent"].value == pytest.approx(30.0)
