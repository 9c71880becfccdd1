"""One tenant quota file -> its entries, each judged by itself: a wrong one does not touch its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.config.document import Document
from controlplane.config.entry import Entry
from controlplane.config.problem import PathParts, Problem
from controlplane.config.read import EMPTY_DIGEST, Content
from controlplane.config.schema import TenantFile
from controlplane.config.validate import validated

ReadKey = Callable[[str], Content]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One tenant of a file before keys are read. `spec` is None when its shape is wrong."""

    id: str | None  # as far as it can be read
    spec: TenantFile | None
    prefix: PathParts
    line: int
    window_lines: tuple[int, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantDocument:
    """A whole file. It depends on nothing but its bytes, so it is kept until they change."""

    name: str
    content: bytes
    parts: tuple[Part, ...]
    problems: tuple[Problem, ...] = ()  # of the file as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A tenant that asks to take effect; without `entry` it cannot."""

    id: str | None
    file: str
    line: int
    prefix: PathParts
    entry: Entry | None
    problems: tuple[Problem, ...]


def tenant_document(name: str, content: bytes) -> TenantDocument:
    """The tenants of one file. Never raises."""
    document = Document(name, content)
    parsed = document.parsed
    if not parsed.readable or not isinstance(parsed.value, dict):
        problems = list(parsed.problems)
        if parsed.readable:
            problems.append(document.problem((), "is not a tenant", "a mapping with `id`, or with `tenants`"))
        part = Part(id=None, spec=None, prefix=(), line=1, window_lines=(), problems=())
        return TenantDocument(name=name, content=content, parts=(part,), problems=tuple(problems))
    if "tenants" not in parsed.value:
        part = _part(document, parsed.value, (), list(parsed.problems))
        return TenantDocument(name=name, content=content, parts=(part,))
    return _listed(document, parsed.value)


def _listed(document: Document, value: dict[str, Any]) -> TenantDocument:
    """A file with `tenants: [...]`."""
    problems = [
        document.problem((field,), f"unknown field `{field[:60]}`", "nothing beside `tenants`")
        for field in value
        if field != "tenants"
    ]
    listed = value["tenants"]
    if not isinstance(listed, list):
        problems.append(document.problem(("tenants",), "is not a list", "a list of tenants"))
        listed = []
    of_parts: dict[int, list[Problem]] = {index: [] for index in range(len(listed))}
    for problem in document.parsed.problems:
        inside = [index for index in of_parts if problem.path.startswith(f"tenants[{index}]")]
        (of_parts[inside[0]] if inside else problems).append(problem)
    parts = tuple(
        _part(document, item, ("tenants", index), of_parts[index]) for index, item in enumerate(listed)
    )
    if problems and not parts:
        parts = (Part(id=None, spec=None, prefix=(), line=1, window_lines=(), problems=()),)
    return TenantDocument(name=document.name, content=document.content, parts=parts, problems=tuple(problems))


def _part(document: Document, value: Any, prefix: PathParts, problems: list[Problem]) -> Part:
    spec, found = validated(document, TenantFile, value, prefix)
    said = value.get("id") if isinstance(value, dict) else None
    lines: tuple[int, ...] = ()
    if spec is not None:
        lines = tuple(
            document.line((*prefix, field, index))
            for field in ("limits", "per_route_rate_limit")
            for index in range(len(getattr(spec, field)))
        )
    return Part(
        id=said if isinstance(said, str) else None,
        spec=None if problems else spec,
        prefix=prefix,
        line=document.line(prefix),
        window_lines=lines,
        problems=(*problems, *found),
    )


def candidates(document: TenantDocument, read_key: ReadKey) -> list[Candidate]:
    """The file's tenants with their keys read. `read_key` gives the digest of the key in a file."""
    return [_candidate(document, part, read_key) for part in document.parts]


def _candidate(document: TenantDocument, part: Part, read_key: ReadKey) -> Candidate:
    problems, entry = list(part.problems), None
    if part.spec is not None:
        digests, faults = _digests(document, part, part.spec, read_key)
        problems += faults
        if not faults:
            entry = Entry(
                spec=part.spec,
                digests=tuple(sorted(set(digests))),
                file=document.name,
                prefix=part.prefix,
                line=part.line,
                window_lines=part.window_lines,
                content=document.content,
            )
    return Candidate(
        id=part.id,
        file=document.name,
        line=part.line,
        prefix=part.prefix,
        entry=entry,
        problems=tuple(problems),
    )


def _digests(
    document: TenantDocument, part: Part, spec: TenantFile, read_key: ReadKey
) -> tuple[list[str], list[Problem]]:
    digests: list[str] = []
    faults = []
    for index, key in enumerate(spec.identity.api_keys):
        field = "file" if key.file is not None else "sha256"
        found = read_key(key.file) if key.file is not None else Content(text=(key.sha256 or "").lower())
        if found.text == EMPTY_DIGEST:
            found = Content(fault="is the digest of an empty key", expected="the digest of a key")
        if found.text in digests:
            found = Content(fault="is the same key as another one of this tenant", expected="each key once")
        if found.fault:
            path = (*part.prefix, "identity", "api_keys", index, field)
            faults.append(
                Document(document.name, document.content).problem(path, found.fault, found.expected)
            )
        else:
            digests.append(found.text)
    return digests, faults
