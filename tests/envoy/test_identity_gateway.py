"""[spoof], [no-identity], [secrets]: who is asking, on the real Envoy, over HTTP/1, HTTP/2 and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import jwt as pyjwt
import pytest
from sample_policy import decision_of, digest, policy_of
from still_gateway import StillGateway, still_gateway

from controlplane.model.policy import IdentityMode, JwtProvider, ModelFrom, Policy, Route, Tenant

pytestmark = pytest.mark.envoy

SECRET = "sk-very-secret-0123456789"
KEY = [("authorization", f"Bearer {SECRET}")]
EVERY = ("llama", "mini")
TRUSTED = ("x-tidegate-tenant", "x-tidegate-pool", "x-tidegate-model-version", "x-tidegate-would-limit")
TRUSTED += ("resilience.status", "resilience.failure-rate")
HMAC_KEY = "0123456789abcdef0123456789abcdef"
JWKS = '{"keys":[{"kty":"oct","alg":"HS256","kid":"k","k":"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}]}'
ISSUER = JwtProvider(name="corp", issuer="https://corp.example", audiences=("llm",), jwks_json=JWKS)


def _policy() -> Policy:
    header = {"model_from": ModelFrom.HEADER, "model_header": "x-model"}
    return policy_of(
        routes=[
            Route(id="chat", pattern="/v1/chat", models=EVERY),
            Route(id="optional", pattern="/optional", models=EVERY, identity=IdentityMode.DEFAULT_TENANT),
            Route(id="open", pattern="/open", models=EVERY, identity=IdentityMode.NONE),
            Route(id="grpc", pattern="/infer.Llm/*", models=EVERY, **header),  # type: ignore[arg-type]
        ],
        tenants=[
            Tenant(id="acme", key_digests=(digest(SECRET),), jwt_values=("acme-inc",)),
            Tenant(id="public"),
        ],
        default_tenant="public",
        jwt=(ISSUER,),
    )


@contextlib.asynccontextmanager
async def _gateway(
    envoy: Path, folder: Path, *, http2: bool = False, **more: Any
) -> AsyncIterator[StillGateway]:
    policy = _policy()
    policy = replace(policy, pools=tuple(replace(pool, http2=http2) for pool in policy.pools))
    rates = {key.id: 1e6 for key in policy.keys}
    async with still_gateway(envoy, folder, policy, decision_of(policy, rates), **more) as gateway:
        yield gateway


def _spellings(name: str) -> list[str]:
    return [
        name,
        name.upper(),
        name.title(),
        name.replace("-", "_"),
        name.replace(".", "_").replace("-", "_"),
    ]


def _forged() -> list[tuple[str, str]]:
    return [(spelling, "evil") for name in TRUSTED for spelling in _spellings(name) * 2]


def _token(**claims: object) -> str:
    full = {"iss": ISSUER.issuer, "aud": "llm", "exp": int(time.time()) + 60, "tenant": "acme-inc", **claims}
    return pyjwt.encode(full, HMAC_KEY, headers={"kid": "k"})


async def test_a_client_cannot_say_what_only_the_gateway_says(envoy_path: Path, tmp_path: Path) -> None:
    async with _gateway(envoy_path, tmp_path) as gateway:
        paths = ["/v1/chat", "/optional", "/open"]
        for path in paths:
            status, _, _ = await gateway.ask({"model": "mini"}, path=path, headers=[*_forged(), *KEY])
            assert status == 200
        ids = [("x-request-id", "req-1"), ("x-env", "staging")]
        await gateway.ask({"model": "mini"}, headers=[*ids, *KEY])
    colours = [dict(seen) for seen in gateway.received]
    assert not any(value == "evil" for seen in gateway.received for _, value in seen)
    assert [c["x-tidegate-tenant"] for c in colours] == ["acme", "acme", "public", "acme"]
    assert {c["resilience.status"] for c in colours} == {"closed"}
    assert {c["x-tidegate-model-version"] for c in colours} == {"mini:2024.06"}
    assert all(name not in c for c in colours for name in ("authorization", "x-tidegate-pool"))
    assert (colours[3]["x-request-id"], colours[3]["x-env"]) == ("req-1", "staging")


async def test_http2_trailers_are_stripped_too(envoy_path: Path, tmp_path: Path) -> None:
    upstream = Http2Recorder()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, _gateway(envoy_path, tmp_path, http2=True, upstream_port=port) as gateway:
        forged = [(name, value) for name, value in _forged() if name == name.lower()]
        headers = [("x-model", "mini"), ("content-type", "application/x-thing"), *KEY, *forged]
        trailers = [*forged, ("authorization", KEY[0][1]), ("x-checksum", "7")]
        await _http2_post(gateway.port, "/infer.Llm/Generate", headers, b"{}", trailers)
    assert dict(upstream.headers)["x-tidegate-tenant"] == "acme"
    assert not any(value == "evil" for _, value in upstream.headers)
    assert upstream.trailers == [("x-checksum", "7")]
    assert upstream.body == b"{}"


async def test_grpc_metadata_is_coloured_and_stripped(envoy_path: Path, tmp_path: Path) -> None:
    got: list[dict[str, str]] = []

    async def generate(request: bytes, context: Any) -> bytes:
        got.append(dict(context.invocation_metadata()))
        return request

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(generate)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("infer.Llm", {"Generate": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with (
        _gateway(envoy_path, tmp_path, http2=True, upstream_port=port) as gateway,
        grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel,
    ):
        call = channel.unary_unary("/infer.Llm/Generate")
        forged = [(name, value) for name, value in _forged() if name == name.lower()]
        metadata = [*forged, ("x-model", "llama"), ("x-request-id", "r"), *KEY]
        assert await call(b"hello", metadata=metadata) == b"hello"
        codes = [await _code(call, sent) for sent in ([], [("authorization", "Bearer junk")])]
        codes += [await _code(call, [("x-model", "gpt-9"), *KEY]), await _code(call, KEY)]
    await server.stop(0)
    assert "evil" not in got[0].values()
    wanted = {"x-tidegate-tenant": "acme", "resilience.status": "closed", "x-request-id": "r"}
    assert wanted.items() <= got[0].items()
    assert "authorization" not in got[0]
    assert [code.name for code in codes] == [
        "UNAUTHENTICATED",
        "UNAUTHENTICATED",
        "NOT_FOUND",
        "INVALID_ARGUMENT",
    ]
    assert len(got) == 1


async def _code(call: Any, metadata: Sequence[tuple[str, str]]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", metadata=metadata)
    assert "{" not in (caught.value.details() or "")
    return caught.value.code()


async def test_missing_and_wrong_credentials(envoy_path: Path, tmp_path: Path) -> None:
    body = {"model": "mini"}
    async with _gateway(envoy_path, tmp_path) as gateway:

        async def status(path: str, *headers: tuple[str, str]) -> int:
            return (await gateway.ask(body, path=path, headers=headers))[0]

        assert await status("/v1/chat") == 401
        assert await status("/optional") == 200
        assert await status("/open") == 200
        assert await status("/open", ("authorization", "Bearer whatever")) == 200
        for path, header in itertools.product(["/v1/chat", "/optional"], ["authorization", "x-api-key"]):
            assert await status(path, (header, "Bearer wrong")) == 401
        junk = [await status("/v1/chat", ("x-api-key", f"junk-{number}")) for number in range(50)]
        assert set(junk) == {401}
        _, headers, answer = await gateway.ask(body)
        assert headers["www-authenticate"].startswith("Bearer")
        assert headers["content-type"] == "application/json"
        assert b'"code":"invalid_api_key"' in answer
        await asyncio.sleep(1.1)  # Envoy writes its statistics each second
        assert await gateway.counted("tg_requests") == 3  # nothing refused was ever counted for a tenant
        assert await gateway.counted("http_local_rate_limit_enabled") == 3  # or charged


async def test_a_verified_token_names_its_tenant(envoy_path: Path, tmp_path: Path) -> None:
    async with _gateway(envoy_path, tmp_path) as gateway:

        async def status(token: str) -> int:
            return (await gateway.ask({"model": "mini"}, headers=[("authorization", f"Bearer {token}")]))[0]

        assert await status(_token()) == 200
        assert await status(_token(tenant="nobody")) == 401
        assert await status(_token(exp=int(time.time()) - 3600)) == 401
        assert await status(_token(aud="others")) == 401
        assert await status(_token(iss="https://evil.example")) == 401
        assert await status(_token()[:-4] + "AAAA") == 401
        assert await status(SECRET) == 200  # an API key in the same header
    assert [dict(seen)["x-tidegate-tenant"] for seen in gateway.received] == ["acme", "acme"]
    assert not any("authorization" in dict(seen) for seen in gateway.received)


async def test_the_key_is_nowhere(envoy_path: Path, tmp_path: Path) -> None:
    async with _gateway(envoy_path, tmp_path) as gateway:
        for header in ("authorization", "x-api-key", "X-API-Key"):
            value = f"Bearer {SECRET}" if header == "authorization" else SECRET
            await gateway.ask({"model": "mini"}, headers=[(header, value)])
            await gateway.ask({"model": "gpt-9"}, headers=[(header, value)])
            await gateway.ask({"model": "mini"}, headers=[(header, value + "x")])
        for path in (
            "/config_dump?include_eds",
            "/stats",
            "/stats/prometheus",
            "/clusters",
            "/listeners",
            "/runtime",
        ):
            assert SECRET not in await gateway.envoy.admin(path), path
        while len(gateway.envoy.access_log()) < 9:
            await asyncio.sleep(0.1)
        assert SECRET not in gateway.written()
    assert len(gateway.received) == 3
    for seen in gateway.received:
        assert not any(SECRET in value for _, value in seen)


class Http2Recorder:
    """An HTTP/2 server that keeps one request: headers, body, trailers."""

    def __init__(self) -> None:
        self.headers: list[tuple[str, str]] = []
        self.trailers: list[tuple[str, str]] = []
        self.body = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        machine = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        machine.initiate_connection()
        writer.write(machine.data_to_send())
        while data := await reader.read(65536):
            for event in machine.receive_data(data):
                self._note(event, machine)
            writer.write(machine.data_to_send())
        writer.close()

    def _note(self, event: h2.events.Event, machine: h2.connection.H2Connection) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self.headers = [(str(name), str(value)) for name, value in event.headers]
        elif isinstance(event, h2.events.TrailersReceived):
            self.trailers = [(str(name), str(value)) for name, value in event.headers]
        elif isinstance(event, h2.events.DataReceived):
            self.body += event.data
        elif isinstance(event, h2.events.StreamEnded):
            machine.send_headers(event.stream_id, [(":status", "200")], end_stream=True)


async def _http2_post(
    port: int, path: str, headers: Sequence[tuple[str, str]], body: bytes, trailers: Sequence[tuple[str, str]]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    machine = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    machine.initiate_connection()
    pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "gateway"), (":path", path)]
    machine.send_headers(1, [*pseudo, *headers])
    machine.send_data(1, body)
    machine.send_headers(1, trailers, end_stream=True)
    writer.write(machine.data_to_send())
    ended = False
    while not ended:
        events = machine.receive_data(await asyncio.wait_for(reader.read(65536), 10))
        ended = any(isinstance(event, h2.events.StreamEnded | h2.events.StreamReset) for event in events)
        writer.write(machine.data_to_send())
    writer.close()
