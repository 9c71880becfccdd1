"""Answers of model servers, cut anywhere -> the tokens they cost, and how much of a stream has come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa import luajit21

from controlplane.assets import read_asset

LUA = luajit21.LuaRuntime(encoding="latin-1", unpack_returned_tuples=True)
MODULE = LUA.execute(read_asset("lua/envoy/usage.lua"))
HEADERS = LUA.eval(
    "function(kind, encoding) return { get = function(_, name) "
    "return name == 'content-type' and kind or name == 'content-encoding' and encoding or nil "
    "end } end"
)
SSE, JSON = "text/event-stream; charset=utf-8", "application/json"


def _reader(content_type: str | None, encoding: str | None = None) -> Any:
    return MODULE.reader(HEADERS(content_type, encoding))


def _read(pieces: Iterable[bytes], content_type: str, *, finish: bool = True) -> Any:
    reader = _reader(content_type)
    for piece in pieces:
        reader.feed(reader, piece.decode("latin-1"))
    if finish:
        reader.finish(reader)
    return reader


def _events(*data: Any, ending: str = "\n", names: Sequence[str | None] = ()) -> bytes:
    lines = []
    for index, each in enumerate(data):
        if index < len(names) and names[index]:
            lines.append(f"event: {names[index]}")
        text = each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)
        lines += [f"data: {text}", ""]
    return "".join(line + ending for line in lines).encode()


def _chat(text: str | None = None, **more: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}], **more}


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 4, "total_tokens": 999},
}
CHAT_STREAM = _events(
    {"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None},
    _chat("Hal", usage=None),
    _chat('l"o', usage=None),
    _chat("Zo\u00eb \\", usage=None),
    {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None},
    {"choices": [], "usage": USAGE},
    "[DONE]",
)
ANTHROPIC_STREAM = _events(
    {
        "type": "message_start",
        "message": {
            "content": [],
            "usage": {
                "input_tokens": 25,
                "output_tokens": 1,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 0,
            },
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "!"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
    {"type": "message_stop"},
    names=(
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ),
)
RESPONSES_STREAM = _events(
    {"type": "response.created", "response": {"usage": None, "output": []}},
    {"type": "response.output_text.delta", "delta": "Hel"},
    {"type": "response.output_text.delta", "delta": "lo"},
    {
        "type": "response.completed",
        "response": {
            "output": [{"content": [{"text": "Hello"}]}],
            "usage": {
                "input_tokens": 36,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 87,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 123,
            },
        },
    },
    names=(
        "response.created",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.completed",
    ),
)
STREAMS = {
    "chat": (CHAT_STREAM, 12, 3),
    "anthropic": (ANTHROPIC_STREAM, 45, 2),
    "responses": (RESPONSES_STREAM, 123, 2),
}
BODIES = {
    "chat": ({"choices": [{"message": {"content": 'say "usage": {"total_tokens": 1}'}}], "usage": USAGE}, 12),
    "usage first": ({"usage": USAGE, "choices": [{"message": {"content": "x" * 9000}}]}, 12),
    "embeddings": (
        {"data": [{"embedding": [0.1, -2e-5]}], "usage": {"prompt_tokens": 8, "total_tokens": 8}},
        8,
    ),
    "responses": (
        {"status": "incomplete", "output": [], "usage": {"input_tokens": 5, "output_tokens": 6}},
        11,
    ),
    "anthropic": (
        {
            "type": "message",
            "usage": {
                "input_tokens": 25,
                "cache_creation_input_tokens": 10,
                "cache_creation": {"ephemeral_5m_input_tokens": 10},
                "output_tokens": 7,
            },
        },
        42,
    ),
    "zero": ({"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}, 0),
    "a tool's own usage": (
        {
            "content": [{"type": "tool_use", "input": {"usage": {"output_tokens": 0}}}],
            "usage": {"input_tokens": 2, "output_tokens": 3},
        },
        5,
    ),
    "a tool's after the true one": (
        {
            "usage": {"total_tokens": 70},
            "tools": [{"usage": {"total_tokens": 1}}],
            "input": {"usage": {"total_tokens": 1}},
        },
        70,
    ),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_stream_cut_at_any_byte_costs_the_same(name: str, ending: str) -> None:
    whole, total, emitted = STREAMS[name]
    text = whole.replace(b"\n", ending.encode())
    for cut in range(len(text) + 1):
        reader = _read([text[:cut], text[cut:]], SSE)
        assert (reader.total, reader.emitted, reader.odd) == (total, emitted, None), cut


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_byte_by_byte_costs_the_same(name: str) -> None:
    whole, total, emitted = STREAMS[name]
    reader = _read([whole[at : at + 1] for at in range(len(whole))], SSE)
    assert (reader.total, reader.emitted) == (total, emitted)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_body_cut_at_any_byte_costs_the_same(name: str, indent: int | None) -> None:
    value, total = BODIES[name]
    text = json.dumps(value, indent=indent).encode()
    for cut in range(0, len(text) + 1, max(1, len(text) // 500)):
        reader = _read([text[:cut], text[cut:]], JSON)
        assert (reader.total, reader.odd) == (total, None), cut
    assert _read([text[at : at + 1] for at in range(len(text))], JSON).total == total


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(alphabet='ab"\\{}[]:,usage\n\u00e9'),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["usage", "total_tokens", "x", 'q"', "response", "message"]), inner
            )
        ),
        max_leaves=15,
    ),
    st.integers(0, 10_000_000),
    st.lists(st.integers(1, 40), max_size=30),
)
def test_whatever_else_a_body_holds_its_own_usage_counts(other: Any, total: int, cuts: list[int]) -> None:
    text = json.dumps({"other": other, "usage": {"total_tokens": total}, "after": [other]}).encode()
    pieces, at = [], 0
    for size in cuts:
        pieces.append(text[at : at + size])
        at += size
    assert _read([*pieces, text[at:]], JSON).total == total


def test_comments_pings_fields_and_lines_of_an_event_do_not_matter() -> None:
    split = json.dumps({"usage": {"total_tokens": 7}}, indent=1).split("\n")
    stream = (
        ": hello\nid: 4\nretry: 10\n:\n\nevent:\ndata\n" + "".join(f"data:{line}\n" for line in split) + "\n"
    )
    assert _read([stream.encode()], SSE).total == 7
    assert _read([stream.replace("\n", "\r\n").encode()], SSE).total == 7


def test_repeated_usage_is_never_added_and_nothing_overwrites_something() -> None:
    chunks = [
        _chat("x", usage={"prompt_tokens": 5, "completion_tokens": n, "total_tokens": 5 + n})
        for n in (1, 2, 3)
    ]
    assert _read([_events(*chunks, _chat("y", usage=None), "[DONE]")], SSE).total == 8


def test_a_stream_that_breaks_off_has_cost_what_came() -> None:
    stream = _events(*[_chat(f"t{n}", usage=None) for n in range(50)])
    reader = _read([stream], SSE, finish=False)
    assert (reader.total, reader.input, reader.emitted) == (None, None, 50)
    half = ANTHROPIC_STREAM[: ANTHROPIC_STREAM.index(b"event: message_delta")]
    reader = _read([half], SSE, finish=False)
    assert (reader.total, reader.input, reader.emitted) == (None, 30, 2)


@pytest.mark.parametrize(
    ("data", "emitted"),
    [
        ({"choices": [{"text": "a"}]}, 1),
        ({"choices": [{"delta": {"content": None, "reasoning_content": "hm"}}]}, 1),
        ({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": '{"a'}}]}}]}, 1),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, 0),
        ({"choices": [{"text": "", "finish_reason": "stop"}]}, 0),
        ({"choices": []}, 0),
        ("[DONE]", 0),
    ],
)
def test_what_counts_as_a_piece_of_text(data: Any, emitted: int) -> None:
    assert _read([_events(data)], SSE).emitted == emitted


@pytest.mark.parametrize(
    ("usage", "total"),
    [
        ('{"total_tokens": "12"}', 12),
        ('{"total_tokens": 11.2}', 12),
        ('{"total_tokens": -5}', None),
        ('{"total_tokens": 1e30}', None),
        ('{"total_tokens": NaN}', None),
        ('{"total_tokens": -Infinity}', None),
        ('{"total_tokens": true}', None),
        ('{"total_tokens": "many"}', None),
        ('{"prompt_tokens": 5, "completion_tokens": -3, "total_tokens": 2}', None),
        ('{"total_tokens": ' + "9" * 400 + "}", None),
        ('{"pad": "' + "x" * 5000 + '", "total_tokens": 3}', None),
    ],
)
def test_numbers_that_cannot_be_are_counted_and_not_believed(usage: str, total: int | None) -> None:
    text = f'{{"usage": {usage}}}'.encode()
    for reader in (_read([text], JSON), _read([b"data: " + text + b"\n\n"], SSE)):
        assert reader.total == total
        assert reader.odd is (None if usage.endswith("11.2}") else True)


@pytest.mark.parametrize(
    "usage", ["null", "[]", '"none"', "{}", '{"total_tokens": null}', '{"input": 3}', "7"]
)
def test_nothing_told_is_missing_not_zero(usage: str) -> None:
    reader = _read([f'{{"usage": {usage}, "x": 1}}'.encode()], JSON)
    assert (reader.total, reader.odd) == (None, None)


def test_a_line_longer_than_any_buffer_is_read_without_being_kept() -> None:
    final = {
        "type": "response.completed",
        "response": {"output": ["y" * 300_000], "usage": {"total_tokens": 5}},
    }
    stream = _events(final, _chat("x"), names=["response.completed"])
    for size in (1000, 16_384, 16_385, 1_000_000):
        reader = _read([stream[at : at + size] for at in range(0, len(stream), size)], SSE, finish=False)
        assert (reader.total, reader.emitted, reader.rest, reader.data) == (5, 1, "", None)


def test_endless_streams_need_constant_memory() -> None:
    reader = _reader(SSE)
    piece = _events(_chat("word", usage=None)).decode()
    junk = "x" * 65_536  # a line that never ends
    collect = LUA.eval("function() collectgarbage() return collectgarbage('count') end")
    for _ in range(200):
        reader.feed(reader, piece)
    before_kb = collect()
    for _ in range(20_000):
        reader.feed(reader, piece)
    for _ in range(300):
        reader.feed(reader, junk)
    assert collect() - before_kb < 100
    body = _reader(JSON)
    body.feed(body, '{"data":["')
    for _ in range(300):
        body.feed(body, junk)
    assert collect() - before_kb < 100


@pytest.mark.parametrize(
    ("content_type", "encoding", "readable"),
    [
        (SSE, None, True),
        ("application/json; charset=utf-8", "identity", True),
        ("application/problem+json", None, True),
        ("Text/Event-Stream", None, True),
        (JSON, "gzip", False),
        ("application/grpc", None, False),
        ("audio/mpeg", None, False),
        (None, None, False),
    ],
)
def test_what_can_be_read(content_type: str | None, encoding: str | None, readable: bool) -> None:
    assert (_reader(content_type, encoding) is not None) is readable


@given(st.lists(st.binary(max_size=200), max_size=20), st.sampled_from([SSE, JSON]))
def test_no_bytes_make_a_reader_fail(pieces: list[bytes], content_type: str) -> None:
    _read(pieces, content_type)


@given(
    st.lists(
        st.sampled_from(
            [
                b'{"usage"',
                b":",
                b"{",
                b"}",
                b"[",
                b"]",
                b'"',
                b"\\",
                b"data: ",
                b"\n",
                b"\r\n",
                b"event: x_delta\n",
                b'"total_tokens":3',
                b'"response":',
                b" ",
                b"e",
            ]
        ),
        max_size=40,
    ),
    st.sampled_from([SSE, JSON]),
)
def test_no_syntax_makes_a_reader_fail_or_depend_on_its_pieces(
    pieces: list[bytes], content_type: str
) -> None:
    apart, together = _read(pieces, content_type), _read([b"".join(pieces)], content_type)
    assert (apart.total, apart.emitted) == (together.total, together.emitted)
