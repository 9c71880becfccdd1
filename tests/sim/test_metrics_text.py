"""The metrics of a simulated pod are what a real one's scraper would meet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from controlplane.sim import dcgm_text, vllm_text
from controlplane.sim.dcgm_text import BLANK, Gpu, Layout
from controlplane.sim.exposition import Family, text
from controlplane.sim.stats import Histogram, Stats, bounds_1_2_5
from controlplane.sim.vllm_text import Occupancy

NOW = Occupancy(running=3, waiting=2, kv_usage_ratio=0.25, kv_blocks=4096, block_tokens=16)
LABELS = {"model_name": "chat", "engine": "0"}


def _parse(exposition: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(exposition)}


def _stats() -> Stats:
    stats = Stats(max_model_len=8192)
    for ttft_s in (0.02, 0.3, 0.3, 5000.0):
        stats.ttft_s.observe(ttft_s)
    stats.count_finished(
        reason="length", times_s=(0.0, 0.1, 0.4, 1.4), prompt_tokens=100, generated_tokens=11
    )
    return stats


def test_names_types_and_labels_are_vllms() -> None:
    families = _parse(text(vllm_text.families(_stats(), NOW, model_name="chat")))
    kinds = {name: family.type for name, family in families.items()}
    assert (
        kinds.items()
        >= {
            "vllm:num_requests_running": "gauge",
            "vllm:num_requests_waiting": "gauge",
            "vllm:kv_cache_usage_perc": "gauge",
            "vllm:num_preemptions": "counter",
            "vllm:prompt_tokens": "counter",
            "vllm:generation_tokens": "counter",
            "vllm:request_success": "counter",
            "vllm:time_to_first_token_seconds": "histogram",
            "vllm:inter_token_latency_seconds": "histogram",
            "vllm:request_time_per_output_token_seconds": "histogram",
            "vllm:e2e_request_latency_seconds": "histogram",
            "vllm:request_queue_time_seconds": "histogram",
            "vllm:request_prefill_time_seconds": "histogram",
            "vllm:request_decode_time_seconds": "histogram",
            "vllm:cache_config_info": "gauge",
        }.items()
    )
    (running,) = families["vllm:num_requests_running"].samples
    assert (running.name, running.labels, running.value) == ("vllm:num_requests_running", LABELS, 3.0)
    success = {
        sample.labels["finished_reason"]: sample for sample in families["vllm:request_success"].samples
    }
    assert success["length"].name == "vllm:request_success_total"
    assert {reason: sample.value for reason, sample in success.items()} == {
        "stop": 0.0,
        "length": 1.0,
        "abort": 0.0,
        "error": 0.0,
    }


def test_a_histogram_is_cumulative_and_agrees_with_its_count_and_sum() -> None:
    family = _parse(text(vllm_text.families(_stats(), NOW, model_name="chat")))[
        "vllm:time_to_first_token_seconds"
    ]
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert list(buckets)[:3] == ["0.001", "0.005", "0.01"]
    assert list(buckets)[-2:] == ["2560.0", "+Inf"]
    assert (buckets["0.01"], buckets["0.02"], buckets["0.5"], buckets["2560.0"], buckets["+Inf"]) == (
        0,
        1,
        3,
        3,
        4,
    )
    rest = {s.name.rsplit("_", 1)[1]: s.value for s in family.samples if not s.name.endswith("_bucket")}
    assert rest == {"count": 4.0, "sum": pytest.approx(5000.62)}


def test_request_times_cannot_be_seen_below_300_ms_as_in_vllm() -> None:
    family = _parse(text(vllm_text.families(_stats(), NOW, model_name="chat")))[
        "vllm:e2e_request_latency_seconds"
    ]
    assert [s.labels["le"] for s in family.samples if "le" in s.labels][:3] == ["0.3", "0.5", "0.8"]


@given(values=st.lists(st.floats(0, 1e6)))
def test_every_observation_lands_in_exactly_one_bucket(values: list[float]) -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    assert histogram.count == len(values)
    assert histogram.counts[0] == sum(value <= 0.1 for value in values)
    assert histogram.counts[-1] == sum(value > 10.0 for value in values)
    assert histogram.total == pytest.approx(sum(values))


def test_token_bounds_follow_1_2_5_up_to_the_context() -> None:
    assert bounds_1_2_5(100) == (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    assert bounds_1_2_5(8192)[-2:] == (2000.0, 5000.0)


def test_a_family_can_vanish_or_change_its_name() -> None:
    families = vllm_text.families(_stats(), NOW, model_name="chat")
    shown = _parse(
        text(
            families,
            hide=("vllm:num_requests_waiting",),
            rename={"vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc"},
        )
    )
    assert "vllm:num_requests_waiting" not in shown
    assert "vllm:kv_cache_usage_perc" not in shown
    assert shown["vllm:gpu_cache_usage_perc"].samples[0].value == 0.25


@given(value=st.text(st.characters(exclude_characters="\r", codec="utf-8")))
def test_any_label_value_survives_the_text_format(value: str) -> None:
    family = Family("m", "gauge", "help", (((("name", value),), 1.0),))
    assert _parse(text([family]))["m"].samples[0].labels == {"name": value}


def test_a_gpus_user_is_named_in_both_layouts() -> None:
    gpus = [Gpu(index=0, pod="chat-0", namespace="llm", util_percent=42)]
    (own,) = _parse(text(dcgm_text.families(gpus)))["DCGM_FI_DEV_GPU_UTIL"].samples
    assert own.value == 42.0
    assert (
        own.labels.items() >= {"pod": "chat-0", "namespace": "llm", "container": "vllm", "gpu": "0"}.items()
    )
    assert "exported_pod" not in own.labels
    (kept,) = _parse(text(dcgm_text.families(gpus, layout=Layout.EXPORTED_POD)))[
        "DCGM_FI_DEV_GPU_UTIL"
    ].samples
    assert kept.labels.items() >= {"exported_pod": "chat-0", "exported_namespace": "llm"}.items()
    assert kept.labels["pod"].startswith("nvidia-dcgm-exporter")


@pytest.mark.parametrize("layout", list(Layout))
def test_an_idle_gpu_names_no_user(layout: Layout) -> None:
    (sample,) = _parse(text(dcgm_text.families([Gpu(index=0, pod=None)], layout=layout)))[
        "DCGM_FI_DEV_GPU_UTIL"
    ].samples
    user = sample.labels.get("exported_pod") if layout is Layout.EXPORTED_POD else sample.labels["pod"]
    assert not user


def test_the_blank_value_is_printed_digit_by_digit() -> None:
    exposition = text(dcgm_text.families([Gpu(index=0, pod="p", util_percent=BLANK)]))
    assert " 9223372036854775794\n" in exposition
    assert _parse(exposition)["DCGM_FI_DEV_GPU_UTIL"].samples[0].value > 9e18


def test_what_is_not_exported_leaves_no_trace() -> None:
    exposition = text(dcgm_text.families([Gpu(index=0, pod="p", util_percent=None)]))
    assert "GPU_UTIL" not in exposition
    assert "SM_ACTIVE" not in exposition
    assert "DCGM_FI_DEV_FB_USED" in exposition
