"""Bytes of a YAML file -> plain values and the line each of them stands on.

libyaml composes the node tree (ten times faster than PyYAML's own parser); the values are built here, because
YAML 1.1 turns `on`, `010`, `1:30` and `2024-06-01` into something nobody meant and lets a repeated key win
silently. Dates stay text; booleans and null keep their meaning but remember how they were written; every
other surprise is a problem. No input makes this module raise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml

from controlplane.config.problem import PathParts, Problem, Severity, dotted, shown

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64  # the schema is eight levels deep

_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,29})")
_DECIMAL = re.compile(r"[-+]?([0-9]{1,30}\.[0-9]{0,30}|\.[0-9]{1,30})([eE][-+][0-9]{1,3})?")
_NOT_FINITE = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_BOOLEANS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_TEXT = ("str", "timestamp", "value", "merge")


@dataclass(frozen=True)
class Document:
    """One file of the configuration. `name` is how problems call it."""

    name: str
    content: bytes

    @cached_property
    def parsed(self) -> Parsed:
        """Its value, and what is wrong with it as YAML. Never raises."""
        return _parse(self.name, self.content)

    def line(self, path: PathParts = ()) -> int:
        """The 1-based line of `path`, of the nearest enclosing thing when it is absent."""
        return _line(self.parsed.root, path)

    def scalar(self, path: PathParts) -> yaml.ScalarNode | None:
        """The scalar as written at `path`, None when there is none."""
        node = self.parsed.root
        for part in path:
            found = _child(node, part)
            if found is None:
                return None
            node = found[1]
        return node if isinstance(node, yaml.ScalarNode) else None

    def problem(
        self,
        path: PathParts,
        message: str,
        expected: str = "",
        *,
        severity: Severity = Severity.ERROR,
        at: PathParts | None = None,
    ) -> Problem:
        """A finding about `path`; `at` gives the line when it is not that of `path`."""
        line = self.line(path if at is None else at)
        return Problem(
            severity=severity,
            file=self.name,
            line=line,
            path=dotted(path),
            message=message,
            expected=expected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The outcome of reading one file. `value` is usable only when `readable`."""

    value: Any
    root: yaml.Node | None
    readable: bool
    problems: tuple[Problem, ...] = ()


def _parse(name: str, content: bytes) -> Parsed:
    def unreadable(line: int, message: str, expected: str = "") -> Parsed:
        problem = Problem(
            severity=Severity.ERROR, file=name, line=line, path="", message=message, expected=expected
        )
        return Parsed(value=None, root=None, readable=False, problems=(problem,))

    if len(content) > MAX_BYTES:
        return unreadable(1, f"the file has {len(content)} bytes", f"at most {MAX_BYTES}")
    try:
        text = content.decode("utf-8-sig")
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except UnicodeDecodeError as error:
        return unreadable(content[: error.start].count(b"\n") + 1, "not valid UTF-8", "YAML in UTF-8")
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        return unreadable(line, f"not valid YAML: {error.reason}", "YAML 1.1 in UTF-8")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(str(part) for part in (error.context, error.problem) if part)
        return unreadable(mark.line + 1 if mark else 1, f"not valid YAML: {said}", "YAML 1.1 in UTF-8")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return unreadable(1, f"not valid YAML: {type(error).__name__}", "YAML 1.1 in UTF-8")
    if root is None:
        return Parsed(value=None, root=None, readable=True)
    builder = _Builder(file=name)
    value = builder.build(root, ())
    return Parsed(value=value, root=root, readable=True, problems=tuple(builder.problems))


@dataclass
class _Builder:
    """Builds values from nodes. A node reached by several aliases is built once, so no input explodes."""

    file: str
    problems: list[Problem] = field(default_factory=list)
    done: dict[int, Any] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def build(self, node: yaml.Node, path: PathParts) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        if id(node) in self.done:
            return self.done[id(node)]
        if id(node) in self.open:
            self.error(node, path, "refers to itself")
            return None
        if len(path) >= MAX_DEPTH:
            self.error(node, path, "nested too deeply", f"at most {MAX_DEPTH} levels")
            return None
        self.open.add(id(node))
        value: Any
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            value = [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            value = self.mapping(node, path)
        else:
            self.error(node, path, f"tag {_short(node.tag)} is not known here", "no tag")
            value = None
        self.open.discard(id(node))
        self.done[id(node)] = value
        return value

    def mapping(self, node: yaml.MappingNode, path: PathParts) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if _is_merge(key_node):
                for key, value in self.merge(value_node, path).items():
                    merged.setdefault(key, value)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.error(key_node, path, "a list or a mapping as a key", "text")
                continue
            key = self.key(key_node, path)
            line = key_node.start_mark.line + 1
            if key in lines:
                self.error(
                    key_node,
                    (*path, key),
                    f"the key {_quoted(shown(path, key))} is written twice, first on line {lines[key]}",
                    "one key of a name",
                )
            lines.setdefault(key, line)
            own[key] = self.build(value_node, (*path, key))
        return merged | own

    def merge(self, node: yaml.Node, path: PathParts) -> dict[str, Any]:
        """The mapping behind `<<`; the first of several wins, as YAML has it."""
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in parts:
            value = self.build(part, (*path, "<<"))
            if not isinstance(value, dict):
                self.error(part, (*path, "<<"), "`<<` merges mappings only", "a mapping, or a list of them")
                continue
            merged = value | merged
        return merged

    def key(self, node: yaml.ScalarNode, path: PathParts) -> str:
        if _kind(node) not in _TEXT:
            told = reading(node, path) or "is not text"
            self.error(node, (*path, node.value), f"the key {told}", in_quotes(node, path))
        return str(node.value)

    def scalar(self, node: yaml.ScalarNode, path: PathParts) -> Any:
        kind, text = _kind(node), str(node.value)
        if kind in _TEXT:
            return text
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        if kind == "int" and _INTEGER.fullmatch(text):
            return int(text)
        if kind == "float" and text.lower() in _NOT_FINITE:
            return _NOT_FINITE[text.lower()]
        if kind == "float" and _DECIMAL.fullmatch(text):
            return float(text)
        if kind in ("int", "float", "bool"):
            said = shown(path, text)
            wanted = f"plain decimal digits, or text in quotes: '{said}'"
            self.error(node, path, f"{_quoted(said)} is an ambiguous number", wanted)
        else:
            self.error(node, path, f"tag {_short(node.tag)} is not known here", "no tag")
        return text

    def error(self, node: yaml.Node, path: PathParts, message: str, expected: str = "") -> None:
        self.problems.append(
            Problem(
                severity=Severity.ERROR,
                file=self.file,
                line=node.start_mark.line + 1,
                path=dotted(path),
                message=message,
                expected=expected,
            )
        )


def reading(node: yaml.ScalarNode, path: PathParts) -> str:
    """How YAML 1.1 reads an unquoted scalar that is not text, as a clause; empty for text."""
    kind, said = _kind(node), _quoted(shown(path, node.value))
    if kind in _TEXT or node.style in ("'", '"', "|", ">"):
        return ""
    if kind == "bool":
        return f"{said} is read as {str(_BOOLEANS.get(node.value.lower())).lower()}"
    if kind == "null":
        return f"{said} is read as null" if node.value else "is empty"
    return f"{said} is read as a number" if kind in ("int", "float") else ""


def in_quotes(node: yaml.ScalarNode, path: PathParts) -> str:
    """What to write instead of an unquoted scalar that was meant as text."""
    return f"text; write it in quotes: '{shown(path, node.value)}'" if node.value else "text"


def _line(root: yaml.Node | None, path: PathParts) -> int:
    if root is None:
        return 1
    node, mark = root, root.start_mark
    for part in path:
        found = _child(node, part)
        if found is None:
            break
        mark, node = found
    return int(mark.line) + 1


def _child(node: yaml.Node | None, part: str | int, depth: int = 0) -> tuple[Any, yaml.Node] | None:
    """The mark and node of one step down, through merge keys; the last of repeated keys."""
    if part == 0 and isinstance(node, yaml.MappingNode):  # one entry, written without its list
        return node.start_mark, node
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item.start_mark, item
    if not isinstance(node, yaml.MappingNode):
        return None
    for key, value in reversed(node.value):
        if isinstance(key, yaml.ScalarNode) and key.value == part and not _is_merge(key):
            return key.start_mark, value
    if depth < MAX_DEPTH:
        for source in _merge_sources(node):
            if found := _child(source, part, depth + 1):
                return found
    return None


def _merge_sources(node: yaml.MappingNode) -> Iterator[yaml.Node]:
    for key, value in node.value:
        if _is_merge(key):
            yield from value.value if isinstance(value, yaml.SequenceNode) else (value,)


def _is_merge(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "merge"


def _kind(node: yaml.ScalarNode) -> str:
    tag = str(node.tag)
    return tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag


def _short(tag: str) -> str:
    return "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag


def _quoted(text: str) -> str:
    return f"`{text}`"
