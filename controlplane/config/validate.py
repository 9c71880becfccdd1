"""A value of one document -> a section of the schema, or every problem with it, in the operator's words.

Pydantic finds what is wrong; here it is said with file, line and what was expected. An explicit null is an
error: `limit:` with nothing behind it must not read as "no limit".
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from controlplane.config.document import MAX_DEPTH, Document, in_quotes, reading
from controlplane.config.problem import PathParts, Problem, is_confidential, shown
from controlplane.config.schema.scalar import Section

S = TypeVar("S", bound=Section)

_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
    "too_short": ("min_length", "at least this many entries:"),
    "too_long": ("max_length", "at most this many entries:"),
    "string_too_long": ("max_length", "at most this many characters:"),
    "string_too_short": ("min_length", "at least this many characters:"),
}


def validated(
    document: Document, section: type[S], value: Any, prefix: PathParts = ()
) -> tuple[S | None, list[Problem]]:
    """`value`, which stands at `prefix` of `document`, as a `section`; None when there are errors."""
    empty = set(_nulls(value, prefix))
    problems = [_empty(document, path) for path in sorted(empty, key=str)]
    result: S | None = None
    try:
        result = section.model_validate(value)
    except ValidationError as error:
        for found in error.errors(include_url=False, include_input=False):
            path = (*prefix, *found["loc"])
            if path not in empty:
                problems.append(_problem(document, section, found, prefix))
    except RecursionError:
        problems.append(document.problem(prefix, "nested too deeply", "a document of the schema's shape"))
    return (None if problems else result), problems


def _empty(document: Document, path: PathParts) -> Problem:
    node = document.scalar(path)
    if node is None or not node.value:
        return document.problem(path, "is empty", "a value; or leave the field out")
    wanted = f"a value, or {in_quotes(node, path)}; or leave the field out"
    return document.problem(path, reading(node, path), wanted)


def _nulls(value: Any, path: PathParts) -> Iterator[PathParts]:
    if value is None:
        if path:
            yield path
    elif len(path) >= MAX_DEPTH // 4:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _nulls(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nulls(item, (*path, index))


def _problem(document: Document, section: type[Section], found: ErrorDetails, prefix: PathParts) -> Problem:
    is_key = bool(found["loc"]) and found["loc"][-1] == "[key]"
    loc = found["loc"][:-1] if is_key else found["loc"]
    path: PathParts = (*prefix, *loc)
    kind, context = found["type"], found.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(document, section, loc, path)
    if kind == "missing":
        return document.problem(path, "is missing", "this field; it has no default", at=path[:-1])
    node = document.scalar(path)
    told = "" if node is None or is_key else reading(node, path)
    if kind in _KINDS:
        wanted = _KINDS[kind]
        if kind == "string_type" and node is not None and told:
            return document.problem(path, told, in_quotes(node, path))
        return document.problem(path, _what(document, path), wanted)
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = context.get(name)
        wanted = f"{words} {bound:g}" if isinstance(bound, int | float) else words
        return document.problem(path, _what(document, path, "out of range"), wanted)
    if kind == "finite_number":
        return document.problem(path, _what(document, path), "a finite number")
    if kind == "literal_error":
        wanted = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
        return document.problem(path, told or _what(document, path), f"one of {wanted}")
    if kind == "tidegate":
        message, wanted = str(context["message"]), str(context["expected"])
        said = f"`{shown(path, node.value)}`: {message}" if node is not None and not is_key else message
        return document.problem(path, f"the name is {message}" if is_key else said, wanted)
    if kind == "string_pattern_mismatch":
        return document.problem(path, _what(document, path), f"text that matches {context.get('pattern')}")
    return document.problem(path, found["msg"][:200])


def _what(document: Document, path: PathParts, otherwise: str = "of the wrong kind") -> str:
    """What stands there, as far as it may be shown."""
    node = document.scalar(path)
    if node is None:
        return f"is {otherwise}"
    if node.style in ("'", '"'):
        return f"the text '{shown(path, node.value)}' is {otherwise}"
    return f"`{shown(path, node.value)}` is {otherwise}"


def _unknown(document: Document, section: type[Section], loc: PathParts, path: PathParts) -> Problem:
    inner = _section_at(section, loc[:-1])
    known = sorted(inner.model_fields) if inner else []
    if is_confidential(path[:-1]):
        return document.problem(path[:-1], "has an unknown field", f"fields {', '.join(known)}")
    name = str(loc[-1])
    close = nearest(name, known)
    hint = f"; did you mean `{close}`?" if close else ""
    return document.problem(path, f"unknown field `{name[:60]}`{hint}", f"one of {', '.join(known)}")


def nearest(name: str, known: typing.Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be."""
    close = difflib.get_close_matches(name[:100].lower(), list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _section_at(section: type[Section], loc: PathParts) -> type[BaseModel] | None:
    """The section that the schema has at `loc`."""
    hint: Any = section
    for part in loc:
        inner = section_in(hint)
        if inner is not None:
            field = inner.model_fields.get(str(part))
            hint = field.annotation if field else None
        else:
            hint = element(hint)
    return section_in(hint)


def plain(hint: Any) -> Any:
    """`hint` without Annotated and None."""
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif origin in (typing.Union, types.UnionType):
            hint = next((arg for arg in typing.get_args(hint) if arg is not type(None)), None)
        else:
            return hint


def section_in(hint: Any) -> type[BaseModel] | None:
    """The section that `hint` means, None when it means something else."""
    bare = plain(hint)
    return bare if isinstance(bare, type) and issubclass(bare, BaseModel) else None


def element(hint: Any) -> Any:
    """What a list or a mapping holds."""
    arguments = typing.get_args(plain(hint))
    return arguments[-1] if arguments else None
