"""A configuration directory that tests write, and the words they judge it by."""

from __future__ import annotations

import hashlib
import textwrap
from pathlib import Path

from controlplane.config import Loaded, Problem, Severity, load

MAIN = """\
gateways: {min: 1, max: 1}
default_tenant: guest
models:
  chat:
    default_version: v1
    versions:
      v1: {endpoints: ["10.0.0.1:8000"]}
      v2: {endpoints: ["10.0.0.2:8000"], rate: {base_rate: 50}}
  embed:
    versions:
      e1: {endpoints: ["10.0.0.3:8000"]}
routes:
  - {path: /v1/chat/completions, id: chat, models: [chat]}
  - {path: "/v1/models/*", id: models}
  - {path: /v1/models-list, id: list, free: true}
"""


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def tenant(id: str, extra: str = "", *, key: str | None = None) -> str:
    """A tenant file with one API key, `key-ID` unless told otherwise."""
    head = f"id: {id}\nidentity: {{api_keys: [{{sha256: {digest(key or f'key-{id}')}}}]}}\n"
    return head + textwrap.dedent(extra)


class Directory:
    """A configuration on disk: the main file above, the tenants `guest` and `acme`, until it is changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "tenants").mkdir()
        self.main(MAIN)
        self.tenant("guest", "id: guest\n")
        self.tenant("acme", tenant("acme"))

    def main(self, text: str) -> None:
        (self.path / "tidegate.yaml").write_text(textwrap.dedent(text), encoding="utf-8")

    def change_main(self, old: str, new: str) -> None:
        text = (self.path / "tidegate.yaml").read_text()
        assert old in text
        self.main(text.replace(old, new, 1))

    def tenant(self, name: str, text: str) -> None:
        (self.path / "tenants" / f"{name}.yaml").write_text(textwrap.dedent(text), encoding="utf-8")

    def remove(self, name: str) -> None:
        (self.path / "tenants" / f"{name}.yaml").unlink()

    def load(self, previous: Loaded | None = None) -> Loaded:
        return load(self.path, previous, mounts=frozenset())


def errors(loaded: Loaded) -> list[Problem]:
    return [problem for problem in loaded.problems if problem.severity is Severity.ERROR]


def warnings(loaded: Loaded) -> list[Problem]:
    return [problem for problem in loaded.problems if problem.severity is Severity.WARNING]


def tenants(loaded: Loaded) -> set[str]:
    return {tenant.id for tenant in loaded.policy.tenants} if loaded.policy else set()


def find(loaded: Loaded, **wanted: object) -> Problem:
    """The first problem with these attributes; `message` need only be contained."""

    def fits(problem: Problem) -> bool:
        said = wanted.get("message", "")
        rest = [(key, value) for key, value in wanted.items() if key != "message"]
        return str(said) in problem.message and all(getattr(problem, key) == value for key, value in rest)

    found = [problem for problem in loaded.problems if fits(problem)]
    assert found, f"nothing like {wanted} in:\n" + "\n".join(map(str, loaded.problems))
    return found[0]
