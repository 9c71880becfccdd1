"""Metrics come late, noisy or not at all, and say when they were true."""

from __future__ import annotations

import numpy as np
import pytest

from controlplane.model.signal import Load
from controlplane.sim.des.job import Job
from controlplane.sim.des.physics import PodPhysics
from controlplane.sim.des.pod import Pod
from controlplane.sim.des.sensor import Sensor, SensorSpec


def sensor(**spec: float) -> Sensor:
    return Sensor(SensorSpec(**spec), np.random.default_rng(1))


def busy_pod() -> Pod:
    pod = Pod(PodPhysics(), 0)
    for _ in range(40):
        pod.submit(Job(0, 0.0, 1000, 200), 0.0)
    while pod.next_s < 1.0:
        pod.finish_step()
    return pod


def test_a_reading_arrives_after_its_lag_with_the_time_it_was_true() -> None:
    found = sensor(lag_s=10.0, lost_ratio=0.0)
    found.scrape(1.0, [busy_pod()])
    assert found.load(10.9) == Load()
    reading = found.load(11.0).get("kv_cache_usage_ratio")
    assert reading.sampled_at_s == 1.0
    assert reading.value is not None
    assert reading.value > 0.05


def test_a_lost_scrape_leaves_the_last_readings() -> None:
    found = sensor(lag_s=0.0, lost_ratio=1.0)
    found.scrape(1.0, [busy_pod()])
    assert found.load(5.0) == Load()


def test_a_pool_without_pods_says_so_and_nothing_more_of_them() -> None:
    found = sensor(lag_s=0.0, lost_ratio=0.0)
    pod = busy_pod()
    pod.lose(1.0)
    found.scrape(1.0, [pod])
    load = found.load(1.0)
    assert load.get("endpoints_up").value == 0.0
    assert load.get("gpu_util_percent").value is None


def test_noise_is_unbiased_and_never_leaves_what_can_be() -> None:
    found = sensor(lag_s=0.0, lost_ratio=0.0, noise_ratio=0.3)
    pod, values = busy_pod(), []
    for n in range(400):
        found.scrape(1.0 + n * 1e-6, [pod])
        load = found.load(2.0 + n)
        values.append(load.get("running_requests").value or 0.0)
        assert 0.0 <= (load.get("gpu_util_percent").value or 0.0) <= 100.0
    assert float(np.mean(values)) == pytest.approx(pod.running, rel=0.05)
    assert float(np.std(values)) == pytest.approx(0.3 * pod.running, rel=0.15)


def test_the_counter_of_an_idle_pod_reads_zero() -> None:
    found = sensor()
    assert found.scrape(1.0, [Pod(PodPhysics(), 0)])["gpu_util_percent"] == 0.0
