"""The shipped examples are right, for the check and for editors; the reference page is up to date."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from controlplane.assets import read_asset
from controlplane.config import load
from controlplane.config.document import Document
from controlplane.config.reference import json_schema, markdown
from controlplane.decide.step import start, step
from controlplane.envoy_binary import find_envoy
from controlplane.model.signal import Observation
from controlplane.xds.bootstrap import Gateway, static
from controlplane.xds.lua_code import lua_code
from controlplane.xds.translate import snapshot

from .written import Directory, digest

ROOT = Path(__file__).parents[2]
EXAMPLES = ("quickstart", "multi-tenant")
FILES = [
    path
    for name in EXAMPLES
    for path in sorted((ROOT / "examples" / name).rglob("*.yaml"))
    if path.parent.name != "signals"  # a catalogue of metric names has a schema of its own
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_no_problems(name: str) -> None:
    loaded = load(ROOT / "examples" / name)
    assert loaded.policy is not None
    assert loaded.problems == ()
    assert loaded.policy.keys


@pytest.mark.envoy
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_real_envoy_accepts_what_an_example_means(name: str, tmp_path: Path) -> None:
    policy = load(ROOT / "examples" / name).policy
    assert policy is not None
    _, decision = step(policy, start(policy), Observation(now_s=0.0, loads={}, traffic=None))
    resources = snapshot(policy, decision, (), code=lua_code(read_asset))
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(static(resources, Gateway(node_id="test"))))
    found = subprocess.run(
        [str(find_envoy()), "--mode", "validate", "-c", str(file)], capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stderr[-2000:]


def test_the_multi_tenant_example_shows_what_it_promises() -> None:
    policy = load(ROOT / "examples/multi-tenant").policy
    assert policy is not None
    assert len(policy.tenants) == 10
    assert {tenant.priority for tenant in policy.tenants} == {"high-priority", "normal", "batch-low"}
    assert {pool.engine for pool in policy.pools} == {"vllm", "sglang"}
    assert len(policy.windows) >= 4
    assert policy.jwt
    assert policy.cors_allow_origins


def test_the_demo_keys_of_the_quickstart_open_its_doors() -> None:
    for path in (ROOT / "examples/quickstart/tenants").iterdir():
        (key,) = set(re.findall(r"sk-demo-[a-z]+", path.read_text()))
        assert hashlib.sha256(key.encode()).hexdigest() in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_editors_accept_the_examples(path: Path) -> None:
    value = Document(path.name, path.read_bytes()).parsed.value
    jsonschema.validate(value, json_schema(tenant=path.parent.name == "tenants"))


@pytest.mark.parametrize(
    ("value", "is_right"),
    [
        ({"id": "acme"}, True),
        ({"tenants": [{"id": "acme"}]}, True),
        ({"id": "acme", "wieght": 1}, False),
        ({"id": "ü"}, False),
        ({"id": "acme", "limit": None}, False),
        ({"id": "acme", "limits": {"tokens": 1, "window_seconds": 1, "match": "path == '/x'"}}, True),
        ({"id": "acme", "limits": [{"tokens": 1, "window_seconds": 1, "match": {"path": "/x"}}]}, True),
        ({"id": "acme", "limits": [{"tokens": 1, "window_seconds": 0}]}, False),
    ],
)
def test_editors_see_what_the_check_sees(value: Any, is_right: bool) -> None:
    validator = jsonschema.Draft202012Validator(json_schema(tenant=True))
    assert validator.is_valid(value) is is_right


@pytest.mark.parametrize("tenant", [False, True])
def test_the_schemas_are_valid_schemas(tenant: bool) -> None:
    schema = json_schema(tenant=tenant)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "null" not in json.dumps(schema)


def test_the_reference_page_is_up_to_date() -> None:
    """`tidegate schema --markdown > docs/configuration.md` renews it."""
    assert (ROOT / "docs/configuration.md").read_text() == markdown()


def test_every_field_is_described() -> None:
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    for row in rows:
        _, type_, _, meaning, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])
        assert type_
        assert meaning.endswith((".", "...", ".)", "`, ...")), row


def test_the_yaml_of_the_page_is_yaml() -> None:
    for block in re.findall(r"```yaml\n(.*?)```", markdown(), re.DOTALL):
        assert yaml.safe_load(block)


def test_two_thousand_tenants_load_in_a_couple_of_seconds(directory: Directory) -> None:
    directory.change_main("base_rate: 50", "base_rate: 500")
    for number in range(2000):
        id = f"tenant-{number}"
        directory.tenant(
            id,
            f"""\
            id: {id}
            identity:
              api_keys:
                - sha256: {digest(id)}
            weight: 2
            limit: 10
            models: [chat]
            limits:
              tokens: 600
              window_seconds: 60
              match: "tenant_id == '{id}' && path == '/v1/chat/completions'"
            """,
        )
    start = time.process_time()
    loaded = directory.load()
    first_s = time.process_time() - start
    assert loaded.problems == ()
    assert loaded.policy is not None
    assert len(loaded.policy.tenants) == 2002
    start = time.process_time()
    assert directory.load(loaded).policy == loaded.policy
    again_s = time.process_time() - start
    assert first_s < 4
    assert again_s < 2
