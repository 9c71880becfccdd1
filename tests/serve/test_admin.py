import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from fake_view import API_KEY, DIGESTS, NOW_S, ODD_API_KEY, POOLS, FakeView, policy, xds_status
from prometheus_client import CollectorRegistry

from controlplane.model.decision import KEY_REASON_CODES, KEY_REASONS
from controlplane.serve.admin import admin_app
from controlplane.serve.changes import Change
from controlplane.serve.collector import ViewCollector
from controlplane.serve.view import ConfigStatus

TOKEN = "an-admin-token"
Open = Callable[..., Any]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """`await opened(view, token)`: a client of a running admin API."""
    clients: list[TestClient[Any, Any]] = []

    async def start(view: FakeView, token: str | None = TOKEN) -> TestClient[Any, Any]:
        registry = CollectorRegistry()
        registry.register(ViewCollector(view))
        client = TestClient(TestServer(admin_app(view, registry=registry, token=lambda: token)))
        await client.start_server()
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()


async def document(client: Any, path: str, *, status: int = 200) -> dict[str, Any]:
    response = await client.get(path)
    assert response.status == status, await response.text()
    assert response.content_type == "application/json"
    answer: dict[str, Any] = await response.json()
    return answer


async def test_a_process_that_answers_is_alive_even_before_its_first_tick(opened: Open) -> None:
    client = await opened(FakeView.starting())
    assert await document(client, "/healthz") == {"status": "alive"}


async def test_not_ready_says_what_is_missing(opened: Open) -> None:
    client = await opened(FakeView.starting())
    answer = await document(client, "/readyz", status=503)
    assert answer == {"ready": False, "reasons": ["no snapshot was published yet"]}


async def test_ready_has_no_reasons(opened: Open) -> None:
    client = await opened(FakeView.running())
    assert await document(client, "/readyz") == {"ready": True, "reasons": []}


@pytest.mark.parametrize("name", ["decisions", "signals", "explain?tenant=a&route=b&model_version=c"])
async def test_before_the_first_tick_documents_are_not_ready(opened: Open, name: str) -> None:
    client = await opened(FakeView.starting())
    answer = await document(client, f"/v1/{name}", status=503)
    assert answer["error"] == {"code": "not_ready", "message": "no snapshot was published yet"}


async def test_metrics_are_prometheus_text(opened: Open) -> None:
    client = await opened(FakeView.running())
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'tidegate_pool_rate_per_second{model_version="chat:v1"} 40.0' in await response.text()


async def test_decisions_show_every_pool_and_key_with_numbers_and_reasons(opened: Open) -> None:
    client = await opened(FakeView.running())
    answer = await document(client, "/v1/decisions")
    assert [pool["model_version"] for pool in answer["pools"]] == list(POOLS)
    assert answer["pools"][0]["reason"] == "gpu_util at 60 %"
    assert answer["total"] == len(answer["keys"]) == 5
    assert answer["next"] is None
    first = answer["keys"][0]
    assert (first["id"], first["rate_per_s"], first["burst_requests"]) == ("chat|acme|chat:v1", 20.0, 20.0)
    assert first["reason"] == KEY_REASONS[0]
    assert (first["offered_per_s"], first["admitted_per_s"], first["limited_per_s"]) == (30.0, 20.0, 10.0)
    assert answer["keys"][-1]["demand_per_s"] is None


def test_every_reason_has_its_own_code() -> None:
    assert len(set(KEY_REASON_CODES)) == len(KEY_REASONS)


async def test_without_gateway_counters_traffic_is_null_and_not_zero(opened: Open) -> None:
    view = FakeView.running()
    object.__setattr__(view.tick.observation, "traffic", None)  # type: ignore[union-attr]
    answer = await document(await opened(view), "/v1/decisions")
    assert answer["keys"][0]["offered_per_s"] is None


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("tenant=acme", ["chat|acme|chat:v1", "chat|acme|chat:v2"]),
        ("tenant=acme&model_version=chat:v1", ["chat|acme|chat:v1"]),
        ("model_version=chat:v2", ["chat|acme|chat:v2", "chat|globex|chat:v2"]),
        ("tenant=acme&route=/v1/chat/completions", ["chat|acme|chat:v1", "chat|acme|chat:v2"]),
        ("tenant=acme&route=other", []),
        ("tenant=nobody", []),
    ],
)
async def test_decisions_are_filtered(opened: Open, query: str, ids: list[str]) -> None:
    answer = await document(await opened(FakeView.running()), f"/v1/decisions?{query}")
    assert [key["id"] for key in answer["keys"]] == ids


async def test_pages_follow_each_other_without_gap_or_overlap(opened: Open) -> None:
    client = await opened(FakeView.running())
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        answer = await document(client, f"/v1/decisions?limit=2&after={after}")
        seen += [key["id"] for key in answer["keys"]]
        after = answer["next"]
    assert seen == [key.id for key in policy().keys]


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1e3", "99999999", "²"])
async def test_a_wrong_limit_is_refused_with_what_is_allowed(opened: Open, limit: str) -> None:
    client = await opened(FakeView.running())
    answer = await document(client, f"/v1/decisions?limit={limit}", status=400)
    assert answer["error"]["message"] == "`limit` must be a whole number from 1 to 10000"


async def test_explain_tells_how_a_limit_came_about(opened: Open) -> None:
    client = await opened(FakeView.running())
    answer = await document(client, "/v1/explain?tenant=acme&route=chat&model_version=chat:v1")
    assert answer["key"]["id"] == "chat|acme|chat:v1"
    assert answer["lines"]
    assert set(answer["lines"][0]) == {"label", "value", "unit", "reason"}


async def test_explain_without_a_name_says_which(opened: Open) -> None:
    client = await opened(FakeView.running())
    answer = await document(client, "/v1/explain?tenant=acme&model_version=chat:v1", status=400)
    assert answer["error"]["field"] == "route"


async def test_explain_of_a_misspelt_name_offers_close_ones(opened: Open) -> None:
    client = await opened(FakeView.running())
    answer = await document(client, "/v1/explain?tenant=acne&route=chat&model_version=chat:v1", status=404)
    assert answer["error"]["code"] == "unknown_tenant"
    assert answer["error"]["close"] == ["acme"]
    assert "did you mean acme" in answer["error"]["message"]


async def test_signals_have_an_age_or_say_why_they_are_absent(opened: Open) -> None:
    answer = await document(await opened(FakeView.running()), "/v1/signals")
    v1, v2 = (pool["signals"] for pool in answer["pools"])
    assert v1["gpu_util_percent"] == {
        "value": 60.0,
        "age_s": 0.5,
        "stale": False,
        "count": 2,
        "source": "scrape",
        "absent": None,
    }
    assert v1["kv_cache_usage_ratio"]["stale"] is True
    assert v2["gpu_util_percent"]["absent"] == "no such metric"
    assert v2["ttft_p95_s"]["absent"] == "never measured"


async def test_xds_shows_gateways_and_what_they_rejected(opened: Open) -> None:
    answer = await document(await opened(FakeView.running(xds=xds_status(nack="bad script"))), "/v1/xds")
    (gateway,) = answer["gateways"]
    assert (gateway["node"], gateway["settled"]) == ("gateway-0", False)
    assert gateway["types"]["ECDS"]["refused"] == 1
    assert gateway["nacks"][0]["reason"] == "bad script"
    assert answer["quarantined"][0]["origin"] == "tidegate.yaml:7"
    assert answer["published"] == {"CDS": 2, "ECDS": 3}


class Finding:
    severity, file, line, path = "error", "tenants/acme.yaml", 4, "tenants[0].api_keys"
    message, expected = f"unexpected {ODD_API_KEY}", "a digest"


async def test_config_shows_files_problems_and_sizes(opened: Open) -> None:
    status = ConfigStatus(loaded_at_s=NOW_S, files=("tidegate.yaml",), problems=(Finding(),))
    answer = await document(await opened(FakeView.running(config=status)), "/v1/config")
    assert answer["in_force"] is False
    assert answer["problems"][0]["file"] == "tenants/acme.yaml"
    assert answer["configured"]["keys"] == 5


async def test_changes_are_newest_first_and_bounded(opened: Open) -> None:
    trail = tuple(
        Change(at_s=NOW_S - age, kind="pool", subject="chat:v1", old=40.0, new=float("nan"), reason="r")
        for age in range(5)
    )
    answer = await document(await opened(FakeView.running(trail=trail)), "/v1/changes?limit=2")
    assert [line["at"] for line in answer["changes"]] == [NOW_S, NOW_S - 1]
    assert answer["changes"][0]["new"] is None


@pytest.mark.parametrize("name", ["decisions", "signals", "xds", "config", "changes", "control"])
async def test_short_addresses_answer_the_same(opened: Open, name: str) -> None:
    client = await opened(FakeView.running())
    assert await document(client, f"/{name}") == await document(client, f"/v1/{name}")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_freeze_with_the_token_is_done_and_signed(opened: Open) -> None:
    view = FakeView.running()
    client = await opened(view)
    response = await client.post(
        "/v1/freeze", json={"on": True, "reason": "load test"}, headers=bearer(TOKEN)
    )
    answer = await response.json()
    assert (response.status, answer["frozen"], answer["reason"]) == (200, True, "load test")
    assert view.switches.frozen
    assert "admin API from 127.0.0.1" in answer["by"]


async def test_the_mode_is_switched_with_the_token(opened: Open) -> None:
    client = await opened(FakeView.running())
    response = await client.post("/v1/mode", json={"mode": "observe"}, headers=bearer(TOKEN))
    assert (await response.json())["mode"] == "observe"


@pytest.mark.parametrize(
    ("token", "headers", "status", "code"),
    [
        (None, bearer(TOKEN), 403, "no_token_configured"),
        ("", bearer(""), 403, "no_token_configured"),
        (TOKEN, {}, 401, "invalid_token"),
        (TOKEN, bearer("wrong"), 401, "invalid_token"),
        (TOKEN, {"authorization": f"Basic {TOKEN}"}, 401, "invalid_token"),
        (TOKEN, {"authorization": "Bearer"}, 401, "invalid_token"),
    ],
    ids=["none configured", "empty file", "none sent", "wrong", "other scheme", "empty"],
)
@pytest.mark.parametrize("path", ["/v1/freeze", "/v1/mode"])
async def test_without_the_right_token_nothing_is_switched(
    opened: Open, path: str, token: str | None, headers: dict[str, str], status: int, code: str
) -> None:
    view = FakeView.running()
    client = await opened(view, token)
    response = await client.post(path, json={"on": True, "mode": "observe"}, headers=headers)
    assert response.status == status
    assert (await response.json())["error"]["code"] == code
    assert view.switches == FakeView.running().switches


@pytest.mark.parametrize("body", ["", "[]", "{", '{"on": "yes"}', '{"on": 1}', "[" * 5000], ids=str)
async def test_a_body_that_says_nothing_clear_is_refused(opened: Open, body: str) -> None:
    client = await opened(FakeView.running())
    response = await client.post("/v1/freeze", data=body, headers=bearer(TOKEN))
    assert response.status == 400
    assert (await response.json())["error"]["code"] == "invalid_body"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", "/v1/freeze", 405), ("DELETE", "/v1/decisions", 405)],
)
async def test_what_does_not_exist_is_json_too(opened: Open, method: str, path: str, status: int) -> None:
    client = await opened(FakeView.running())
    response = await client.request(method, path)
    assert response.status == status
    assert "message" in (await response.json())["error"]


async def test_a_body_that_is_too_large_is_refused(opened: Open) -> None:
    client = await opened(FakeView.running())
    response = await client.post("/v1/freeze", data=b"x" * 100_000, headers=bearer(TOKEN))
    assert response.status == 413


async def test_no_answer_holds_a_secret(opened: Open) -> None:
    change = Change(at_s=NOW_S, kind="key", subject="s", old=1.0, new=2.0, reason=f"key {ODD_API_KEY}")
    nack = f'script error near ["{DIGESTS[0]}"]="acme" and {API_KEY}'
    config = ConfigStatus(problems=(Finding(),), files=("tidegate.yaml",))
    client = await opened(FakeView.running(xds=xds_status(nack=nack), trail=(change,), config=config))
    paths = [
        "/",
        "/readyz",
        "/metrics",
        "/v1/decisions",
        "/v1/signals",
        "/v1/xds",
        "/v1/config",
        "/v1/changes",
    ]
    paths += [f"/v1/explain?tenant={ODD_API_KEY}&route=chat&model_version=chat:v1", "/v1/control"]
    everything = [await (await client.get(path)).text() for path in paths]
    for secret in (API_KEY, ODD_API_KEY, *DIGESTS, TOKEN):
        assert secret not in "".join(everything)


async def test_decisions_show_every_breaker(opened: Open) -> None:
    answer = await document(await opened(FakeView.running()), "/v1/decisions?model_version=chat:v1")
    (made,) = answer["breakers"]
    assert (made["model_version"], made["state"], made["retry_after_s"]) == ("chat:v1", "closed", None)
    assert (made["threshold_s"], made["failure_ratio"], made["capacity_ratio"]) == (0.5, 0.01, 1.0)
    assert made["reason"]


async def test_documents_are_valid_json_with_hostile_numbers(opened: Open) -> None:
    view = FakeView.running()
    view.tick.decision.rate_per_s[:] = float("inf")  # type: ignore[union-attr]
    text = await (await (await opened(view)).get("/v1/decisions")).text()
    assert json.loads(text, parse_constant=pytest.fail)["keys"][0]["rate_per_s"] is None


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "10001", "000000001999999", "9" * 5000, "١"])
async def test_a_page_size_that_is_none_is_refused(opened: Open, limit: str) -> None:
    client = await opened(FakeView.running())
    answer = await document(client, f"/v1/decisions?limit={limit}", status=400)
    assert answer["error"]["code"] == "invalid_parameter"


async def test_a_token_that_is_no_utf8_is_a_wrong_token(opened: Open) -> None:
    client = await opened(FakeView.running())
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(
        b"POST /v1/freeze HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \xff\xfe\r\ncontent-length: 0\r\n\r\n"
    )
    assert (await reader.readline()).split()[1] == b"401"
    writer.close()


async def test_the_reason_of_a_switch_can_always_be_shown(opened: Open) -> None:
    view = FakeView.running()
    client = await opened(view)
    body = b'{"on": true, "reason": "\\ud800 a\\nb \\u001b[2J"}'
    response = await client.post("/v1/freeze", data=body, headers=bearer(TOKEN))
    assert response.status == 200
    assert (await response.json())["reason"] == "a b  [2J"
    await document(client, "/v1/control")


async def test_a_claimed_charset_changes_nothing(opened: Open) -> None:
    client = await opened(FakeView.running())
    headers = bearer(TOKEN) | {"content-type": "application/json; charset=nonsense"}
    response = await client.post("/v1/freeze", data=b'{"on": true}', headers=headers)
    assert response.status == 200


async def test_a_file_name_that_is_no_utf8_can_be_shown(opened: Open) -> None:
    client = await opened(FakeView.running(config=ConfigStatus(files=("tenants/\udcff.yaml",))))
    assert (await document(client, "/v1/config"))["files"] == ["tenants/?.yaml"]


async def test_a_body_that_does_not_unpack_is_refused(opened: Open) -> None:
    client = await opened(FakeView.running())
    headers = bearer(TOKEN) | {"content-encoding": "gzip"}
    response = await client.post("/v1/freeze", data=b"abc", headers=headers)
    assert response.status == 400
    assert (await response.json())["error"]["code"] == "invalid_body"


async def test_scrapes_close_together_share_a_page_and_later_ones_do_not(opened: Open) -> None:
    view = FakeView.running()
    client = await opened(view)
    first = await (await client.get("/metrics")).text()
    view.tick = None
    assert await (await client.get("/metrics")).text() == first
    view.at_s += 0.5
    assert "tidegate_pool_rate_per_second{" not in await (await client.get("/metrics")).text()
