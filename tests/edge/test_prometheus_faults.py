"""A backend that is dead, slow, partial or odd, over real sockets: readings are absent, never zero, and in
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controlplane.model.policy import Endpoint, Pool, PrometheusPolicy
from controlplane.model.signal import SIGNALS, Reading
from controlplane.signals.catalogue import load_catalogue
from controlplane.signals.prometheus import PrometheusSource

POOL = Pool(
    model="llama",
    version="v1",
    endpoints=(Endpoint(address="10.0.0.1", port=8000, pod="pod-0", namespace="default"),),
)
LABELS = {"model_name": "llama", "pod": "pod-0", "namespace": "default", "instance": "10.0.0.1:8000"}


def series(name: str, value: str, *, age_s: float = 1.0, **labels: str) -> dict[str, Any]:
    now_s = time.time() - age_s
    values = [[now_s - 1.0, value], [now_s, value]]
    return {"metric": {"__name__": name, **LABELS, **labels}, "values": values}


def whole(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "matrix", "result": list(rows)}}


def healthy() -> dict[str, Any]:
    """The first answer about one busy pod with one GPU, sampled a second ago."""
    return whole(
        series("vllm:num_requests_running", "4"),
        series("vllm:kv_cache_usage_perc", "0.5"),
        series("vllm:e2e_request_latency_seconds_count", "100"),
        series("DCGM_FI_DEV_GPU_UTIL", "60", UUID="a"),
    )


@dataclass
class Server:
    """A backend in memory. `answer` makes the reply to a query."""

    url: str = ""
    asked: list[web.Request] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
    answer: Callable[[str], Any] = lambda query: whole()

    async def query(self, request: web.Request) -> web.StreamResponse:
        form = dict((await request.post()).items()) if request.method == "POST" else dict(request.query)
        self.asked.append(request)
        self.forms.append({name: str(value) for name, value in form.items()})
        answer = self.answer(self.forms[-1].get("query", ""))
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.json_response(answer)


def windowed(rows: dict[str, str]) -> Callable[[str], Any]:
    """`healthy` for the first query; for the second, the value of each branch whose expression contains a
    key.
    """

    def answer(query: str) -> Any:
        if query.startswith("{__name__"):
            return healthy()
        found = []
        for branch in query.split(" or label_replace"):
            number = branch.split('"tidegate_branch", "')[1].split('"')[0]
            for part, value in rows.items():
                if part in branch:
                    found.append({"metric": {"tidegate_branch": number}, "value": [time.time(), value]})
                    break
        return whole(*found)

    return answer


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(Server()) as served:
        yield served


@contextlib.asynccontextmanager
async def serving(server: Server, context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    app = web.Application()
    app.router.add_route("*", "/{prefix:.*}api/v1/query", server.query)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    server.url = f"{'https' if context else 'http'}://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


def source(url: str, *, patience_s: float | None = None, **changes: Any) -> PrometheusSource:
    policy = replace(PrometheusPolicy(url=url, timeout_s=0.5), **changes)
    return PrometheusSource([POOL], policy, load_catalogue(), clock=time.time, patience_s=patience_s)


async def read(url: str, **changes: Any) -> dict[str, Reading]:
    asked = source(url, **changes)
    try:
        return dict((await asked.read(time.time()))[POOL.id])
    finally:
        await asked.close()


def all_absent(found: dict[str, Reading], why: str) -> None:
    assert set(found) == set(SIGNALS)
    for reading in found.values():
        assert reading.value is None
        assert why in reading.absent


async def test_a_healthy_answer_becomes_readings(server: Server) -> None:
    server.answer = windowed({"histogram_quantile": "1.5", "_count": "2.0"})
    found = await read(server.url)
    assert found["running_requests"].value == 4
    assert found["gpu_util_percent"].value == 60
    assert found["latency_p95_s"].value == 1.5
    assert found["latency_p95_s"].count == 600
    assert found["endpoints_up"].value == 1


async def test_a_dead_host_is_absent_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = time.monotonic()
    found = await read(f"http://127.0.0.1:{port}")
    assert time.monotonic() - started < 2.0, "no retries"
    all_absent(found, "Connection refused")


async def test_a_slow_host_is_given_up_at_the_timeout(server: Server) -> None:
    server.answer = lambda query: asyncio.sleep(5.0, healthy())
    started = time.monotonic()
    found = await read(server.url)
    assert time.monotonic() - started < 3.0
    all_absent(found, "no answer within 0.5 s")


async def test_a_host_that_drips_is_given_up_at_the_timeout() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)

    dripping = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = dripping.sockets[0].getsockname()[1]
    started = time.monotonic()
    found = await read(f"http://127.0.0.1:{port}")
    assert time.monotonic() - started < 3.0
    all_absent(found, "no answer within 0.5 s")
    dripping.close()


async def test_a_read_does_not_wait_longer_than_its_patience(server: Server) -> None:
    server.answer = lambda query: asyncio.sleep(0.2, windowed({})(query))
    asked = source(server.url, patience_s=0.05, timeout_s=2.0)
    first = (await asked.read(time.time()))[POOL.id]
    assert first["running_requests"].value is None
    await asyncio.sleep(0.8)
    late = (await asked.read(time.time()))[POOL.id]
    await asked.close()
    assert late["running_requests"].value == 4, "a late answer is not thrown away"


async def test_a_slow_host_holds_one_thread_whatever_the_number_of_reads(server: Server) -> None:
    server.answer = lambda query: asyncio.sleep(1.0, whole())
    before = threading.active_count()
    asked = source(server.url, patience_s=0.01, timeout_s=1.5)
    for _ in range(20):
        await asked.read(time.time())
    assert threading.active_count() - before <= 1
    assert len(server.asked) == 1
    await asked.close()


async def test_a_dead_host_is_asked_less_and_less_often(server: Server) -> None:
    server.answer = lambda query: web.Response(status=503, text="down")
    asked = source(server.url)
    now_s = time.time()
    for tick in range(20):
        found = (await asked.read(now_s + 0.01 * tick))[POOL.id]
    assert len(server.asked) == 3
    assert "next try in" in found["running_requests"].absent
    server.answer = windowed({})
    found = (await asked.read(now_s + 60.0))[POOL.id]
    assert found["running_requests"].value == 4
    await asked.close()


async def test_warnings_make_an_answer_partial(server: Server) -> None:
    partial = {**healthy(), "warnings": ["store 10.1.2.3 is unavailable"]}
    server.answer = lambda query: partial
    all_absent(await read(server.url), "partial answer: store 10.1.2.3 is unavailable")


async def test_hints_about_a_query_are_no_warnings(server: Server) -> None:
    hint = 'PromQL info: metric might not be a counter, name does not end in _total/_sum/_count: "x" (1:2)'
    server.answer = lambda query: {**windowed({})(query), "warnings": [hint]}
    assert (await read(server.url))["running_requests"].value == 4


async def test_gauges_stay_when_only_the_second_query_fails(server: Server) -> None:
    second = {**whole(), "warnings": ["too many samples"]}
    server.answer = lambda query: healthy() if query.startswith("{__name__") else second
    found = await read(server.url)
    assert found["running_requests"].value == 4
    assert found["latency_p95_s"].value is None
    assert "too many samples" in found["latency_p95_s"].absent


async def test_an_empty_vector_is_no_zero(server: Server) -> None:
    found = await read(server.url)
    assert all(reading.value in (None, 0.0) for reading in found.values())
    assert found.pop("endpoints_up").value == 0
    for reading in found.values():
        assert reading.value is None
        assert reading.absent
    assert "no sample in the last 90 s matches it" in found["running_requests"].absent


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "9223372036854775794"])
async def test_an_impossible_number_is_no_value(server: Server, value: str) -> None:
    rows = (series("vllm:num_requests_running", value), series("DCGM_FI_DEV_GPU_UTIL", value, UUID="a"))
    server.answer = lambda query: whole(*rows)
    found = await read(server.url)
    for name in ("running_requests", "gpu_util_percent"):
        assert found[name].value is None
        assert "is outside" in found[name].absent


async def test_a_quantile_of_nothing_is_no_data(server: Server) -> None:
    server.answer = windowed({"histogram_quantile": "NaN", "_count": "0"})
    assert (await read(server.url))["latency_p95_s"].absent == "no requests in the last 300 s"


async def test_an_old_sample_keeps_its_age(server: Server) -> None:
    server.answer = lambda query: whole(series("vllm:num_requests_running", "4", age_s=40.0))
    found = await read(server.url)
    age_s = found["running_requests"].age_s(time.time())
    assert age_s == pytest.approx(40.0, abs=1.0)
    assert found["endpoints_up"].value == 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (web.Response(status=422, text='{"status":"error","error":"bad"}'), "HTTP Status Code 422"),
        (web.Response(status=200, text="<html>login</html>"), "unusable answer"),
        ({"status": "success", "data": {"result": [{"metric": 3}]}}, ""),
        (
            {"status": "success", "data": {"result": [{"metric": {}, "values": [["x", "y"]]}]}},
            "unusable rows",
        ),
        ([1, 2], "unusable answer"),
    ],
    ids=["422", "html", "no values", "junk values", "list"],
)
async def test_an_odd_answer_is_absent(server: Server, answer: Any, why: str) -> None:
    server.answer = lambda query: answer
    found = await read(server.url)
    assert all(reading.value in (None, 0.0) for reading in found.values())
    assert why in found["running_requests"].absent


async def test_post_carries_the_query_in_the_body_and_get_in_the_url(server: Server) -> None:
    for method in ("POST", "GET"):
        await read(server.url, method=method, query_params={"dedup": "true"})
        request = server.asked[-1]
        assert request.method == method
        assert request.query["dedup"] == "true"
        assert ("query" in request.query) == (method == "GET")
        assert server.forms[-1]["query"].startswith("{__name__=~")


async def test_prefix_headers_and_matchers_reach_the_backend(server: Server) -> None:
    await read(
        f"{server.url}/select/0/prometheus/",
        headers={"X-Scope-OrgID": "serving|batch"},
        matchers='cluster="eu-1"',
    )
    assert server.asked[0].path == "/select/0/prometheus/api/v1/query"
    assert server.asked[0].headers["X-Scope-OrgID"] == "serving|batch"
    assert 'cluster="eu-1"' in server.forms[0]["query"]


async def test_a_bearer_token_is_read_again_for_every_query(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    asked = source(server.url, bearer_token_file=str(token))
    await asked.read(time.time())
    token.write_text("second\n")
    await asked.read(time.time())
    token.unlink()
    found = (await asked.read(time.time()))[POOL.id]
    await asked.close()
    sent = [request.headers["Authorization"] for request in server.asked]
    assert sent == ["Bearer first", "Bearer second"]
    assert "token: cannot be read" in found["running_requests"].absent


async def test_basic_authentication_reads_its_password_from_a_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame")
    await read(server.url, basic_user="tide", basic_password_file=str(tmp_path / "password"))
    assert server.asked[0].headers["Authorization"] == "Basic dGlkZTpvcGVuIHNlc2FtZQ=="


async def test_a_backend_behind_mutual_tls_is_read(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    async with serving(Server(answer=windowed({})), context) as server:
        files = {"ca_file": str(certificate), "cert_file": str(certificate), "key_file": str(key)}
        assert (await read(server.url, timeout_s=2.0, **files))["running_requests"].value == 4
        all_absent(await read(server.url, timeout_s=2.0), "certificate verify failed")


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "backend")])
    now = datetime.datetime.now(datetime.UTC)

    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "tls.crt", folder / "tls.key"
