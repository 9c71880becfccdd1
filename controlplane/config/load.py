"""A directory -> a Policy: `tidegate.yaml` and every `tenants/*.yaml`.

A broken main file keeps the whole last good configuration; a broken tenant keeps its own last good version.
Nothing an operator can write makes `load` raise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.config.choose import choose
from controlplane.config.compile_main import compile_main
from controlplane.config.compile_tenants import route_pools, with_tenants
from controlplane.config.document import Document
from controlplane.config.draft import Draft
from controlplane.config.entry import Entry
from controlplane.config.lint_main import main_problems, tenant_references
from controlplane.config.lint_policy import policy_problems
from controlplane.config.lint_tenant import tenant_problems
from controlplane.config.mounts import frozen_files, mount_points
from controlplane.config.problem import Problem, Severity, has_errors, in_order
from controlplane.config.read import Content, read_bytes, read_jwks, read_key
from controlplane.config.schema import MainFile
from controlplane.config.tenant_file import Candidate, TenantDocument, candidates, tenant_document
from controlplane.config.validate import validated
from controlplane.model.policy import Policy

MAIN_FILE = "tidegate.yaml"
TENANT_DIRECTORY = "tenants"
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What is in force after a look at the files. `policy` is None if there never was a usable main file."""

    policy: Policy | None
    problems: tuple[Problem, ...]
    beside: tuple[Path, ...] = ()  # files outside the documents that were read: keys, key sets
    tenants: Mapping[str, Entry] = field(default_factory=dict, repr=False, compare=False)
    documents: Mapping[str, TenantDocument] = field(default_factory=dict, repr=False, compare=False)

    @property
    def has_errors(self) -> bool:
        return has_errors(self.problems)


def load(directory: Path, previous: Loaded | None = None, *, mounts: frozenset[str] | None = None) -> Loaded:
    """Read `directory`. `mounts` are the mount points of this process, found out when None."""
    beside: list[Path] = []
    documents, found, problems = _read_tenants(directory, previous, beside)
    problems += frozen_files(directory, [MAIN_FILE, *documents], mount_points() if mounts is None else mounts)
    draft, main_found = _read_main(directory, beside)
    problems += main_found
    known = frozenset(one.id for one in found if one.id is not None) | frozenset(
        previous.tenants if previous else ()
    )
    if draft is not None:
        problems += tenant_references(draft, known)
    if draft is None or has_errors(main_found) or has_errors([*tenant_references(draft, known)]):
        return _whole_last_good(previous, problems, found, documents, beside)
    served = route_pools(draft.policy)
    before = previous.tenants if previous else {}
    main = draft.policy
    chosen = choose(found, before, main, served, lambda entry: tenant_problems(entry, main, served))
    policy = with_tenants(main, list(chosen.entries.values()))
    return Loaded(
        policy=policy,
        problems=in_order([*problems, *chosen.problems, *policy_problems(policy)]),
        beside=tuple(sorted(set(beside))),
        tenants=chosen.entries,
        documents=documents,
    )


def _whole_last_good(
    previous: Loaded | None,
    problems: list[Problem],
    found: list[Candidate],
    documents: Mapping[str, TenantDocument],
    beside: list[Path],
) -> Loaded:
    for candidate in found:
        problems += candidate.problems
    if previous is not None and previous.policy is not None:
        message = "the whole last good configuration stays in force"
        problems.append(Problem(severity=Severity.WARNING, file=MAIN_FILE, line=1, path="", message=message))
    return Loaded(
        policy=previous.policy if previous else None,
        problems=in_order(problems),
        beside=tuple(sorted(set(beside) | set(previous.beside if previous else ()))),
        tenants=previous.tenants if previous else {},
        documents=documents,
    )


def _read_main(directory: Path, beside: list[Path]) -> tuple[Draft | None, list[Problem]]:
    content, fault = read_bytes(directory / MAIN_FILE)
    if fault:
        expected = f"a file {MAIN_FILE} in the configuration directory"
        return None, [_whole(MAIN_FILE, fault, expected)]
    document = Document(MAIN_FILE, content)
    problems = list(document.parsed.problems)
    if not document.parsed.readable:
        return None, problems
    main, found = validated(document, MainFile, document.parsed.value)
    problems += found
    if main is None:
        return None, problems
    jwks = {}
    for name, provider in main.identity.jwt.items():
        beside.append(directory / provider.jwks_file)
        read = read_jwks(directory / provider.jwks_file)
        jwks[name] = read.text
        if read.fault:
            path = ("identity", "jwt", name, "jwks_file")
            problems.append(document.problem(path, read.fault, read.expected))
    policy = compile_main(main, document, jwks, directory)
    draft = Draft(main=main, document=document, policy=policy, directory=directory)
    return draft, [*problems, *main_problems(draft)]


def _read_tenants(
    directory: Path, previous: Loaded | None, beside: list[Path]
) -> tuple[dict[str, TenantDocument], list[Candidate], list[Problem]]:
    names, problems = _tenant_names(directory)
    documents: dict[str, TenantDocument] = {}
    found: list[Candidate] = []

    def key(name: str) -> Content:
        beside.append(directory / name)
        return read_key(directory / name)

    for name in names:
        content, fault = read_bytes(directory / name)
        if fault:
            problems.append(_whole(name, fault, "a readable tenant file"))
            found.append(Candidate(id=None, file=name, line=1, prefix=(), entry=None, problems=()))
            continue
        kept = previous.documents.get(name) if previous else None
        documents[name] = kept if kept and kept.content == content else tenant_document(name, content)
        problems += documents[name].problems
        found += candidates(documents[name], key)
    return documents, found, problems


def _tenant_names(directory: Path) -> tuple[list[str], list[Problem]]:
    """Names of the tenant files, sorted; what looks like one but is not read gets a warning."""
    try:
        listed = sorted(os.scandir(directory / TENANT_DIRECTORY), key=lambda entry: entry.name)
    except OSError:
        warning = f"there is no directory `{TENANT_DIRECTORY}`: nobody has a quota"
        return [], [_whole(TENANT_DIRECTORY, warning, "a directory of tenant files", Severity.WARNING)]
    names, problems = [], []
    for entry in listed:
        name = f"{TENANT_DIRECTORY}/{entry.name}"
        if entry.name.startswith("."):
            continue
        if _is_directory(entry):
            problems.append(
                _whole(name, "directories are not read", "tenant files side by side", Severity.WARNING)
            )
        elif entry.name.endswith(_SUFFIXES):
            names.append(name)
        elif entry.name.lower().endswith(_SUFFIXES):
            problems.append(_whole(name, "is not read", "a name that ends in .yaml", Severity.WARNING))
    return names, problems


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads round in circles; reading it says so
        return False


def _whole(name: str, message: str, expected: str, severity: Severity = Severity.ERROR) -> Problem:
    return Problem(severity=severity, file=name, line=1, path="", message=message, expected=expected)
