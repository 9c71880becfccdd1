"""`tenant_id == 'acme' && path == '/v1/models/*'` -> {"tenant_id": "acme", "path": "/v1/models/*"}.

The grammar is exactly that: `field == 'literal'` joined by `&&`, each field at most once. Anything richer
(or, not, prefixes) would need a judgement at request time; the structured form of `match` needs no parser.
"""

from __future__ import annotations

import re

FIELDS = ("tenant_id", "model_version", "path")

_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z_][A-Za-z0-9_.]*)|(?P<text>'[^']*'|\"[^\"]*\")|(?P<mark>==|&&))")
_SHAPE = ("word", "==", "text")


class MatchError(ValueError):
    """The expression does not parse; the message says where."""


def parse_match(expression: str) -> dict[str, str]:
    """The selector of `expression` by field. Raises MatchError."""
    found: dict[str, str] = {}
    tokens = _tokens(expression)
    for start in range(0, len(tokens), 4):
        clause, joint = tokens[start : start + 3], tokens[start + 3 : start + 4]
        if tuple(kind for kind, _, _ in clause) != _SHAPE:
            raise MatchError(f"no `field == 'literal'` at character {_at(tokens, start, expression)}")
        field, literal = clause[0][1], clause[2][1][1:-1]
        if field not in FIELDS:
            raise MatchError(f"unknown field `{field[:40]}`, known are {', '.join(FIELDS)}")
        if field in found:
            raise MatchError(f"`{field}` is compared twice")
        if not literal:
            raise MatchError(f"`{field}` is compared with an empty text, which nothing equals")
        found[field] = literal
        if joint and (joint[0][0] != "&&" or len(tokens) == start + 4):
            raise MatchError(f"only `&&` and another comparison may follow, at character {joint[0][2] + 1}")
    if not found:
        raise MatchError("the expression is empty")
    return found


def _tokens(expression: str) -> list[tuple[str, str, int]]:
    """(kind, text, offset) of each token; kind is `word`, `text`, or the mark itself."""
    tokens: list[tuple[str, str, int]] = []
    place, end = 0, len(expression.rstrip())
    while place < end:
        found = _TOKEN.match(expression, place)
        if found is None:
            raise MatchError(f"cannot read `{expression[place:].strip()[:20]}` at character {place + 1}")
        kind = found.lastgroup or ""
        text = found.group(kind)
        tokens.append((text if kind == "mark" else kind, text, found.start(kind)))
        place = found.end()
    return tokens


def _at(tokens: list[tuple[str, str, int]], index: int, expression: str) -> int:
    return tokens[index][2] + 1 if index < len(tokens) else len(expression) + 1
