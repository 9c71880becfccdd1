"""What a limited client is told, and how the answers of model servers pass."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_scripts import CODE, Headers, Script, Stream, limits
from sample_policy import decision_of, policy_of

from controlplane.assets import read_asset
from controlplane.model.policy import WindowLimit
from controlplane.xds import names

KEY = "chat|acme|llama:r2"
LIMITED = [(":status", "429"), (names.LIMITED_HEADER, "1"), ("content-type", "text/plain")]
MINUTE = WindowLimit(name="minute", tokens=600, window_s=60, burst_tokens=60, key_fields=("tenant_id",))


def _asked(script: Script, headers: Headers = ()) -> Stream:
    metadata = {"tg": {"tenant": "acme"}, "tg.body": {"model": "llama"}}
    return script.stream(headers=headers, metadata=metadata).request()


def _script(rate: float, *, burst_s: float = 1.0, gateways: int = 1, **more: Any) -> Script:
    policy = policy_of(**more)
    return limits(policy, decision_of(policy, {KEY: rate}, burst_s={KEY: burst_s}, gateways=gateways))


def _bucket(depth: int, left: int) -> Headers:
    return [
        *LIMITED,
        ("x-ratelimit-limit", str(depth)),
        ("x-ratelimit-remaining", str(left)),
        ("x-ratelimit-reset", "0"),
    ]


@pytest.mark.parametrize(
    ("rate", "burst_s", "left", "gateways", "seconds", "policy"),
    [
        (10.0, 1.0, 99_000, 1, "1", '"adaptive";q=10;w=1'),
        (37.6, 1.0, 0, 1, "1", '"adaptive";q=38;w=1'),
        (123.4, 1.0, 0, 1, "1", '"adaptive";q=120;w=1'),
        (2.5, 1.0, 0, 1, "1", '"adaptive";q=25;w=10'),
        (0.5, 4.0, 1_000_000, 1, "1", '"adaptive";q=30;w=60'),
        (0.05, 60.0, 1_000_000, 1, "19", '"adaptive";q=180;w=3600'),
        (0.05, 60.0, 0, 4, "80", '"adaptive";q=180;w=3600'),
        (0.005, 1000.0, 5_000_000, 1, "200", '"adaptive";q=18;w=3600'),
        (0.0, 1.0, 1_000_000, 1, "3600", '"adaptive";q=0;w=3600'),
    ],
)
def test_the_wait_is_what_the_bucket_still_needs(
    rate: float, burst_s: float, left: int, gateways: int, seconds: str, policy: str
) -> None:
    script = _script(rate, burst_s=burst_s, gateways=gateways)
    stream = _asked(script).respond(_bucket(int(burst_s * 1e6), left))
    assert stream.response == {
        ":status": "429",
        "content-type": "application/json",
        "retry-after": seconds,
        "ratelimit-policy": policy,
        "ratelimit": f'"adaptive";r=0;t={seconds}',
    }
    assert stream.metadata["outcome"] == "limited"


def test_without_a_report_the_wait_is_a_whole_request() -> None:
    stream = _asked(_script(0.05, burst_s=60.0)).respond(LIMITED)
    assert stream.response["retry-after"] == "20"


@pytest.mark.parametrize(
    ("depth", "left", "bound"),
    [(1_000_000, 10, "adaptive"), (6_000_000, 10, "minute"), (6_000_000, 10_000, "minute")],
)
def test_the_headers_name_the_limit_that_binds(depth: int, left: int, bound: str) -> None:
    script = _script(10.0, windows=(MINUTE,), key_windows={"acme": ("minute",)})
    response = _asked(script).respond(_bucket(depth, left)).response
    assert response["ratelimit"].startswith(f'"{bound}";r=0;t=')
    quota = {"adaptive": '"adaptive";q=10;w=1', "minute": '"minute";q=600;w=60'}[bound]
    assert response["ratelimit-policy"] == quota


def test_limits_of_one_depth_are_told_apart_by_what_they_could_pay() -> None:
    script = _script(1000.0, burst_s=6.0, windows=(MINUTE,), key_windows={"acme": ("minute",)})
    response = _asked(script).respond(_bucket(6_000_000, 50_000)).response
    assert response["ratelimit"].startswith('"minute"')


@pytest.mark.parametrize(("rate", "code"), [(10.0, "rate_limit_exceeded"), (0.0, "insufficient_quota")])
def test_waiting_and_giving_up_have_different_codes(rate: float, code: str) -> None:
    stream = _asked(_script(rate)).respond(_bucket(1_000_000, 0))
    assert stream.body is not None
    error = json.loads(stream.body)["error"]
    assert (error["code"], error["param"], set(error)) == (code, None, {"message", "type", "param", "code"})


@given(
    rate=st.floats(min_value=0.002, max_value=1e5), left=st.integers(0, 10**9), gateways=st.integers(1, 40)
)
def test_retry_after_is_a_whole_number_of_two_digits(rate: float, left: int, gateways: int) -> None:
    lua = Script(f"{CODE.limits.split('local METADATA')[0]} DENIAL = denial").lua
    denial = lua.globals().DENIAL
    cost = max(1, int(1e6 / rate + 0.5))
    slot = lua.table_from({"name": "adaptive", "class": "1000", "cost": cost})
    seconds = denial.retry_after_s(slot, left, gateways)
    exact = (cost * gateways - left) / 1e6
    assert seconds == int(seconds) >= 1
    assert max(1.0, exact) <= seconds <= max(1.0, exact * 1.1 + 1)
    assert len(str(int(seconds)).rstrip("0")) <= 2


def test_grpc_clients_get_a_status_and_when_to_retry() -> None:
    headers = [(":status", "200"), ("grpc-status", "8"), ("grpc-message", "x"), (names.LIMITED_HEADER, "1")]
    stream = _asked(_script(0.05, burst_s=60.0), [("content-type", "application/grpc")]).respond(headers)
    assert stream.response["grpc-status"] == "8"
    assert stream.response["grpc-message"] == "rate limit reached"
    assert stream.response["retry-after"] == "20"
    assert stream.body is None
    assert b"google.rpc.RetryInfo" in stream.response["grpc-status-details-bin"].encode("latin-1")


def test_a_model_servers_own_429_passes() -> None:
    script = _script(10.0)
    headers = [(":status", "429"), ("retry-after", "30"), ("x-envoy-upstream-service-time", "3")]
    ours = [(names.LIMITED_HEADER, "1"), ("x-ratelimit-limit", "1000000")]
    stream = _asked(script).respond([*headers, *ours], [(1, "busy")])
    assert stream.body is None
    assert stream.response == dict(headers)
    assert script.counters() == {"tg_requests~chat~acme~llama:r2~offered": 1}
    assert script.histograms() == {}


def test_every_outcome_is_counted_once() -> None:
    script = _script(10.0)
    _asked(script).respond()
    _asked(script).respond(_bucket(1_000_000, 0))
    _asked(script, [(names.WOULD_LIMIT_HEADER, "1")]).respond()
    assert script.counters() == {
        "tg_requests~chat~acme~llama:r2~offered": 3,
        "tg_requests~chat~acme~llama:r2~limited~adaptive": 1,
        "tg_requests~chat~acme~llama:r2~would_limit~adaptive": 1,
    }


def test_time_to_first_byte_ends_with_the_first_piece() -> None:
    script = _script(10.0)
    stream = _asked(script).respond([(":status", "200")], [(40, ""), (80, "data: 1"), (500, "data: 2")])
    assert script.histograms() == {"tg_ttfb_ms~llama:r2": [120]}
    assert stream.pieces == 2  # what follows passes without the script


@pytest.mark.parametrize("metadata", [{}, {"tg": {"tenant": "acme"}}], ids=["nothing known", "refused early"])
def test_an_answer_to_a_refused_request_is_left_alone(metadata: dict[str, Any]) -> None:
    script = limits()
    stream = script.stream(metadata=metadata).respond(
        [(":status", "401"), (names.LIMITED_HEADER, "1")], [(1, "x")]
    )
    assert stream.response == {":status": "401"}
    assert stream.pieces == 0


def test_the_scripts_use_the_names_of_the_other_builders() -> None:
    text = "".join(read_asset(f"lua/envoy/{name}.lua") for name in ("limits", "identity", "denial"))
    for name in (
        names.METADATA,
        names.BODY_METADATA,
        names.JWT_METADATA,
        names.POOL_HEADER,
        names.LIMITED_HEADER,
        names.WOULD_LIMIT_HEADER,
    ):
        assert f'"{name}"' in text
