"""The listener: filters in their order, answers of our own, and a log without secrets."""

from __future__ import annotations

import json

import pytest

from controlplane.model import resource as types
from controlplane.model.policy import Listener, PolicyService
from controlplane.xds import codec, names
from controlplane.xds.accesslog import FIELDS
from controlplane.xds.listener import listener
from controlplane.xds.replies import REPLIES, body

PLAIN = codec.decode(
    types.LISTENER, codec.encode(listener(Listener(max_request_bytes=123), PolicyService(), "-- closed"))
)
MANAGER = PLAIN["filter_chains"][0]["filters"][0]["typed_config"]


def test_identity_comes_before_limits_and_limits_before_the_router() -> None:
    assert [entry["name"] for entry in MANAGER["http_filters"]] == [
        "envoy.filters.http.health_check",
        "envoy.filters.http.cors",
        names.JWT_FILTER,
        names.IDENTITY_FILTER,
        names.BODY_FILTER,
        names.LIMITS_FILTER,
        names.RATE_LIMIT_FILTER,
        names.QUOTA_FILTER,
        "envoy.filters.http.router",
    ]


def test_the_listener_waits_for_its_scripts_and_is_closed_when_they_do_not_come() -> None:
    found = {entry["name"]: entry.get("config_discovery") for entry in MANAGER["http_filters"]}
    for name in (names.IDENTITY_FILTER, names.LIMITS_FILTER):
        assert found[name]["default_config"]["default_source_code"]["inline_string"] == "-- closed"
        assert "apply_default_config_without_warming" not in found[name]
        assert found[name]["config_source"]["initial_fetch_timeout"] == "5s"


def test_the_largest_request_is_the_operators() -> None:
    assert PLAIN["per_connection_buffer_limit_bytes"] == 123


def test_no_field_of_the_access_log_can_hold_a_credential() -> None:
    text = " ".join(FIELDS.values()).lower()
    assert not any(word in text for word in ("authorization", "api-key", "cookie", "(:path)", "body)"))


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.code)
def test_every_answer_is_one_openai_error_without_placeholders(reply) -> None:  # type: ignore[no-untyped-def]
    error = json.loads(body(reply))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "%" not in body(reply)  # would be read as a format
    assert (reply.retry_after_s or 1) >= 1


def test_no_answer_replaces_a_body_of_a_script() -> None:
    """A script's answers have no response flag; 413 and 504, which no script sends, go by their status."""
    assert {reply.status for reply in REPLIES if not reply.flags} == {413, 504}
    assert "body_format" not in MANAGER["local_reply_config"]
