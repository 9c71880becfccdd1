import io
import json
import logging
import sys
from typing import Any

import pytest
from aiohttp.http_exceptions import BadHttpMessage
from fake_view import API_KEY, DIGESTS, ODD_API_KEY, decision, policy

from controlplane.serve.changes import Changes, changes
from controlplane.serve.log import Bridge, Logger, log_changes, log_nack, log_problems, make_logger

POLICY = policy()


class Written:
    """A logger and what it wrote."""

    def __init__(self, level: str = "info") -> None:
        self._stream = io.StringIO()
        self.logger: Logger = make_logger(
            self._stream, clock=lambda: 0.25, level=level, digests=lambda: frozenset(DIGESTS)
        )

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


def test_a_line_is_one_json_object_with_time_and_level() -> None:
    written = Written()
    written.logger.info("gateway_connected", node="gateway-0")
    assert written.lines == [
        {
            "at": "1970-01-01T00:00:00.250Z",
            "node": "gateway-0",
            "event": "gateway_connected",
            "level": "info",
        }
    ]


def test_below_its_level_nothing_is_written() -> None:
    written = Written("warning")
    written.logger.info("quiet")
    assert written.text == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_know_are_null(value: float) -> None:
    written = Written()
    written.logger.info("x", value=value)
    assert written.lines[0]["value"] is None


def test_an_exception_is_one_line_with_its_traceback() -> None:
    written = Written()
    try:
        raise ValueError("bad tick")
    except ValueError as error:
        written.logger.error("tick_failed", exc_info=error)
    assert "ValueError: bad tick" in written.lines[0]["exception"]


def test_each_changed_limit_is_a_line_with_old_new_reason_and_inputs() -> None:
    written = Written()
    log_changes(
        written.logger,
        changes((POLICY, decision(POLICY)), (POLICY, decision(POLICY, rate_per_s=10.0)), keys_at_most=1),
    )
    pool, _, key, omitted = written.lines
    assert (pool["event"], pool["kind"], pool["subject"]) == ("change", "pool", "chat:v1")
    assert (pool["old"], pool["new"]) == (40.0, 10.0)
    assert pool["inputs"]["utilisation_percent"] == 60.0
    assert key["subject"] == "chat|acme|chat:v2"
    assert key["reason"] == "weighted share of the pool's rate"
    assert omitted["keys"] == 4


def test_no_change_is_no_line() -> None:
    written = Written()
    log_changes(written.logger, Changes(lines=()))
    assert written.text == ""


def test_a_nack_names_the_file_behind_it() -> None:
    written = Written()
    log_nack(written.logger, node="gateway-0", type_name="ECDS", origins=["t.yaml:7"], reason="bad script")
    assert written.lines[0]["origins"] == ["t.yaml:7"]
    assert written.lines[0]["level"] == "warning"


class Finding:
    severity, file, line, path, message, expected = "error", "t.yaml", 3, "tenants[0]", "unknown", "a model"


def test_a_problem_says_where_and_whether_the_configuration_is_in_force() -> None:
    written = Written()
    log_problems(written.logger, [Finding()], in_force=False)
    line = written.lines[0]
    assert (line["where"], line["level"], line["in_force"]) == ("t.yaml:3", "error", False)


def test_what_a_library_logs_joins_the_stream() -> None:
    written = Written()
    library = logging.getLogger("tests.serve.library")
    library.propagate = False
    library.addHandler(Bridge(written.logger))
    library.warning("connection to %s failed", f"http://u:{ODD_API_KEY}@host")
    library.info("not this")
    (line,) = written.lines
    assert (line["event"], line["source"], line["level"]) == ("library", "tests.serve.library", "warning")
    assert ODD_API_KEY not in written.text


@pytest.mark.parametrize("secret", [API_KEY, ODD_API_KEY, *DIGESTS])
def test_no_secret_is_ever_written(secret: str) -> None:
    written = Written()
    written.logger.warning(
        "nack", reason=f"near {secret} in table", headers={"authorization": secret}, x=[secret]
    )
    try:
        raise ValueError(f"key {secret} rejected")
    except ValueError as error:
        written.logger.error("failed", exc_info=error, error=str(error))
    assert secret not in written.text


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(), ValueError()])
def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(error: Exception) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    make_logger(Full(), clock=lambda: 0.0).info("x")


def test_what_a_client_sent_wrong_does_not_fill_the_log() -> None:
    written = Written()
    try:
        raise BadHttpMessage("garbage")
    except BadHttpMessage:
        record = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "Error", None, sys.exc_info())
    Bridge(written.logger).handle(record)
    assert written.text == ""
