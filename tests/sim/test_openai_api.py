"""Completion requests are read, and answered, as vLLM does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.sim.openai_api import DONE, Ask, Refused, Renderer, parse

CHAT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hello there"}]}


def _parse(document: object, *, chat: bool = True) -> Ask:
    return parse(json.dumps(document).encode(), chat=chat)


def _renderer(ask: Ask, *, usage: bool = True) -> Renderer:
    return Renderer(ask, id="id-1", created=1700000000, model="chat", prompt_tokens=3, usage=usage)


def _events(stream: bytes) -> list[Any]:
    lines = [line for line in stream.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_chat_request_is_read() -> None:
    ask = _parse(CHAT | {"max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}})
    assert ask.messages == (("user", "hello there"),)
    assert (ask.model, ask.max_tokens, ask.stream, ask.include_usage) == ("chat", 5, True, True)
    assert ask.prompt_tokens == 3


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("12345678", 2), (["1234", "5678"], 2), ([1, 2, 3], 3), ("", 1)],
    ids=["text", "texts", "token ids", "empty"],
)
def test_a_prompt_may_be_text_texts_or_token_ids(prompt: object, tokens: int) -> None:
    assert _parse({"prompt": prompt}, chat=False).prompt_tokens == tokens


def test_text_parts_of_a_message_count() -> None:
    parts = [{"type": "text", "text": "1234"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert _parse({"messages": [{"role": "user", "content": parts}]}).text == "1234"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 9),
        ({"max_completion_tokens": None, "max_tokens": 7}, 7),
    ],
    ids=["none", "old name", "new name wins", "null is not set"],
)
def test_the_answers_length_has_two_names(options: dict[str, Any], expected: int | None) -> None:
    assert _parse(CHAT | options).max_tokens == expected


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"messages": []}',
        b'{"messages": ["hi"]}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "many"}',
        b'{"messages": [{"role": "user", "content": "x"}], "stream_options": 3}',
    ],
)
def test_a_bad_request_is_a_400_with_an_openai_error(body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        parse(body, chat=True)
    error = json.loads(refused.value.body())["error"]
    assert (error["code"], error["type"]) == (400, "BadRequestError")
    assert error["message"]


def test_a_json_answer_has_usage() -> None:
    answer = json.loads(_renderer(_parse(CHAT)).whole("The tide", 2, "length"))
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "The tide"}
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_a_stream_opens_with_the_role_and_closes_with_reason_usage_and_done() -> None:
    render = _renderer(_parse(CHAT | {"stream": True, "stream_options": {"include_usage": True}}))
    events = _events(
        render.first() + render.piece("The", 1, None) + render.piece(' "tide"', 2, "length") + render.last(2)
    )
    assert [event["object"] for event in events] == ["chat.completion.chunk"] * 4
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"]["content"] for event in events[1:3]] == ["The", ' "tide"']
    assert [event["choices"][0]["finish_reason"] for event in events[:3]] == [None, None, "length"]
    assert (events[3]["choices"], events[3]["usage"]["completion_tokens"]) == ([], 2)


def test_usage_is_absent_unless_asked_for() -> None:
    assert _renderer(_parse(CHAT | {"stream": True})).last(2) == DONE


def test_continuous_usage_is_cumulative() -> None:
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    render = _renderer(_parse(CHAT | options))
    events = _events(render.piece("a", 1, None) + render.piece("b", 2, "stop") + render.last(2))
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 2]


def test_a_server_without_usage_gives_none_whatever_was_asked() -> None:
    ask = _parse(CHAT | {"stream": True, "stream_options": {"include_usage": True}})
    assert _renderer(ask, usage=False).last(2) == DONE
    assert "usage" not in json.loads(_renderer(ask, usage=False).whole("x", 1, "stop"))


def test_a_plain_completion_has_text() -> None:
    ask = _parse({"prompt": "hello", "stream": True}, chat=False)
    render = _renderer(ask)
    assert render.first() == b""
    (event,) = _events(render.piece("a", 1, "stop") + render.last(1))
    assert (event["object"], event["choices"][0]["text"]) == ("text_completion", "a")
