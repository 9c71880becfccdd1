"""Quotas over the admin API and `tidegate quota`: shown to all, adjusted with the token, written down."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fake_view import FakeView
from prometheus_client import CollectorRegistry
from quota_policies import NEWER, OLDER, daily, monthly, quota_policy
from typer.testing import CliRunner, Result

from controlplane.app.quotas import Quotas
from controlplane.cli.quota import quota
from controlplane.model.policy import Policy
from controlplane.policy.store import Reservation, Settlement
from controlplane.serve.admin import admin_app
from controlplane.serve.changes import Change
from controlplane.serve.log import make_logger

TOKEN = "an-admin-token"
POLICY = quota_policy(daily(1000), monthly(5000), daily(800, NEWER))
GRANT = {"action": "grant", "tenant": "acme", "model_version": OLDER, "period": "daily", "tokens": 500}


class Office:
    """Quotas with an admin API in front; 300 tokens of the older version are used, 200 reserved."""

    def __init__(self) -> None:
        self.notes: list[Change] = []
        logger = make_logger(io.StringIO(), clock=time.time)
        registry = CollectorRegistry()
        self.quotas = Quotas(clock=time.time, registry=registry, logger=logger, note=self.notes.append)
        self.app = admin_app(
            FakeView.running(), registry=registry, token=lambda: TOKEN, quotas=self.quotas.desk
        )

    async def furnish(self, policy: Policy = POLICY) -> None:
        await self.quotas.apply(policy)
        account, store = self.quotas.judge.accounts["acme", OLDER], self.quotas._store
        for request, tokens in (("r1", 400), ("r2", 200)):
            await store.reserve(account, Reservation(request=request, attempt=request, tokens=tokens))
        await store.settle(account, Settlement(request="r1", tokens=300))


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    office = Office()
    await office.furnish()
    yield office
    await office.quotas.close()


@pytest.fixture
async def client(office: Office) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(office.app)) as client:
        yield client


async def post(client: Any, body: Any, token: str = TOKEN) -> tuple[int, dict[str, Any]]:
    response = await client.post("/v1/quotas", json=body, headers={"authorization": f"Bearer {token}"})
    return response.status, await response.json()


async def test_every_quota_is_shown_with_what_is_left(client: Any) -> None:
    document = await (await client.get("/v1/quotas")).json()
    assert document["degraded"] is False
    rows = {(row["model_version"], row["period"]): row for row in document["quotas"]}
    assert len(rows) == 3
    shown = rows[OLDER, "daily"]
    names = ("limit", "used", "reserved", "remaining", "granted")
    assert [shown[f"{name}_tokens"] for name in names] == [1000, 300, 200, 500, 0]
    assert shown["ends_at"] > time.time()


@pytest.mark.parametrize(
    ("query", "count"),
    [("", 3), (f"model_version={OLDER}", 2), ("tenant=acme", 3), ("tenant=globex", 0)],
)
async def test_quotas_can_be_selected(client: Any, query: str, count: int) -> None:
    assert len((await (await client.get(f"/v1/quotas?{query}")).json())["quotas"]) == count


async def test_a_grant_counts_at_once_and_is_written_down(client: Any, office: Office) -> None:
    status, document = await post(client, GRANT | {"reason": "launch day"})
    assert (status, document["quotas"][0]["remaining_tokens"]) == (200, 1000)
    (note,) = office.notes
    assert (note.kind, note.subject) == ("quota_grant", f"acme|{OLDER}|daily")
    assert (note.old, note.new) == (500, 1000)
    assert "launch day" in note.reason
    assert "+500" in note.reason


async def test_a_reset_forgets_what_was_used_and_keeps_what_is_in_flight(client: Any, office: Office) -> None:
    _, document = await post(client, GRANT | {"action": "reset"})
    assert document["quotas"][0]["used_tokens"] == 0
    assert document["quotas"][0]["reserved_tokens"] == 200
    assert office.notes[0].kind == "quota_reset"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"action": "steal"}, "action"),
        ({"tenant": "nobody"}, "no such quota"),
        ({"model_version": "chat"}, "no such quota"),
        ({"period": "hourly"}, "daily, monthly"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": "many"}, "tokens"),
        ({"tokens": True}, "tokens"),
        ({"tokens": 2**60}, "tokens"),
    ],
)
async def test_what_is_wrong_with_an_adjustment_is_said(
    client: Any, office: Office, change: dict[str, Any], word: str
) -> None:
    status, document = await post(client, GRANT | change)
    assert status == 400
    assert word in document["error"]["message"]
    assert office.notes == []


async def test_adjustments_want_the_token(client: Any, office: Office) -> None:
    status, document = await post(client, GRANT, token="a guess")
    assert (status, document["error"]["code"]) == (401, "invalid_token")
    assert office.notes == []


async def test_a_control_plane_without_quotas_says_so() -> None:
    app = admin_app(FakeView.running(), registry=CollectorRegistry(), token=lambda: TOKEN)
    async with TestClient(TestServer(app)) as client:
        response = await client.get("/v1/quotas")
        assert (response.status, (await response.json())["error"]["code"]) == (404, "no_quotas")


@pytest.fixture
def admin() -> Iterator[str]:
    """The address of a furnished office, on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

    async def start() -> tuple[Office, web.AppRunner]:
        office = Office()
        await office.furnish()
        runner = web.AppRunner(office.app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return office, runner

    office, runner = wait(start())
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    wait(runner.cleanup())
    wait(office.quotas.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture
def run(admin: str, tmp_path: Path) -> Callable[..., Result]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    app = typer.Typer()
    app.add_typer(quota, name="quota")

    def invoke(*arguments: str, with_token: bool = True) -> Result:
        more = ["--token-file", str(token)] if with_token else []
        runner = CliRunner(env={"COLUMNS": "110", "TERM": "dumb"})
        return runner.invoke(app, ["quota", *arguments, "--admin", admin, *more])

    return invoke


def test_quota_show_is_a_table(run: Callable[..., Result]) -> None:
    shown = run("show", "--model-version", OLDER, with_token=False)
    assert shown.exit_code == 0
    assert all(word in shown.output for word in ("acme", "1,000", "5,000", "300", "200", "500"))
    assert NEWER not in shown.output


def test_quota_grant_takes_effect(run: Callable[..., Result]) -> None:
    options = ("--tenant", "acme", "--model-version", OLDER, "--reason", "launch")
    granted = run("grant", "9000", *options)
    assert granted.exit_code == 0
    assert "9,500" in granted.output
    assert run("reset", *options).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "with_token", "said"),
    [
        (("--tenant", "acme", "--model-version", "chat"), True, "no such quota"),
        (("--tenant", "acme", "--model-version", OLDER), False, "--token-file"),
    ],
)
def test_a_refused_adjustment_says_why(
    run: Callable[..., Result], arguments: tuple[str, ...], with_token: bool, said: str
) -> None:
    refused = run("grant", "5", *arguments, with_token=with_token)
    assert refused.exit_code == 1
    assert said in refused.output
