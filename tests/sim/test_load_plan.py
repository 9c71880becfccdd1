"""What a load run sends is decided before it starts, and what became of it is counted by when it was sent."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from controlplane.sim.http1 import Response
from controlplane.sim.load_client import SPOOF_MARK, SPOOFED_HEADERS, Writer
from controlplane.sim.load_result import FAILED, TIMED_OUT, Counts, KeyResult, LoadResult
from controlplane.sim.load_spec import LoadKey, LoadSpec, plan
from controlplane.sim.trace import TraceRequest, read_trace

KEYS = (
    LoadKey(name="gold", model="chat:v1", schedule=((0.0, 30.0),), headers=(("authorization", "Bearer k"),)),
    LoadKey(name="bronze", model="chat:v2", schedule=((0.0, 5.0), (5.0, 50.0)), weight=0.2),
)
SPEC = LoadSpec(host="127.0.0.1", port=8080, keys=KEYS, duration_s=10.0)


def _request(**changes: Any) -> tuple[str, dict[str, Any]]:
    """Head and body of one rendered request."""
    recorded = TraceRequest(at_s=0.0, prompt_tokens=1000, answer_tokens=100)
    message = Writer(replace(SPEC, **changes), KEYS[0]).next(recorded)
    head, _, body = message.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}" in head.decode()
    return head.decode(), json.loads(body)


def test_a_plan_is_ordered_bounded_in_time_and_repeatable() -> None:
    trace = read_trace()
    planned = list(plan(SPEC, trace))
    assert planned == list(plan(SPEC, trace))
    assert [at_s for at_s, _, _ in planned] == sorted(at_s for at_s, _, _ in planned)
    assert planned[-1][0] < SPEC.duration_s
    of_key = [sum(index == number for _, index, _ in planned) for number in (0, 1)]
    assert of_key == pytest.approx([300, 275], rel=0.2)


def test_a_plan_is_bounded_in_count() -> None:
    assert len(list(plan(replace(SPEC, max_requests=17), read_trace()))) == 17


def test_a_key_that_drew_no_requests_replays_the_whole_trace() -> None:
    spec = replace(SPEC, keys=(KEYS[0], replace(KEYS[1], weight=0.0)))
    assert {index for _, index, _ in plan(spec, read_trace())} == {0, 1}


def test_sizes_come_from_the_trace_scaled_down() -> None:
    _, body = _request(prompt_scale=0.1, answer_scale=0.05)
    assert (len(body["messages"][0]["content"]), body["max_tokens"]) == (400, 5)
    assert body["model"] == "chat:v1"


def test_the_share_of_streams_is_exact() -> None:
    writer = Writer(replace(SPEC, stream_ratio=0.25), KEYS[0])
    recorded = TraceRequest(at_s=0.0, prompt_tokens=10, answer_tokens=10)
    streams = [b'"stream":true' in writer.next(recorded) for _ in range(40)]
    assert sum(streams) == 10


def test_a_spoofing_client_forges_every_spelling() -> None:
    head, _ = _request(spoof=True)
    names = [line.split(": ")[0] for line in head.split("\r\n") if line.endswith(SPOOF_MARK)]
    assert len(names) == len(SPOOFED_HEADERS)
    assert {"x-tidegate-tenant", "X-Tidegate-Tenant", "x_tidegate_tenant", "Resilience.Status"} <= set(names)
    assert SPOOF_MARK not in _request()[0]


def test_a_spec_survives_json() -> None:
    assert LoadSpec.from_json(json.loads(json.dumps(asdict(SPEC)))) == SPEC


def test_a_misspelt_spec_is_an_error() -> None:
    with pytest.raises(TypeError, match="durations"):
        LoadSpec.from_json({"host": "h", "port": 1, "keys": [], "duration_s": 1, "durations": 2})


def _result() -> LoadResult:
    key = KeyResult(name="gold")
    rows = [
        (100.0, 200),
        (100.5, 429),
        (101.0, 200),
        (101.9, 503),
        (102.0, FAILED),
        (103.0, TIMED_OUT),
        (103.5, 0),
    ]
    for sent_s, status in rows:
        row = key.add(sent_s, status=status)
        key.complete[row] = status in (200, 429, 503)
        key.total_s[row] = (row + 1) / 10
    return LoadResult(started_s=100.0, duration_s=4.0, keys=(key,), unsent=0, late_p99_s=0.0)


def test_windows_count_by_the_time_of_sending_start_included_end_not() -> None:
    key = _result().key("gold")
    assert key.counts(100.0, 101.0) == Counts(offered=2, admitted=1, limited=1)
    assert key.counts(101.0, 102.0) == Counts(offered=2, admitted=1, errors=1)
    assert key.counts(50.0, 60.0) == Counts()


def test_windows_add_up_to_the_totals() -> None:
    result = _result()
    seconds = result.key("gold").per_second(result.started_s, result.duration_s)
    assert len(seconds) == 4
    assert (
        sum(seconds, Counts())
        == result.totals()
        == Counts(offered=7, admitted=2, limited=1, errors=3, pending=1)
    )


def test_a_broken_off_answer_is_admitted_and_cut() -> None:
    key = KeyResult(name="k")
    key.add(1.0, status=200)
    assert key.totals() == Counts(offered=1, admitted=1, cut=1)


def test_quantiles_are_over_whole_good_answers() -> None:
    result = _result()
    assert result.quantile_s(0.0) == pytest.approx(0.1)
    assert result.quantile_s(1.0) == pytest.approx(0.3)
    assert result.quantile_s(0.5, first_chunk=True) is None


def test_a_result_survives_json() -> None:
    result = _result()
    assert LoadResult.from_json(json.loads(json.dumps(result.as_json()))) == result


def test_a_response_object_is_fresh_for_each_request() -> None:
    assert (Response().status, Response().complete) == (0, False)
