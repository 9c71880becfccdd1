"""Text in, the same text without anything that is or looks like a secret out.

A last line of defence: nothing is meant to carry a secret this far. What Envoy or a library says in an error
is beyond our hands, though: it may quote a header, a script's table or a URL. API keys themselves are known
here only by their digests, so a word is one when its digest is.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

HIDDEN = "[redacted]"

_SECRET_NAME = re.compile(
    r"(^|[_-])(api[_-]?keys?|authorization|cookie|password|passwd|secret|token|credentials?|digests?)$", re.I
)

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+", re.I), rf"\1 {HIDDEN}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?"), HIDDEN),  # a JWT
    (re.compile(r"(?<![A-Za-z0-9])(sk|pk|rk)[-_][A-Za-z0-9_-]{12,}"), HIDDEN),  # a prefixed API key
    (re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{64}(?![0-9A-Fa-f])"), HIDDEN),  # a SHA-256 digest
    (re.compile(r"(://[^/\s:@]*):[^/\s@]+@"), rf"\1:{HIDDEN}@"),  # a password in a URL
    (
        re.compile(
            r"((?:api[_-]?key|x-api-key|authorization|password|passwd|secret|access[_-]?token)[\"']?\s*[:=]\s*[\"']?)"
            r"(?!\[redacted\]|(?:Bearer|Basic)\s)[^\s\"',;&}]+",
            re.I,
        ),
        rf"\1{HIDDEN}",
    ),
)


KEY_LENGTH_AT_LEAST = 8
MARKS_AT_MOST = 12
_WORD = re.compile(r"[^\s\"'`,;&()<>\[\]{}|]{8,}")

NONE: frozenset[str] = frozenset()


def redact(text: str, digests: AbstractSet[str] = NONE) -> str:
    """`text` with every recognised secret replaced; `digests` are SHA-256 of API keys, lower-case hex."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    if digests:
        text = _WORD.sub(lambda word: HIDDEN if _is_key(word.group(), digests) else word.group(), text)
    return text


def redact_all(value: Any, digests: AbstractSet[str] = NONE) -> Any:
    """`value` (JSON-like) with secrets replaced in every string, and under every name that means a secret."""
    if isinstance(value, str):
        return redact(value, digests)
    if isinstance(value, Mapping):
        return {name: _redact_field(str(name), item, digests) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(item, digests) for item in value]
    return value


def _redact_field(name: str, value: Any, digests: AbstractSet[str]) -> Any:
    if value and _SECRET_NAME.search(name):
        return HIDDEN
    return redact_all(value, digests)


def _is_key(word: str, digests: AbstractSet[str]) -> bool:
    """Whether `word`, or a part of it between marks like those of a URL or a header, is an API key."""
    marks = list(itertools.islice(re.finditer("[=:@.?]", word), MARKS_AT_MOST))
    starts = [0, *(mark.end() for mark in marks)]
    ends = [len(word), *(mark.start() for mark in marks)]
    parts = {word[start:end] for start in starts for end in ends if end - start >= KEY_LENGTH_AT_LEAST}
    return any(hashlib.sha256(part.encode("utf-8", "replace")).hexdigest() in digests for part in parts)
