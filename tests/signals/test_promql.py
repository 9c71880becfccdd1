"""Queries out of the catalogue, and series back to their pools."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.model.policy import Endpoint, Pool
from controlplane.signals import promql
from controlplane.signals.catalogue import Candidate, Catalogue, Kind
from controlplane.signals.matching import Matcher, series_of

POD = Endpoint(address="10.0.0.1", port=8000, pod="pod-0", namespace="llm")
BARE = Endpoint(address="10.0.0.2", port=8000, metrics_url="http://10.0.0.2:9100/metrics")
LONE = Endpoint(address="lone.example", port=8000)
POOLS = (
    Pool(model="a", version="v1", endpoints=(POD,)),
    Pool(model="a", version="v2", endpoints=(BARE,)),
    Pool(model="b", version="v1", endpoints=(LONE,)),
)


def matched(catalogue: Catalogue, match: str = "auto", **labels: str) -> dict[str, set[str]]:
    """The pools that a vLLM series with `labels` is found for, and the labels that select it."""
    row: dict[str, Any] = {
        "metric": {"__name__": "vllm:num_requests_running", **labels},
        "values": [[1.0, "1"]],
    }
    series, _ = series_of([row])
    found = Matcher(POOLS, {"vllm": catalogue.engine("vllm")}, match).match(series)
    return {pool: each.labels for pool, each in found.items() if each.targets}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"model_name": "a", "version": "v2"}, {"a:v2": {"model_name", "version"}}),
        ({"model_name": "a", "model_version": "v1"}, {"a:v1": {"model_name", "model_version"}}),
        (
            {"model_name": "x", "pod": "pod-0", "namespace": "llm"},
            {"a:v1": {"model_name", "namespace", "pod"}},
        ),
        ({"pod": "pod-0", "namespace": "other"}, {}),
        ({"instance": "10.0.0.2:8000"}, {"a:v2": {"instance"}}),
        ({"instance": "10.0.0.2:9100"}, {"a:v2": {"instance"}}),
        ({"model_name": "b", "instance": "proxy:1"}, {"b:v1": {"model_name"}}),
        ({"model_name": "a", "instance": "proxy:1"}, {}),
        (
            {"model_name": "a", "version": "v9", "instance": "10.0.0.2:8000"},
            {"a:v2": {"instance", "model_name"}},
        ),
    ],
    ids=[
        "version label",
        "model_version label",
        "pod",
        "pod of another namespace",
        "instance",
        "instance of metrics_url",
        "only version of its model",
        "two versions, nothing tells them apart",
        "a version nobody configured falls back to the endpoint",
    ],
)
def test_a_series_finds_its_pool(
    catalogue: Catalogue, labels: dict[str, str], expected: dict[str, set[str]]
) -> None:
    assert matched(catalogue, **labels) == expected


def test_how_pools_are_matched_can_be_narrowed(catalogue: Catalogue) -> None:
    both = {"model_name": "a", "version": "v2", "pod": "pod-0", "namespace": "llm"}
    assert set(matched(catalogue, "labels", **both)) == {"a:v2"}
    assert set(matched(catalogue, "endpoints", **both)) == {"a:v1"}


def test_the_first_query_asks_for_every_name_at_once() -> None:
    query = promql.latest(["b", "a"], lookback_s=90.0, matchers='cluster="eu-1"')
    assert query == '{__name__=~"a|b",cluster="eu-1"}[90s]'


def test_the_quantile_is_grouped_as_written() -> None:
    candidate = Candidate(metric="m", kind=Kind.HISTOGRAM)
    p95, count = promql.branches("p", "s", candidate, 'model="x"', window_s=300.0, recorded=False)
    assert p95.expression == 'histogram_quantile(0.95, sum by (le) (rate(m_bucket{model="x"}[300s])))'
    assert count.expression == 'sum(rate(m_count{model="x"}[300s]))'


def test_a_ratio_asks_for_its_parts() -> None:
    candidate = Candidate(metric="m", kind=Kind.RATIO, where={"class": "5"}, of=("m",), minus=("o",))
    parts = promql.branches("p", "s", candidate, "", window_s=60.5, recorded=False)
    assert [(each.part, each.expression) for each in parts] == [
        ("bad", 'sum(rate(m{class="5"}[60500ms]))'),
        ("all", "sum(rate(m{}[60500ms]))"),
        ("minus", "sum(rate(o{}[60500ms]))"),
    ]


def test_a_recording_rule_replaces_the_rate() -> None:
    candidate = Candidate(metric="m", kind=Kind.HISTOGRAM, recorded="r:m")
    p95, count = promql.branches("p", "s", candidate, 'pod="x"', window_s=300.0, recorded=True)
    assert p95.expression == 'histogram_quantile(0.95, sum by (le) (r:m{pod="x"}))'
    assert count.expression == 'sum(r:m{pod="x",le="+Inf"})'


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["a"], 'pod="a"'),
        (["b", "a"], 'pod=~"a|b"'),
        (['a"b\\'], 'pod="a\\"b\\\\"'),
        (["a.b", "c|d"], 'pod=~"a\\\\.b|c\\\\|d"'),
        (["a", ""], ""),
    ],
    ids=["one", "several", "quoted", "pattern characters", "a series without the label"],
)
def test_selectors_match_exactly_the_values_seen(values: list[str], expected: str) -> None:
    assert promql.selector([{"pod": value} if value else {} for value in values], ["pod"]) == expected


def test_many_branches_are_split_over_queries() -> None:
    one = promql.Branch(pool="p", signal="s", part="rate", expression="x")
    queries = promql.combined([one] * (promql.BRANCHES_MAX + 1))
    assert len(queries) == 2
    assert queries[1] == f'label_replace(x, "tidegate_branch", "{promql.BRANCHES_MAX}", "", "")'


def test_the_interval_is_learned_from_the_samples() -> None:
    rows = [{"metric": {"__name__": "x"}, "values": [[1.0, "1"], [16.0, "2"]]} for _ in range(3)]
    series, interval_s = series_of(rows)
    assert interval_s == 15.0
    assert series[0].time_s == 16.0
    assert series_of([{"metric": {}, "values": []}]) == ([], None)
