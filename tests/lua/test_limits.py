"""What a request costs, where it goes, and what the model server is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lua_scripts import Headers, Script, Stream, limits
from sample_policy import decision_of, policy_of

from controlplane.assets import read_asset
from controlplane.model.decision import PoolDecision, PoolState
from controlplane.model.ladder import ADAPTIVE_LADDER_S, COST_MAX, UNITS_PER_S, class_name
from controlplane.model.policy import ModelFrom, Route, Tenant, WindowLimit
from controlplane.xds import names

EVERY = ("llama", "mini")


def _ask(script: Script, model: Any = "llama", *, tenant: str | None = "acme", **more: Any) -> Stream:
    body = {} if model is None else {"model": model}
    metadata: dict[str, Any] = {names.BODY_METADATA: {**body, **more.pop("body", {})}}
    if tenant is not None:
        metadata[names.METADATA] = {"tenant": tenant}
    return script.stream(metadata=metadata, **more).request()


def _error(stream: Stream) -> tuple[str, str]:
    assert stream.refusal is not None
    error = json.loads(stream.refusal_body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return stream.refusal[":status"], error["code"]


def _slot(stream: Stream, number: int | str) -> tuple[str, str, float] | None:
    found = tuple(stream.metadata.get(f"{field}{number}") for field in "cku")
    return None if found == (None, None, None) else found  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("asked", "pool"),
    [
        ("llama", "llama:r2"),
        ("llama:r1", "llama:r1"),
        ("llama:r2", "llama:r2"),
        ("mini:2024.06", "mini:2024.06"),
    ],
    ids=["a bare name means the default version", "an older version", "a version", "dots"],
)
def test_a_name_finds_its_pool(asked: str, pool: str) -> None:
    stream = _ask(limits(), asked)
    assert stream.refusal is None
    assert dict(stream.upstream)["x-tidegate-pool"] == pool
    assert stream.cleared == 1
    assert _slot(stream, 1) == ("1", f"a|chat|acme|{pool}", 100_000)


@pytest.mark.parametrize(
    ("asked", "body", "answer"),
    [
        ("gpt-9", {}, ("404", "model_not_found")),
        ("llama:r9", {}, ("404", "model_not_found")),
        ("llama:", {}, ("404", "model_not_found")),
        ("LLAMA", {}, ("404", "model_not_found")),
        ("llama|x", {}, ("404", "model_not_found")),
        (None, {"model_missing": True}, ("400", "missing_model")),
        ("", {}, ("400", "missing_model")),
        (7, {}, ("400", "missing_model")),
        (True, {}, ("400", "missing_model")),
        (None, {"invalid": True}, ("400", "invalid_json")),
    ],
)
def test_a_request_without_a_servable_model_is_refused_uncharged(
    asked: Any, body: dict[str, Any], answer: tuple[str, str]
) -> None:
    script = limits()
    stream = _ask(script, asked, body=body)
    assert _error(stream) == answer
    assert _slot(stream, 1) is None
    assert script.counters() == {}
    assert "x-tidegate-pool" not in dict(stream.upstream)


def test_no_body_at_all_names_no_model() -> None:
    stream = limits().stream(metadata={"tg": {"tenant": "acme"}}).request()
    assert _error(stream) == ("400", "missing_model")


@pytest.mark.parametrize("status", [400, 422])
def test_the_operator_chooses_the_status_of_unknown_models(status: int) -> None:
    route = Route(id="chat", pattern="/v1/chat", models=EVERY, unknown_model_status=status)
    assert _error(_ask(limits(routes=[route]), "gpt-9")) == (str(status), "model_not_found")


def test_a_model_of_another_route_is_unknown_here() -> None:
    routes = [
        Route(id="chat", pattern="/a", models=("llama",)),
        Route(id="two", pattern="/b", models=("mini",)),
    ]
    script = limits(routes=routes)
    assert _error(_ask(script, "mini")) == ("404", "model_not_found")
    assert _ask(script, "mini", route="two").refusal is None


def test_a_tenant_uses_only_what_it_may() -> None:
    tenants = [Tenant(id="acme", models=("mini", "llama:r1"))]
    script = limits(tenants=tenants)
    assert _ask(script, "mini").refusal is None
    assert _ask(script, "llama:r1").refusal is None
    assert _error(_ask(script, "llama")) == ("403", "model_not_allowed")


@pytest.mark.parametrize("tenant", ["nobody", None], ids=["a tenant without a file", "no tenant"])
def test_without_a_key_nothing_is_served(tenant: str | None) -> None:
    assert _error(_ask(limits(), "mini", tenant=tenant)) == ("403", "model_not_allowed")


def test_a_route_the_script_does_not_know_waits_for_the_next_push() -> None:
    stream = _ask(limits(), route="brand-new")
    assert _error(stream) == ("503", "gateway_not_ready")
    assert stream.refusal is not None
    assert stream.refusal["retry-after"] == "1"


@pytest.mark.parametrize(
    ("route", "headers", "pool"),
    [
        (
            Route(id="chat", pattern="/g", models=EVERY, model_from=ModelFrom.HEADER, model_header="X-Model"),
            [("x-model", "mini")],
            "mini:2024.06",
        ),
        (
            Route(id="chat", pattern="/f", models=EVERY, model_from=ModelFrom.FIXED, fixed_model="llama"),
            [],
            "llama:r2",
        ),
        (
            Route(id="chat", pattern="/f", models=EVERY, model_from=ModelFrom.FIXED, fixed_model="llama:r1"),
            [],
            "llama:r1",
        ),
    ],
    ids=["header", "fixed", "fixed version"],
)
def test_the_model_may_come_from_elsewhere(route: Route, headers: Headers, pool: str) -> None:
    stream = limits(routes=[route]).stream(headers=headers, metadata={"tg": {"tenant": "acme"}}).request()
    assert stream.metadata["model_version"] == pool


@pytest.mark.parametrize(
    ("rate", "cost"),
    [
        (10.0, 100_000),
        (37.5, 26_667),
        (0.005, 200_000_000),
        (0.0, 1_000_000_000),
        (-1.0, 1_000_000_000),
        (float("nan"), 1_000_000_000),
        (float("inf"), 1),
        (3e6, 1),
        (1e-9, 1_000_000_000),
    ],
)
def test_the_cost_is_the_inverse_of_the_rate(rate: float, cost: int) -> None:
    policy = policy_of()
    decision = decision_of(policy, {"chat|acme|llama:r2": rate})
    slot = _slot(_ask(limits(policy, decision)), 1)
    assert slot is not None
    assert slot[2] == cost


def test_each_key_finds_its_own_number() -> None:
    routes = [Route(id=f"r{n}", pattern=f"/{n}", models=EVERY if n % 2 else ("llama",)) for n in range(5)]
    tenants = [Tenant(id=f"t{n}", models=(None, ("mini",), ("llama:r1",))[n % 3]) for n in range(13)]
    policy = policy_of(routes=routes, tenants=tenants)
    rates = {key.id: 1.0 + number for number, key in enumerate(policy.keys)}
    bursts = {key.id: (0.1, 1.0, 4.0, 15.0, 60.0, 240.0, 1000.0)[n % 7] for n, key in enumerate(policy.keys)}
    script = limits(policy, decision_of(policy, rates, burst_s=bursts))
    for key in policy.keys:
        stream = _ask(script, key.pool, tenant=key.tenant, route=key.route)
        cost = int(1e6 / rates[key.id] + 0.5)
        assert _slot(stream, 1) == (f"{bursts[key.id]:g}", f"a|{key.id}", cost)
        assert _slot(stream, 2) is None


MINUTE = WindowLimit(
    name="minute", tokens=600, window_s=60, burst_tokens=60, key_fields=("tenant_id", "model_version", "path")
)
HOUR = WindowLimit(name="hour", tokens=3600, window_s=3600, burst_tokens=360, key_fields=("tenant_id",))


@pytest.mark.parametrize(
    ("burst_s", "order"),
    [
        (1.0, ["a", "w|minute", "w|hour"]),
        (60.0, ["w|minute", "a", "w|hour"]),
        (1000.0, ["w|minute", "w|hour", "a"]),
    ],
)
def test_the_shortest_burst_pays_first(burst_s: float, order: list[str]) -> None:
    policy = policy_of(windows=(HOUR, MINUTE), key_windows={"acme": ("hour", "minute")})
    decision = decision_of(policy, burst_s={"chat|acme|llama:r2": burst_s})
    stream = _ask(limits(policy, decision))
    slots = {
        "a": (f"{burst_s:g}", "a|chat|acme|llama:r2", 100_000),
        "w|minute": ("6", "w|minute|acme|llama:r2|/v1/chat", 100_000),
        "w|hour": ("360", "w|hour|acme", 1_000_000),
    }
    assert [_slot(stream, number) for number in (1, 2, 3)] == [slots[name] for name in order]


def test_a_window_of_tokens_costs_what_the_request_asks_for() -> None:
    window = WindowLimit(
        name="tokens",
        tokens=60_000,
        window_s=60,
        burst_tokens=6000,
        key_fields=("tenant_id",),
        unit="llm_token",
    )
    script = limits(windows=(window,), key_windows={"acme": ("tokens",)})
    asked = _ask(script, headers=[("content-length", "400")], body={"max_tokens": 500})
    assert _slot(asked, 2) == ("6", "w|tokens|acme", 600 * 1000)
    assumed = _ask(script, headers=[("content-length", "400")])
    assert _slot(assumed, 2) == ("6", "w|tokens|acme", 356 * 1000)
    huge = _ask(script, body={"max_tokens": 1e30})
    assert _slot(huge, 2) == ("6", "w|tokens|acme", 6_000_000)  # a full bucket, or it would wait for ever
    odd = _ask(script, body={"max_tokens": -1e9})
    assert _slot(odd, 2) == ("6", "w|tokens|acme", 256 * 1000)  # as if it had named none


def test_colours_for_the_model_server() -> None:
    decision = PoolDecision(
        pool="llama:r2",
        state=PoolState.LIVE,
        rate_per_s=1.0,
        target_per_s=1.0,
        factor=1.0,
        base_rate_per_s=1.0,
        utilisation_percent=None,
        reason="",
        inputs={"failure_ratio": 0.0213},
    )
    policy = policy_of()
    script = limits(policy, decision_of(policy, pools={"llama:r2": decision}))
    stream = _ask(script, headers=[("x-request-id", "r-1"), ("x-env", "prod")])
    assert stream.upstream == [
        ("x-request-id", "r-1"),
        ("x-env", "prod"),
        ("x-tidegate-route", "chat"),
        ("x-tidegate-pool", "llama:r2"),
        ("x-tidegate-model-version", "llama:r2"),
        ("resilience.status", "closed"),
        ("resilience.failure-rate", "0.0213"),
        ("x-tidegate-priority", "high-priority"),
    ]
    assert dict(_ask(script, "mini").upstream)["resilience.failure-rate"] == "insufficient"


@pytest.mark.parametrize("models", [(), EVERY], ids=["answered here", "answered by a model"])
def test_a_free_route_is_never_charged(models: tuple[str, ...]) -> None:
    fixed = {"model_from": ModelFrom.FIXED, "fixed_model": "mini"} if models else {}
    free = Route(id="free", pattern="/free", models=models, free=True, **fixed)  # type: ignore[arg-type]
    script = limits(routes=[Route(id="chat", pattern="/v1/chat", models=EVERY), free])
    for tenant in ("acme", None):
        stream = script.stream(route="free", metadata={"tg": {"tenant": tenant}}).request()
        assert stream.refusal is None
        assert _slot(stream, 1) is None
        assert dict(stream.upstream).get("x-tidegate-pool") == ("mini:2024.06" if models else None)
        stream.respond()
    assert script.counters() == {}


def test_series_come_from_the_tables_alone() -> None:
    script = limits()
    for number in range(100):
        _ask(script, f"model-{number}").respond([(":status", "404")])
        _ask(script, "mini", tenant=f"tenant-{number}").respond([(":status", "403")])
        _ask(script, "mini").respond([(":status", "200")], [(5, "x")])
    assert script.counters() == {"tg_requests~chat~acme~mini:2024.06~offered": 100}
    assert script.world.lookups == 1  # handles are kept
    assert set(script.histograms()) == {"tg_ttfb_ms~mini:2024.06"}


@pytest.mark.parametrize(
    ("model", "tenant", "route", "grpc_status"),
    [
        (None, "acme", "chat", "3"),
        ("mini", "nobody", "chat", "7"),
        ("gpt-9", "acme", "chat", "5"),
        ("mini", "acme", "brand-new", "14"),
    ],
    ids=["no model", "not allowed", "unknown model", "unknown route"],
)
def test_grpc_is_refused_in_its_own_words(
    model: str | None, tenant: str, route: str, grpc_status: str
) -> None:
    headers = [("content-type", "application/grpc")]
    stream = _ask(limits(), model, tenant=tenant, route=route, headers=headers)
    assert stream.refusal is not None
    assert stream.refusal["grpc-status"] == grpc_status
    assert "{" not in stream.refusal_body


def test_a_failing_script_refuses_instead_of_letting_pass() -> None:
    stream = limits().stream(metadata={"tg": {"tenant": "acme"}, "tg.body": {"model": "mini"}})
    stream._stream.metadata.set = None
    stream.request()
    assert _error(stream) == ("503", "gateway_not_ready")


@pytest.mark.parametrize(
    ("rate_per_s", "gateways", "rungs"),
    [
        (10.0, 1, ["1", "4", "15"]),
        (1.0, 1, ["1", "4", "15"]),
        (0.5, 1, ["4", "15"]),
        (0.02, 1, []),
        (0.0, 1, []),
        (4.0, 4, ["4", "15"]),  # an n-th of a bucket is rounded down
    ],
)
def test_a_deep_bucket_is_bounded_by_every_shorter_one_that_holds_a_request(
    rate_per_s: float, gateways: int, rungs: list[str]
) -> None:
    policy = policy_of()
    id = "chat|acme|llama:r2"
    decision = decision_of(policy, {id: rate_per_s}, burst_s={id: 60.0}, gateways=gateways)
    stream = _ask(limits(policy, decision))
    slots = [_slot(stream, f"b{number}") for number in range(1, 7)]
    cost = COST_MAX if rate_per_s == 0 else round(UNITS_PER_S / rate_per_s)
    assert [slot for slot in slots if slot] == [(name, f"a|{id}", cost) for name in rungs]
    assert _slot(stream, 1) == ("60", f"a|{id}", cost)


def test_the_rungs_are_the_adaptive_ladder() -> None:
    rungs = ", ".join(f'"{class_name(class_s)}"' for class_s in ADAPTIVE_LADDER_S[:-1])
    assert f"local RUNGS = {{ {rungs} }}" in read_asset("lua/envoy/limits.lua")
