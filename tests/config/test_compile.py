"""From words to a Policy: defaults, overrides, keys; and the same policy whatever the order of files."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.model.policy import (
    Curve,
    Endpoint,
    IdentityMode,
    Key,
    ModelFrom,
    Policy,
    Pool,
    Priority,
    RatePolicy,
    ServerPolicy,
    SourceRef,
    TenantShare,
)

from .written import Directory, errors, tenant


def policy_of(directory: Directory) -> Policy:
    loaded = directory.load()
    assert not errors(loaded), loaded.problems
    assert loaded.policy is not None
    return loaded.policy


def pool(policy: Policy, id: str) -> Pool:
    return next(pool for pool in policy.pools if pool.id == id)


def key(policy: Policy, id: str) -> Key:
    return next(key for key in policy.keys if key.id == id)


def test_what_is_not_said_has_the_models_defaults(directory: Directory) -> None:
    policy = policy_of(directory)
    assert pool(policy, "chat:v1").rate == RatePolicy()
    assert pool(policy, "chat:v2").rate == replace(
        RatePolicy(), base_rate_per_s=50.0, contract_rate_per_s=20.0
    )
    assert policy.server == ServerPolicy()
    assert pool(policy, "chat:v1").endpoints == (
        Endpoint(address="10.0.0.1", port=8000, metrics_url="http://10.0.0.1:8000/metrics"),
    )


def test_a_version_overrides_the_defaults_field_by_field(directory: Directory) -> None:
    directory.change_main(
        "models:\n",
        "defaults: {rate: {curve: formula, base_rate: 80, guards: {slew_up_ratio: 0.2, ewma_tau_s: 0}}}\n"
        "slos: {chat: {ttft_s: 0.8}, 'chat:v2': {ttft_s: 1.5}}\nmodels:\n",
    )
    directory.change_main("base_rate: 50", "base_rate: 50, guards: off")
    policy = policy_of(directory)
    one, two = pool(policy, "chat:v1").rate, pool(policy, "chat:v2").rate
    assert (one.base_rate_per_s, one.curve, one.contract_rate_per_s, one.ttft_slo_s) == (
        80,
        Curve.FORMULA,
        32,
        0.8,
    )
    assert (one.guards.enabled, one.guards.slew_up_ratio, one.guards.ewma_tau_s) == (True, 0.2, 0)
    assert (two.base_rate_per_s, two.curve, two.ttft_slo_s) == (50, Curve.FORMULA, 1.5)
    assert (two.guards.enabled, two.guards.slew_up_ratio) == (False, 0.2)
    assert pool(policy, "embed:e1").rate.ttft_slo_s == RatePolicy().ttft_slo_s


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("off", False),
        ("on", True),
        ("false", False),
        ('"off"', False),
        ("{enabled: false}", False),
        ("{}", True),
    ],
)
def test_guards_are_a_switch_or_a_mapping(directory: Directory, written: str, expected: bool) -> None:
    directory.change_main("base_rate: 50", f"guards: {written}")
    assert pool(policy_of(directory), "chat:v2").rate.guards.enabled is expected


@pytest.mark.parametrize(
    ("endpoint", "address", "port", "dns", "metrics"),
    [
        ('"10.1.2.3:80"', "10.1.2.3", 80, False, "http://10.1.2.3:80/metrics"),
        ('"[::1]:80"', "::1", 80, False, "http://[::1]:80/metrics"),
        ("10.1.2.3:80", "10.1.2.3", 80, False, "http://10.1.2.3:80/metrics"),
        ("llm.models.svc:80", "llm.models.svc", 80, True, None),
        ("localhost:80", "localhost", 80, True, None),
        ("{address: llm, port: 80, metrics: 'http://llm:9/m'}", "llm", 80, True, "http://llm:9/m"),
        ("{address: 10.1.2.3, port: 80, metrics: false}", "10.1.2.3", 80, False, None),
        ("{address: 10.1.2.3, port: 80, metrics: off, pod: p}", "10.1.2.3", 80, False, None),
    ],
)
def test_an_endpoint_in_short_and_in_full(
    directory: Directory, endpoint: str, address: str, port: int, dns: bool, metrics: str | None
) -> None:
    directory.change_main('"10.0.0.3:8000"', endpoint)
    found = pool(policy_of(directory), "embed:e1")
    (one,) = found.endpoints
    assert (one.address, one.port, found.dns, one.metrics_url) == (address, port, dns, metrics)


def test_every_triple_that_can_be_served_has_a_key(directory: Directory) -> None:
    directory.tenant("acme", tenant("acme", "models: [chat]\npriority: batch-low\nweight: 2.5"))
    policy = policy_of(directory)
    assert [key.id for key in policy.keys if key.tenant == "acme"] == [
        "chat|acme|chat:v1",
        "chat|acme|chat:v2",
        "models|acme|chat:v1",
        "models|acme|chat:v2",
    ]
    one = key(policy, "chat|acme|chat:v1")
    assert (one.priority, one.weight, one.guarantee_per_s, one.ceiling_per_s) == (
        Priority.BATCH,
        2.5,
        0.0,
        None,
    )
    assert not any(key.route == "list" for key in policy.keys)


def test_the_most_specific_override_wins_field_by_field(directory: Directory) -> None:
    directory.tenant(
        "acme",
        tenant(
            "acme",
            """\
            weight: 2
            guarantee: 1
            limit: 40
            overrides:
              chat: {guarantee: 5, limit: 30}
              "chat:v2": {limit: 10, pin: 4}
            """,
        ),
    )
    policy = policy_of(directory)

    def share(pool: str) -> TenantShare:
        one = key(policy, f"models|acme|{pool}")
        return TenantShare(
            weight=one.weight,
            guarantee_per_s=one.guarantee_per_s,
            ceiling_per_s=one.ceiling_per_s,
            pin_per_s=one.pin_per_s,
        )

    assert share("embed:e1") == TenantShare(weight=2, guarantee_per_s=1, ceiling_per_s=40)
    assert share("chat:v1") == TenantShare(weight=2, guarantee_per_s=5, ceiling_per_s=30)
    assert share("chat:v2") == TenantShare(weight=2, guarantee_per_s=5, ceiling_per_s=10, pin_per_s=4)


def test_a_limit_of_zero_is_a_limit(directory: Directory) -> None:
    directory.tenant("acme", tenant("acme", "limit: 0"))
    assert key(policy_of(directory), "chat|acme|chat:v1").ceiling_per_s == 0


@pytest.mark.parametrize(
    ("match", "keys"),
    [
        (None, {"chat|chat:v1", "chat|chat:v2", "models|chat:v1", "models|chat:v2", "models|embed:e1"}),
        ("\"path == '/v1/chat/completions'\"", {"chat|chat:v1", "chat|chat:v2"}),
        (
            "\"tenant_id == 'acme' && path == '/v1/models/*'\"",
            {"models|chat:v1", "models|chat:v2", "models|embed:e1"},
        ),
        ("{model_version: 'chat:v2'}", {"chat|chat:v2", "models|chat:v2"}),
        ("{model_version: v2, path: '/v1/models/*'}", {"models|chat:v2"}),
    ],
)
def test_a_window_applies_to_the_keys_it_matches(
    directory: Directory, match: str | None, keys: set[str]
) -> None:
    written = f", match: {match}" if match else ""
    directory.tenant("acme", tenant("acme", f"limits: {{name: m, tokens: 120, window_seconds: 60{written}}}"))
    policy = policy_of(directory)
    assert {f"{key.route}|{key.pool}" for key in policy.keys if "acme/m" in key.windows} == keys
    assert all(key.tenant == "acme" for key in policy.keys if key.windows)


def test_the_requirements_words_mean_what_they_say(directory: Directory) -> None:
    directory.main(
        (directory.path / "tidegate.yaml").read_text()
        + """\
per_route_rate_limit:
  tokens: 1000
  window_seconds: 60
  key_template: "tenant_id:model_version:path"
  match: "tenant_id == 'acme' && path == '/v1/models/*'"
  unit: request
"""
    )
    policy = policy_of(directory)
    (window,) = policy.windows
    assert (window.tokens, window.window_s, window.burst_tokens, window.unit) == (1000, 60, 100, "request")
    assert window.key_fields == ("tenant_id", "model_version", "path")
    assert (window.tenant_id, window.path, window.model_version) == ("acme", "/v1/models/*", None)
    assert window.ref == SourceRef(file="tidegate.yaml", line=17)
    assert {key.id for key in policy.keys if key.windows} == {
        "models|acme|chat:v1",
        "models|acme|chat:v2",
        "models|acme|embed:e1",
    }


@pytest.mark.parametrize(("tokens", "burst"), [(1000, 100), (15, 1.5), (5, 1), (1, 1)])
def test_the_burst_is_a_tenth_of_the_limit_but_at_least_one_request(
    directory: Directory, tokens: int, burst: float
) -> None:
    directory.tenant("acme", tenant("acme", f"limits: {{tokens: {tokens}, window_seconds: 60}}"))
    assert policy_of(directory).windows[0].burst_tokens == burst


def test_a_window_of_a_route_is_for_that_route(directory: Directory) -> None:
    directory.change_main(
        "models: [chat]}", "models: [chat], per_route_rate_limit: {tokens: 60, window_seconds: 60}}"
    )
    policy = policy_of(directory)
    assert {key.route for key in policy.keys if key.windows} == {"chat"}
    assert {key.tenant for key in policy.keys if key.windows} == {"acme", "guest"}
    assert policy.windows[0].path == "/v1/chat/completions"


def test_a_route_without_identity_serves_the_default_tenant_alone(directory: Directory) -> None:
    directory.change_main("id: chat, models: [chat]}", "id: chat, fixed_model: chat, identity: none}")
    policy = policy_of(directory)
    assert policy.routes[0].identity is IdentityMode.NONE
    assert policy.routes[0].model_from is ModelFrom.FIXED
    assert [key.id for key in policy.keys if key.route == "chat"] == ["chat|guest|chat:v1"]


def test_a_route_has_an_id_made_of_its_path(directory: Directory) -> None:
    directory.change_main('{path: "/v1/models/*", id: models}', '{path: "/v1/models/*"}')
    assert policy_of(directory).routes[1].id == "v1-models-any"


def test_files_are_relative_to_the_directory(directory: Directory) -> None:
    for name in ("token", "crt", "key", "ca"):
        (directory.path / name).touch()
    directory.change_main(
        "models:\n", "admin: {token_file: token}\nxds: {tls: {cert: crt, key: key, ca: ca}}\nmodels:\n"
    )
    server = policy_of(directory).server
    assert server.admin_token_file == str(directory.path / "token")
    assert (server.xds_cert_file, server.xds_ca_file) == (
        str(directory.path / "crt"),
        str(directory.path / "ca"),
    )


def test_prometheus_is_reached_as_written(directory: Directory) -> None:
    (directory.path / "password").write_text("x")
    directory.change_main(
        "models:\n",
        """\
signals:
  source: prometheus
  interval_s: 2
  prometheus:
    url: https://prometheus/prefix
    headers: {X-Scope-OrgID: serving}
    basic: {user: me, password_file: password}
    matchers: 'cluster="eu-1"'
models:
""",
    )
    signals = policy_of(directory).signals
    assert signals.prometheus is not None
    assert (signals.source, signals.interval_s, signals.prometheus.url) == (
        "prometheus",
        2,
        "https://prometheus/prefix",
    )
    assert signals.prometheus.headers == {"X-Scope-OrgID": "serving"}
    assert signals.prometheus.basic_password_file == str(directory.path / "password")
    assert signals.prometheus.matchers == 'cluster="eu-1"'


def test_quotas_are_kept(directory: Directory) -> None:
    directory.tenant(
        "acme",
        tenant(
            "acme", "quotas: {daily: [{model_version: 'chat:v1', tokens: 500000}], time_zone: Europe/Berlin}"
        ),
    )
    (quota,) = policy_of(directory).tenants[0].quotas
    assert (quota.model_version, quota.tokens, quota.period, quota.time_zone) == (
        "chat:v1",
        500000,
        "daily",
        "Europe/Berlin",
    )


def test_a_quota_may_name_a_version_that_only_one_model_has(directory: Directory) -> None:
    directory.tenant("acme", tenant("acme", "quotas: {monthly: [{model_version: v1, tokens: 5}]}"))
    (quota,) = policy_of(directory).tenants[0].quotas
    assert (quota.model_version, quota.period) == ("chat:v1", "monthly")


def test_the_policy_service_is_kept(directory: Directory) -> None:
    service = "{store: redis, redis: {url: 'redis://cache:6379', password_file: pw}, timeout_ms: 10}"
    directory.change_main("routes:\n", f"policy: {service}\nroutes:\n")
    directory.tenant("acme", tenant("acme", "on_store_failure: closed"))
    policy = policy_of(directory)
    assert (policy.policy_service.store, policy.policy_service.timeout_s) == ("redis", 0.01)
    assert policy.policy_service.redis is not None
    assert policy.policy_service.redis.password_file == str(directory.path / "pw")
    assert policy.tenants[0].on_store_failure == "closed"


def shuffled(value: Any, random_: random.Random) -> Any:
    """`value` with every mapping in another order."""
    if isinstance(value, dict):
        keys = list(value)
        random_.shuffle(keys)
        return {key: shuffled(value[key], random_) for key in keys}
    return [shuffled(item, random_) for item in value] if isinstance(value, list) else value


def without_places(policy: Policy) -> Policy:
    """`policy` without the lines things stand on."""
    nowhere = SourceRef(file="", line=0)
    return replace(
        policy,
        pools=tuple(replace(one, ref=nowhere) for one in policy.pools),
        routes=tuple(replace(one, ref=nowhere) for one in policy.routes),
        tenants=tuple(replace(one, ref=nowhere) for one in policy.tenants),
        windows=tuple(replace(one, ref=nowhere) for one in policy.windows),
    )


_TENANTS = {
    f"t{number}": {
        "id": f"t{number}",
        "identity": {"jwt": [f"a{number}", f"b{number}"]},
        "weight": number + 1,
        "overrides": {"chat": {"limit": 20}, "chat:v2": {"guarantee": 1}},
        "limits": [
            {"tokens": 60, "window_seconds": 60, "match": {"path": "/v1/models/*", "model_version": "v2"}}
        ],
    }
    for number in range(4)
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.permutations(list(_TENANTS)))
def test_neither_the_order_of_files_nor_of_mappings_matters(
    directory: Directory, random_: random.Random, names: list[str]
) -> None:
    main = {
        "models": {
            "chat": {
                "default_version": "v1",
                "versions": {v: {"endpoints": ["10.0.0.1:1", "10.0.0.2:1"]} for v in ("v1", "v2")},
            },
            "embed": {
                "versions": {"e": {"endpoints": ["10.0.0.3:1"], "rate": {"base_rate": 7, "curve": "formula"}}}
            },
        },
        "routes": [{"path": "/v1/models/*"}, {"path": "/v1/embeddings", "models": ["embed"]}],
        "slos": {"chat": {"ttft_s": 1}, "chat:v2": {"ttft_s": 2}},
    }

    def compiled(files: dict[str, str], text: str) -> Policy:
        for path in (directory.path / "tenants").iterdir():
            path.unlink()
        for name, content in files.items():
            directory.tenant(name, content)
        directory.main(text)
        return without_places(policy_of(directory))

    plain = compiled({name: json.dumps(value) for name, value in _TENANTS.items()}, json.dumps(main))
    files = {
        f"file{place}": json.dumps(shuffled(_TENANTS[name], random_), indent=1)
        for place, name in enumerate(names)
    }
    assert compiled(files, json.dumps(shuffled(main, random_), indent=1)) == plain
