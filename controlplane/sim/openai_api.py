"""OpenAI's completion API as vLLM speaks it: JSON requests in, JSON and server-sent events out. Pure.

The bytes that stay the same over a stream are rendered once (`Renderer`), because a pod sends thousands of
chunks a second and `json.dumps` of each would cost more than the simulated model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

DONE = b"data: [DONE]\n\n"
CHARS_PER_TOKEN = 4


class Refused(Exception):
    """A request that is answered with an error: `status`, and vLLM's error body."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": None, "code": self.status}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One completion request, as far as a model server cares."""

    chat: bool  # /v1/chat/completions, else /v1/completions
    model: str | None
    messages: tuple[tuple[str, str], ...]  # (role, text); a plain prompt is one `user` message
    max_tokens: int | None
    stream: bool
    include_usage: bool  # the last chunk of a stream carries usage
    continuous_usage: bool  # every chunk does

    @property
    def text(self) -> str:
        return "".join(content for _, content in self.messages)

    @property
    def prompt_tokens(self) -> int:
        """A tokenizer's count, estimated: four characters each, and at least one."""
        return max(1, -(-sum(len(content) for _, content in self.messages) // CHARS_PER_TOKEN))


def parse(body: bytes, *, chat: bool) -> Ask:
    """Read a request body; raises Refused (400) when it is not one."""
    try:
        document = json.loads(body)
    except ValueError as error:
        raise Refused(400, f"invalid JSON: {error}") from None
    if not isinstance(document, dict):
        raise Refused(400, "the body must be a JSON object")
    options = document.get("stream_options") or {}
    if not isinstance(options, dict):
        raise Refused(400, "stream_options must be an object")
    return Ask(
        chat=chat,
        model=document.get("model"),
        messages=_messages(document.get("messages"))
        if chat
        else (("user", _prompt(document.get("prompt"))),),
        max_tokens=_max_tokens(document),
        stream=bool(document.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
    )


def _max_tokens(document: dict[str, Any]) -> int | None:
    values = (document.get("max_completion_tokens"), document.get("max_tokens"))
    value = next((each for each in values if each is not None), None)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refused(400, f"max_tokens must be at least 1, got {value!r}")
    return value


def _messages(messages: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "messages: a list with at least one message is required")
    if not all(isinstance(message, dict) and "role" in message for message in messages):
        raise Refused(400, "messages: each must be an object with a role")
    return tuple((str(message["role"]), _content(message.get("content"))) for message in messages)


def _content(content: object) -> str:
    if isinstance(content, list):  # content parts; only text counts
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _prompt(prompt: object) -> str:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(isinstance(part, str) for part in prompt):
        return "".join(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(part, int) for part in prompt):
        return "x" * (CHARS_PER_TOKEN * len(prompt))  # token ids
    raise Refused(400, "prompt: a string, a list of strings or a list of token ids is required")


class Renderer:
    """The answer to one Ask, in the shape it was asked for."""

    def __init__(
        self, ask: Ask, *, id: str, created: int, model: str, prompt_tokens: int, usage: bool
    ) -> None:
        self._ask = ask
        self._prompt_tokens = prompt_tokens
        self._usage = usage
        kind = "chat.completion" if ask.chat else "text_completion"
        self._fields = {"id": id, "object": kind, "created": created, "model": model}
        chunk = self._fields | ({"object": "chat.completion.chunk"} if ask.chat else {})
        self._head = b"data: " + json.dumps(chunk)[:-1].encode() + b', "choices": ['

    def whole(self, answer: str, completion_tokens: int, finish: str) -> bytes:
        """The body of a JSON answer."""
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self._ask.chat:
            choice["message"] = {"role": "assistant", "content": answer}
        else:
            choice["text"] = answer
        usage = {"usage": self._usage_of(completion_tokens)} if self._usage else {}
        return json.dumps({**self._fields, "choices": [choice], **usage}).encode()

    def first(self) -> bytes:
        """What opens a chat stream: the role, before any token."""
        return (
            self._chunk('"delta": {"role": "assistant", "content": ""}', None, 0) if self._ask.chat else b""
        )

    def piece(self, token: str, completion_tokens: int, finish: str | None) -> bytes:
        """The event of one token."""
        content = json.dumps(token)
        inner = f'"delta": {{"content": {content}}}' if self._ask.chat else f'"text": {content}'
        return self._chunk(inner, finish, completion_tokens)

    def last(self, completion_tokens: int) -> bytes:
        """What closes a stream: usage where it was asked for, and the end mark."""
        if not (self._ask.include_usage and self._usage):
            return DONE
        return self._head + b'], "usage": ' + self._usage_text(completion_tokens) + b"}\n\n" + DONE

    def _chunk(self, inner: str, finish: str | None, completion_tokens: int) -> bytes:
        reason = "null" if finish is None else f'"{finish}"'
        choice = f'{{"index": 0, {inner}, "logprobs": null, "finish_reason": {reason}}}]'
        usage = b""
        if self._ask.continuous_usage and self._usage:
            usage = b', "usage": ' + self._usage_text(completion_tokens)
        return self._head + choice.encode() + usage + b"}\n\n"

    def _usage_of(self, completion_tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
        }

    def _usage_text(self, completion_tokens: int) -> bytes:
        return json.dumps(self._usage_of(completion_tokens)).encode()
