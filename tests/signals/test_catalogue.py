"""The map of metric names, and the operator's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.model.signal import SIGNALS
from controlplane.signals.catalogue import Catalogue, load_catalogue
from controlplane.signals.catalogue_file import CatalogueError


def extend(tmp_path: Path, text: str) -> Catalogue:
    path = tmp_path / "names.yaml"
    path.write_text(text, encoding="utf-8")
    return load_catalogue(path)


def test_every_signal_has_a_meaning(catalogue: Catalogue) -> None:
    assert set(catalogue.signals) == set(SIGNALS) - {"endpoints_up"}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi", "triton", "llamacpp", "dcgm", "envoy"])
def test_every_engine_is_known(catalogue: Catalogue, engine: str) -> None:
    assert catalogue.engine(engine).signals


def test_an_unknown_engine_has_no_metrics(catalogue: Catalogue) -> None:
    assert catalogue.engine("ollama").signals == {}


@pytest.mark.parametrize(
    ("engine", "signal", "raw", "value"),
    [
        ("triton", "gpu_util_percent", 0.42, 42.0),
        ("dcgm", "gpu_util_percent", 42, 42.0),
        ("triton", "latency_p95_s", 1_500_000, 1.5),
        ("envoy", "ttft_p95_s", 800, 0.8),
        ("vllm", "kv_cache_usage_ratio", 0.9, 0.9),
    ],
)
def test_units_are_converted(
    catalogue: Catalogue, engine: str, signal: str, raw: float, value: float
) -> None:
    candidate = catalogue.engine(engine).signals[signal][0]
    assert raw * candidate.scale == pytest.approx(value)


def test_the_operators_metric_is_tried_first_and_the_shipped_ones_stay(tmp_path: Path) -> None:
    own = extend(
        tmp_path,
        "engines: {vllm: {signals: {kv_cache_usage_ratio: "
        '[{metric: "my:kv", unit: percent, within: max}]}}}\n',
    )
    metrics = [each.metric for each in own.engine("vllm").signals["kv_cache_usage_ratio"]]
    assert metrics == ["my:kv", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]
    assert own.engine("vllm").signals["kv_cache_usage_ratio"][0].scale == 0.01
    assert own.engine("sglang") == load_catalogue().engine("sglang")


def test_a_new_engine_needs_only_its_names(tmp_path: Path) -> None:
    own = extend(
        tmp_path,
        "engines: {mine: {model_labels: [m], signals: {waiting_requests: [{metric: q, unit: count}]}}}\n",
    )
    assert own.engine("mine").sample_names == {"q"}
    assert own.engine("mine").model_labels == ("m",)


def test_a_range_can_be_changed(tmp_path: Path) -> None:
    own = extend(tmp_path, "signals: {waiting_requests: {unit: count, range: [0, 10]}}\n")
    assert own.signals["waiting_requests"].admit(11) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engines:\n  vllm:\n    signals:\n      ttft_s: []\n", "names.yaml:4 engines.vllm.signals"),
        ("engines:\n  vllm:\n    signals:\n      ttft_s: []\n", "unknown signal 'ttft_s'; known: gpu_util"),
        ("engines:\n  vllm:\n    model_label: x\n", "names.yaml:3 engines.vllm.model_label"),
        (
            "engines:\n  a:\n    signals:\n      ttft_p95_s:\n      - {metric: x, unit: ratio}\n",
            "names.yaml:5 engines.a.signals.ttft_p95_s[0].unit: x is in ratio, which does not convert to s",
        ),
        (
            "engines:\n  a:\n    signals:\n      ttft_p95_s:\n      - {metric: a-b, unit: s}\n",
            "names.yaml:5 engines.a.signals.ttft_p95_s[0].metric",
        ),
        (
            "engines:\n  a:\n    signals:\n      failure_ratio:\n"
            "      - {metric: x, kind: ratio, unit: ratio}\n",
            "a ratio needs it",
        ),
        ("signals:\n  ttft_p95_s: {unit: s, range: [5, 1]}\n", "names.yaml:2 signals.ttft_p95_s.range"),
        ("engines: [\n", "not YAML"),
        ("3\n", "names.yaml:1"),
    ],
)
def test_a_mistake_names_file_line_and_what_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        extend(tmp_path, text)
    assert expected in str(caught.value)


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"absent.yaml: cannot be read"):
        load_catalogue(tmp_path / "absent.yaml")
