"""The bootstrap: how Envoy finds us, and how its statistics are read back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.model.poolstat import pool_id, stat_name
from controlplane.xds.bootstrap import Gateway, TlsFiles, bootstrap

_PART = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,40}", fullmatch=True)


def _labels(stat: str) -> tuple[str, dict[str, str]]:
    """What Envoy makes of a stat name by our tag rules: group 1 leaves the name, group 2 is the value."""
    rules = bootstrap(Gateway(node_id="n"))["stats_config"]["stats_tags"]
    labels: dict[str, str] = {}
    cut: list[tuple[int, int]] = []
    for rule in rules:
        found = re.search(rule["regex"], stat) if "regex" in rule else None
        if found is not None:
            labels.setdefault(rule["tag_name"], found.group(2))
            cut.append(found.span(1))
    kept = [char for at, char in enumerate(stat) if not any(start <= at < end for start, end in cut)]
    return "".join(kept), labels


@given(model=_PART, version=_PART)
def test_a_pools_statistics_carry_its_name_whatever_it_is(model: str, version: str) -> None:
    name, labels = _labels(f"cluster.{stat_name(f'{model}:{version}')}.upstream_rq_2xx")
    assert name == "cluster.upstream_rq_2xx"
    assert pool_id(labels["envoy.cluster_name"]) == f"{model}:{version}"


@pytest.mark.parametrize("name", ["tidegate_xds", "tidegate_gateways"])
def test_our_own_clusters_keep_their_names(name: str) -> None:
    assert _labels(f"cluster.{name}.membership_total") == (
        "cluster.membership_total",
        {"envoy.cluster_name": name},
    )
    assert pool_id(name) is None


def test_a_refused_requests_counter_carries_the_rule_that_bound() -> None:
    name, labels = _labels("http.tidegate.lua.tg_requests~chat~acme~llama:r2~would_limit~acme/minute")
    assert name == "http.tidegate.lua.tg_requests"
    assert (labels["outcome"], labels["rule"]) == ("would_limit", "acme/minute")


@given(route=_PART, tenant=_PART, model=_PART, version=_PART)
def test_a_requests_counter_carries_its_key(route: str, tenant: str, model: str, version: str) -> None:
    stat = f"http.tidegate.lua.tg_requests~{route}~{tenant}~{model}:{version}~offered"
    name, labels = _labels(stat)
    assert name == "http.tidegate.lua.tg_requests"
    assert labels == {
        "route": route,
        "tenant": tenant,
        "model_version": f"{model}:{version}",
        "outcome": "offered",
    }


def test_time_to_first_byte_has_a_boundary_at_800_ms() -> None:
    (setting,) = bootstrap(Gateway(node_id="n"))["stats_config"]["histogram_bucket_settings"]
    assert 800.0 in setting["buckets"]
    assert setting["buckets"] == sorted(set(setting["buckets"]))
    assert _labels("http.tidegate.lua.tg_ttfb_ms~m:r1")[1] == {"model_version": "m:r1"}


def _xds_cluster(**fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = bootstrap(Gateway(node_id="n", **fields))["static_resources"]["clusters"][0]
    return made


def test_mtls_verifies_the_name_of_the_control_plane() -> None:
    files = TlsFiles(cert="c.pem", key="k.pem", ca="ca.pem")
    for host, kind in (("control.example", "DNS"), ("10.0.0.7", "IP_ADDRESS")):
        tls = _xds_cluster(xds_host=host, tls=files)["transport_socket"]["typed_config"]
        validation = tls["common_tls_context"]["validation_context"]
        assert validation["match_typed_subject_alt_names"] == [{"san_type": kind, "matcher": {"exact": host}}]
    assert "transport_socket" not in _xds_cluster()


@pytest.mark.parametrize(("sotw", "kind"), [(False, "DELTA_GRPC"), (True, "GRPC")])
def test_delta_is_the_default(sotw: bool, kind: str) -> None:
    dynamic = bootstrap(Gateway(node_id="n", sotw=sotw))["dynamic_resources"]
    assert dynamic["ads_config"]["api_type"] == kind


def test_the_fleet_is_a_static_cluster_that_envoy_counts_itself_in() -> None:
    made = bootstrap(Gateway(node_id="n"))
    names = [cluster["name"] for cluster in made["static_resources"]["clusters"]]
    assert made["cluster_manager"]["local_cluster_name"] in names
