"""A hostile client: bytes, bodies, paths and headers that try to get past identity, price or pool."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from raw_client import RawAnswer, http1, http1_request, http2
from sample_policy import decision_of, policy_of
from still_gateway import StillGateway, still_gateway

from controlplane.model.policy import ModelFrom, Route

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

CHAT = Route(id="chat", pattern="/v1/chat", models=("llama", "mini"))
OPEN = Route(
    id="open",
    pattern="/open/*",
    models=("mini",),
    model_from=ModelFrom.FIXED,
    fixed_model="mini",
    free=True,
)
KEY, OTHERS_KEY, JSON = (
    "authorization: Bearer sk-acme",
    "x-api-key: sk-beta",
    "content-type: application/json",
)
KEY_PAIR, JSON_PAIR = ("authorization", "Bearer sk-acme"), ("content-type", "application/json")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(envoy_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StillGateway]:
    """Nobody is limited: what is refused is refused for another reason."""
    policy = policy_of(routes=[CHAT, OPEN])
    decision = decision_of(policy, {key.id: 1e5 for key in policy.keys})
    async with still_gateway(envoy_path, tmp_path_factory.mktemp("hostile"), policy, decision) as made:
        yield made


def _body(model: str = '"llama"', more: str = "") -> bytes:
    return f'{{"model":{model}{more}}}'.encode("utf-8", "surrogatepass")


async def _post(
    gateway: StillGateway, body: bytes, *headers: str, path: str = "/v1/chat", chunked: bool = False
) -> RawAnswer:
    lines = [KEY, JSON, *headers]
    return await http1(gateway.port, http1_request(path, lines, body, chunked=chunked))


def _code(answer: RawAnswer) -> str:
    return str(json.loads(answer.body)["error"]["code"])


async def _served(gateway: StillGateway, before: int) -> list[str]:
    """The pools of the requests that arrived since `before`."""
    return [dict(headers)["x-tidegate-model-version"] for headers in gateway.received[before:]]


NAMES = {
    "null": "missing_model",
    "1": "missing_model",
    "[]": "missing_model",
    "{}": "missing_model",
    '""': "missing_model",
    '"' + "a" * 10_000 + '"': "missing_model",  # Envoy keeps no metadata as long as that
    '"LLAMA"': "model_not_found",
    '" llama"': "model_not_found",
    r'"llama\n"': "model_not_found",
    r'"llama\u0000"': "model_not_found",
    '"]]"': "model_not_found",
    r'"\"]]--"': "model_not_found",
    '"ü"': "model_not_found",
    '"llama|r1"': "model_not_found",
    '"llama~r1"': "model_not_found",
    r'"\ud800"': "invalid_json",
    "NaN": "invalid_json",
}


@pytest.mark.parametrize(("name", "code"), NAMES.items(), ids=[name[:12] for name in NAMES])
async def test_odd_model_names_reach_nobody(gateway: StillGateway, name: str, code: str) -> None:
    before = len(gateway.received)
    answer = await _post(gateway, _body(name))
    assert (answer.status, _code(answer)) == (404 if code == "model_not_found" else 400, code)
    assert len(gateway.received) == before


BODIES = {
    "nothing but depth": b"[" * 1_000_000,
    "deep and whole": _body(more=',"x":' + "[" * 100_000 + "]" * 100_000),
    "deep objects": _body(more=',"x":' + '{"a":' * 100_000 + "1" + "}" * 100_000),
    "two documents": _body() + _body(),
    "a comment": b"/**/" + _body(),
    "no utf-8": b'{"model":"llama","x":"\xff"}',
    "spaces": b"   ",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_a_body_that_is_no_json_is_refused_at_once(gateway: StillGateway, body: bytes) -> None:
    start_s = time.monotonic()
    answer = await _post(gateway, body)
    assert (answer.status, _code(answer)) == (400, "invalid_json")
    assert time.monotonic() - start_s < 2.0


@pytest.mark.parametrize(
    ("body", "pool"),
    [
        (b'{"model":"mini","model":"llama"}', "llama:r2"),
        (b'{"model":"llama","model":"mini"}', "mini:2024.06"),
        (rb'{"model":"llam\u0061"}', "llama:r2"),
    ],
    ids=["twice", "twice, the other way", "escaped"],
)
async def test_gateway_and_model_server_read_the_same_model(
    gateway: StillGateway, body: bytes, pool: str
) -> None:
    """Of a repeated name the last counts, as in the JSON readers of model servers."""
    before = len(gateway.received)
    assert (await _post(gateway, body)).status == 200
    assert await _served(gateway, before) == [pool]


@pytest.mark.parametrize("protocol", ["length", "chunked", "http2"])
async def test_a_long_prompt_arrives_whole(gateway: StillGateway, protocol: str) -> None:
    """Held until its model is known: 900 kB, beyond any window of a stream."""
    body = _body(more=f',"x":"{"y" * 900_000}"')
    before = len(gateway.received)
    if protocol == "http2":
        answer = await http2(gateway.port, "/v1/chat", [KEY_PAIR, JSON_PAIR], body)
    else:
        answer = await _post(gateway, body, chunked=protocol == "chunked")
    assert answer.status == 200
    assert await _served(gateway, before) == ["llama:r2"]
    sent = gateway.model.requests[-1][2]
    assert len(sent["x"]) == 900_000


@pytest.mark.parametrize("protocol", ["length", "chunked", "http2"])
async def test_nobody_without_a_key_makes_the_gateway_hold_a_body(
    gateway: StillGateway, protocol: str
) -> None:
    body = _body(more=f',"x":"{"y" * 1_000_000}"')
    if protocol == "http2":
        answer = await http2(gateway.port, "/v1/chat", [JSON_PAIR], body)
    else:
        request = http1_request("/v1/chat", [JSON], body, chunked=protocol == "chunked")
        answer = await http1(gateway.port, request[:20_000])  # answered before the rest is there
    assert (answer.status, _code(answer)) == (401, "invalid_api_key")


async def test_an_authorization_of_well_chosen_spaces_costs_no_time(gateway: StillGateway) -> None:
    odd = "authorization: Bearer k" + " " * 50_000 + "k"
    start_s = time.monotonic()
    answer = await http1(gateway.port, http1_request("/v1/chat", [odd, JSON], _body()))
    assert answer.status == 401
    assert time.monotonic() - start_s < 1.0


TWICE = {
    "authorization twice": [KEY, KEY],
    "another tenant's first": ["authorization: Bearer sk-beta", KEY],
    "two keys in one": ["authorization: Bearer sk-acme, Bearer sk-acme"],
    "another tenant's x-api-key": [KEY, OTHERS_KEY],
    "named in connection": [KEY, "connection: authorization"],
}


@pytest.mark.parametrize("headers", TWICE.values(), ids=TWICE.keys())
async def test_a_doubtful_identity_is_none(gateway: StillGateway, headers: list[str]) -> None:
    """A client that names its credential as hop by hop either loses it or is who it is; never another."""
    before = len(gateway.received)
    answer = await http1(gateway.port, http1_request("/v1/chat", [*headers, JSON], _body()))
    if answer.status == 200:
        assert [dict(got)["x-tidegate-tenant"] for got in gateway.received[before:]] == ["acme"]
    else:
        assert answer.status == 401


PATHS = [
    "/open/../v1/chat",
    "/open/%2e%2e/v1/chat",
    r"/open/..\v1/chat",
    "/open/..;/v1/chat",
    "//open//..//v1/chat",
    "http://elsewhere/open/../v1/chat",
    "/v1/%63hat",
    "/v1/chat?open=1",
    "/open/..%2fv1/chat",
    "/open/%252e%252e/v1/chat",
    "/v1/chat/",
    "/v1/chat;x",
    "/V1/chat",
]


@pytest.mark.parametrize("path", PATHS)
async def test_a_path_is_judged_as_it_is_sent_on(gateway: StillGateway, path: str) -> None:
    """Whoever reaches the charged path under another name is identified and priced like everybody."""
    before = len(gateway.received)
    for headers in ([JSON], [KEY, JSON]):
        await http1(gateway.port, http1_request(path, headers, _body()))
    for (sent_to, _, _), got in zip(gateway.model.requests[before:], gateway.received[before:], strict=True):
        colours = dict(got)
        if sent_to == "/v1/chat":
            assert (colours["x-tidegate-route"], colours["x-tidegate-tenant"]) == ("chat", "acme")
        else:
            assert sent_to.startswith("/open/")
            assert colours["x-tidegate-route"] == "open"


STEERING = [
    ["x-envoy-upstream-alt-stat-name: evil"],
    ["x-envoy-retry-on: 5xx", "x-envoy-max-retries: 50"],
    ["x-envoy-upstream-rq-timeout-ms: 1"],
    ["x-envoy-original-path: /open/x"],
    ["x-forwarded-host: open", "x-forwarded-for: 127.0.0.1", "x-forwarded-proto: https"],
    ["connection: x-tidegate-tenant, close"],
    ["te: trailers", "expect: "],
    ["x-tidegate-pool: mini:2024.06", "x-tidegate-would-limit: 1", "x-tidegate-limited: 1"],
]


@pytest.mark.parametrize("headers", STEERING, ids=lambda headers: headers[0][:30])
async def test_no_header_steers_the_gateway(gateway: StillGateway, headers: list[str]) -> None:
    before = len(gateway.received)
    assert (await _post(gateway, _body(more=',"delay_s":0.05'), *headers)).status == 200
    (got,) = gateway.received[before:]
    assert [value for name, value in got if name == "x-tidegate-tenant"] == ["acme"]
    assert [value for name, value in got if name == "x-tidegate-model-version"] == ["llama:r2"]
    assert not any(name in ("x-tidegate-pool", "x-tidegate-would-limit") for name, _ in got)


REFUSED = {
    "two lengths": [KEY, JSON, "content-length: 3"],
    "length and chunks": [KEY, JSON, "transfer-encoding: chunked"],
    "a space before the colon": [KEY, JSON, "transfer-encoding : chunked"],
    "a bare zero": [KEY, JSON, "x-a: b\x00c"],
    "headers without end": [KEY, JSON, "x-a: " + "a" * 70_000],
    "a websocket": [KEY, JSON, "connection: upgrade", "upgrade: websocket"],
}


@pytest.mark.parametrize("headers", REFUSED.values(), ids=REFUSED.keys())
async def test_a_request_of_two_meanings_is_refused(gateway: StillGateway, headers: list[str]) -> None:
    before = len(gateway.received)
    answer = await http1(gateway.port, http1_request("/v1/chat", headers, _body()))
    assert 400 <= answer.status < 500
    assert len(gateway.received) == before


async def test_made_up_names_make_no_series(gateway: StillGateway) -> None:
    """[cardinality] Model names, tenants, request ids, paths: none becomes a statistic."""

    async def series() -> int:
        return len((await gateway.envoy.admin("/stats")).splitlines())

    async def odd(number: int) -> None:
        key = KEY if number % 2 else f"authorization: Bearer sk-junk-{number}"
        headers = [key, JSON, f"x-request-id: {number}", f"x-env: {number}"]
        headers.append(f"x-envoy-upstream-alt-stat-name: evil{number}")
        path = "/v1/chat" if number % 3 else f"/v1/{number}"
        answer = await http1(gateway.port, http1_request(path, headers, _body(f'"m-{number}"')))
        assert answer.status in (401, 404)

    for number in range(4):  # every kind of answer once
        await odd(number)
    before = await series()
    for start in range(0, 1000, 50):
        await asyncio.gather(*(odd(number) for number in range(start, start + 50)))
    assert await series() == before
