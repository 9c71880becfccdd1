"""The commands that talk to a running control plane, against a real admin API on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from aiohttp import web
from fake_view import FakeView, xds_status
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner, Result

from controlplane.cli import explain, switch, top
from controlplane.serve.admin import admin_app

TOKEN = "an-admin-token"
Serve = Callable[[FakeView], str]


@pytest.fixture
def served() -> Iterator[Serve]:
    """`served(view)`: the address of an admin API that shows `view`, on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(view: FakeView) -> str:
        runner = web.AppRunner(admin_app(view, registry=CollectorRegistry(), token=lambda: TOKEN))
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield lambda view: asyncio.run_coroutine_threadsafe(start(view), loop).result(10)
    for runner in runners:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def run(*arguments: str, columns: int = 120) -> Result:
    app = typer.Typer()
    for command in (top.top, top.xds, explain.explain, switch.freeze, switch.mode):
        app.command()(command)
    return CliRunner(env={"COLUMNS": str(columns), "TERM": "dumb"}).invoke(app, arguments)


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("columns", [80, 120])
def test_top_shows_limits_model_versions_and_gateways(served: Serve, columns: int) -> None:
    shown = run("top", "--once", "--admin", served(FakeView.running()), columns=columns)
    assert shown.exit_code == 0
    for word in ("chat:v1", "acme", "globex", "live", "gateway-0", "ACKed", "mode enforce"):
        assert word in shown.output
    assert max(map(len, shown.output.splitlines())) <= columns


def test_top_shows_one_tenant_when_asked(served: Serve) -> None:
    shown = run("top", "--once", "--tenant", "acme", "--admin", served(FakeView.running()))
    assert "globex" not in shown.output


def test_top_says_how_much_it_left_out(served: Serve) -> None:
    shown = run("top", "--once", "--rows", "2", "--admin", served(FakeView.running()))
    assert "... 3 more lines" in shown.output


def test_top_says_that_a_control_plane_is_not_ready_yet(served: Serve) -> None:
    shown = run("top", "--once", "--admin", served(FakeView.starting()))
    assert shown.exit_code == 1
    assert "no snapshot was published yet" in shown.output


def test_xds_shows_what_is_quarantined_and_where_it_was_written(served: Serve) -> None:
    shown = run("xds", "--admin", served(FakeView.running(xds=xds_status(nack="[string]:3: bad"))))
    assert shown.exit_code == 0
    assert "tidegate.limits (from tidegate.yaml:7)" in shown.output
    assert "[string]:3: bad" in shown.output


def test_explain_is_lines_from_the_signal_to_the_bucket(served: Serve) -> None:
    shown = run("explain", "acme", "chat", "chat:v1", "--admin", served(FakeView.running()))
    assert shown.exit_code == 0
    assert shown.output.startswith("acme on chat with chat:v1: 20.0 requests/s, 20.0 at once\n")
    assert "Now: offered 30.0/s, admitted 20.0/s, limited 10.0/s" in shown.output


def test_explain_keeps_long_reasons_in_their_column() -> None:
    line = {"label": "pool rate", "value": 17.07, "unit": "requests/s", "reason": "as fast as it may " * 9}
    sentence = {"label": "to raise it", "value": None, "unit": "", "reason": "others that want less " * 9}
    traffic = {"offered_per_s": None, "rate_per_s": 1.0, "burst_requests": 1.0}
    key = {"tenant": "acme", "route": "chat", "model_version": "chat:v1", **traffic}
    wrapped = explain.explained({"key": key, "lines": [line, sentence]}, 80)
    assert max(map(len, wrapped)) <= 80
    assert wrapped[3].startswith(" " * len("  pool rate    17.07 requests/s  as"[:-2]))
    assert len(explain.explained({"key": key, "lines": [line, sentence]})) < len(wrapped)


def test_explain_of_a_misspelt_tenant_offers_the_right_one(served: Serve) -> None:
    shown = run("explain", "acne", "chat", "chat:v1", "--admin", served(FakeView.running()))
    assert shown.exit_code == 1
    assert shown.output == "no tenant 'acne'; did you mean acme?\n"


@pytest.mark.parametrize(
    "command",
    [("top", "--once"), ("xds",), ("explain", "a", "b", "c"), ("freeze", "on"), ("mode", "observe")],
)
def test_without_a_control_plane_each_command_says_so_and_exits_2(
    nobody: str, command: tuple[str, ...]
) -> None:
    shown = run(*command, "--admin", nobody)
    assert shown.exit_code == 2
    assert f"no control plane answers at {nobody}: Connection refused" in shown.output
    assert "--admin URL" in shown.output


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ftp://127.0.0.1", "http://"], ids=str)
def test_an_odd_address_is_no_traceback(address: str) -> None:
    shown = run("xds", "--admin", address)
    assert shown.exit_code == 2
    assert shown.exception is None or isinstance(shown.exception, SystemExit)


def test_freeze_needs_the_token(served: Serve) -> None:
    view = FakeView.running()
    shown = run("freeze", "on", "--admin", served(view))
    assert shown.exit_code == 1
    assert "admin.token_file" in shown.output
    assert not view.switches.frozen


def test_freeze_and_mode_switch_with_the_token(served: Serve, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    view = FakeView.running()
    options = ("--admin", served(view), "--token-file", str(token_file))
    assert run("freeze", "on", "--reason", "drill", *options).output.startswith("mode enforce, frozen")
    assert view.switches.reason == "drill"
    assert run("freeze", "off", *options).output.startswith("mode enforce, not frozen")
    assert run("mode", "observe", *options).output.startswith("mode observe, not frozen")


def test_a_missing_token_file_is_named(served: Serve, tmp_path: Path) -> None:
    shown = run("freeze", "on", "--token-file", str(tmp_path / "no"), "--admin", served(FakeView.running()))
    assert shown.exit_code == 1
    assert str(tmp_path / "no") in shown.output


def test_top_shows_frozen_and_observe_in_its_first_line(served: Serve) -> None:
    view = FakeView.running()
    view.switches = replace(view.switches, frozen=True, mode=switch.Mode.OBSERVE)
    shown = run("top", "--once", "--admin", served(view))
    first = shown.output.splitlines()[0]
    assert "FROZEN" in first
    assert "nothing is enforced" in first
