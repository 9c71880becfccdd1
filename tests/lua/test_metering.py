"""With a quota: what a request reserves, and what it would settle if it ended at this moment."""

from __future__ import annotations

from typing import Any

import pytest
from lua_scripts import Headers, Script, Stream, limits
from sample_policy import digest

from controlplane.model.policy import Quota, Route, Tenant
from controlplane.xds import names

METERED = Tenant(
    id="acme",
    key_digests=(digest("sk-acme"),),
    quotas=(Quota(model_version="llama:r2", tokens=9, period="daily"),),
)
OK, STREAM = (":status", "200"), ("content-type", "text/event-stream")
UPSTREAM = ("x-envoy-upstream-service-time", "3")
TOKEN = 'data: {"choices":[{"delta":{"content":"t"}}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"total_tokens":77}}\n\n'


def _script(**more: Any) -> Script:
    return limits(tenants=[METERED, Tenant(id="zeta")], **more)


def _ask(
    script: Script, *, tenant: str = "acme", model: str = "llama", headers: Headers = (), **body: Any
) -> Stream:
    metadata = {names.BODY_METADATA: {"model": model, **body}, names.METADATA: {"tenant": tenant}}
    return script.stream(metadata=metadata, headers=headers or [("content-length", "400")]).request()


def _told(stream: Stream) -> tuple[Any, Any]:
    return stream.metadata.get("reserve"), stream.metadata.get("settle")


@pytest.mark.parametrize(
    ("body", "reserved"),
    [
        ({}, 356),
        ({"max_tokens": 50}, 150),
        ({"max_completion_tokens": 60}, 160),
        ({"max_output_tokens": 70}, 170),
        ({"max_tokens": 50, "max_completion_tokens": 60}, 160),
        ({"max_tokens": 0}, 100),
        ({"max_tokens": -5}, 356),
        ({"max_tokens": "80"}, 180),
        ({"max_tokens": "nan"}, 356),
        ({"max_tokens": 10.5}, 111),
        ({"max_tokens": 1e300}, 1_000_000_000),
        ({"max_tokens": True}, 356),
    ],
)
def test_a_request_reserves_its_prompt_and_the_most_it_asks_for(body: dict[str, Any], reserved: int) -> None:
    assert _told(_ask(_script(), **body)) == (reserved, 100)


def test_nothing_is_free() -> None:
    assert _told(_ask(_script(), headers=[("content-length", "0")], max_tokens=0)) == (1, 1)


@pytest.mark.parametrize(("tenant", "model"), [("zeta", "llama"), ("acme", "mini"), ("acme", "llama:r1")])
def test_without_a_quota_nothing_is_told(tenant: str, model: str) -> None:
    stream = _ask(_script(), tenant=tenant, model=model)
    assert stream.refusal is None
    assert _told(stream) == (None, None)
    stream.respond([OK, UPSTREAM, STREAM], [(1, TOKEN), (1, USAGE)])
    assert _told(stream) == (None, None)
    assert stream.pieces == 1  # the rest passes without a script


def test_refused_requests_reserve_nothing() -> None:
    assert _told(_ask(_script(), model="gpt-9")) == (None, None)


def test_every_piece_of_a_stream_is_what_leaving_now_costs() -> None:
    script = _script()
    for pieces in range(1, 6):
        stream = _ask(script, max_tokens=50)
        # As if the client left after `pieces`: the script never sees the end of the body.
        texts = [(1, TOKEN)] * pieces
        seen: list[float] = []
        inner = stream._stream.metadata.set
        stream._stream.metadata.set = lambda self, ns, key, value, seen=seen, inner=inner: (
            seen.append(value) if key == "settle" else None,
            inner(self, ns, key, value),
        )[1]
        stream.respond([OK, UPSTREAM, STREAM], texts)
        assert seen == [*range(101, 101 + pieces), 150]  # and at a clean end without usage, the reservation
    assert script.counters()["tg_usage~llama:r2~missing"] == 5


@pytest.mark.parametrize(
    ("headers", "chunks", "settled"),
    [
        ([OK, UPSTREAM, STREAM], [(1, TOKEN), (1, USAGE)], 77),
        ([OK, UPSTREAM, ("content-type", "application/json")], [(1, '{"usage":{"total_tokens":7}}')], 7),
        ([OK, UPSTREAM, ("content-type", "application/json")], [(1, "{}")], 356),
        ([OK, UPSTREAM, ("content-type", "application/json")], [], 356),
        ([OK, UPSTREAM, ("content-type", "audio/wav")], [(1, "x"), (1, "y")], 356),
        ([OK, UPSTREAM, ("content-type", "application/grpc")], [(1, "x")], 356),
        ([OK, UPSTREAM, STREAM, ("grpc-status", "13")], [], 0),
        ([(":status", "201"), UPSTREAM, STREAM], [(1, USAGE)], 77),
        ([(":status", "500"), UPSTREAM, STREAM], [(1, USAGE)], 0),
        ([(":status", "429"), UPSTREAM, ("x-tidegate-limited", "1")], [], 0),  # a model server's own
        ([(":status", "429"), UPSTREAM, ("x-tidegate-quota", "1")], [], 0),
        ([(":status", "503")], [], 0),
        ([(":status", "429"), ("x-tidegate-quota", "1"), ("x-tidegate-limited", "quota")], [], ""),
        ([(":status", "429"), ("x-tidegate-limited", "1")], [], ""),
    ],
)
def test_what_an_answer_settles(headers: Headers, chunks: list[tuple[int, str]], settled: Any) -> None:
    """Text, which is no number, means: nobody is told."""
    stream = _ask(_script()).respond(headers, chunks)
    assert stream.errors == []
    assert _told(stream) == (356, settled)
    assert not [name for name in stream.response if name.startswith("x-tidegate")]


def test_a_refusal_of_the_policy_service_is_counted_by_its_rule_and_keeps_its_headers() -> None:
    script = _script()
    ours = [(":status", "429"), ("x-tidegate-quota", "1"), ("retry-after", "9"), ("content-type", "a/b")]
    stream = _ask(script).respond(ours)
    assert stream.response == {":status": "429", "retry-after": "9", "content-type": "a/b"}
    assert stream.body is None
    assert script.counters()["tg_requests~chat~acme~llama:r2~limited~quota"] == 1
    grpc = _ask(script).respond([(":status", "200"), ("x-tidegate-quota", "1"), ("grpc-status", "8")])
    assert grpc.response["grpc-message"] == "quota used up"


def test_odd_usage_is_counted_and_costs_the_reservation() -> None:
    script = _script()
    odd = '{"usage":{"total_tokens":-4}}'
    stream = _ask(script).respond([OK, UPSTREAM, ("content-type", "application/json")], [(1, odd)])
    assert _told(stream) == (356, 356)
    counted = {name: n for name, n in script.counters().items() if name.startswith("tg_usage")}
    assert counted == {"tg_usage~llama:r2~odd": 1, "tg_usage~llama:r2~missing": 1}


def test_a_body_without_a_length_is_measured_where_it_is_held_anyway() -> None:
    header = Route(id="chat", pattern="/v1/chat", models=("llama", "mini"))
    script = _script(routes=[header])
    metadata = {names.BODY_METADATA: {"model": "llama"}, names.METADATA: {"tenant": "acme"}}
    request = {"route": "chat", "headers": [], "metadata": metadata, "body_bytes": 800}
    made = script.spec.stream(script.world, script._table(request))
    assert _told(Stream(script, made).request()) == (456, 200)
