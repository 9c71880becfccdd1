"""[scalars] Names that YAML 1.1 reads as something else work in quotes, or are refused clearly."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.config.document import Document
from controlplane.config.schema import TenantFile
from controlplane.config.validate import validated

from .written import Directory, find, tenants


@pytest.mark.parametrize(
    "id", ["n", "y", "on", "off", "yes", "no", "1e3", "null", "true", "123", "1.0", "2024-06-01"]
)
def test_a_tricky_tenant_works_in_quotes(directory: Directory, id: str) -> None:
    directory.tenant("tricky", f'id: "{id}"\n')
    loaded = directory.load()
    assert id in tenants(loaded)
    assert loaded.policy is not None
    assert f"chat|{id}|chat:v1" in {key.id for key in loaded.policy.keys}


@pytest.mark.parametrize("id", ["n", "y", "1e3", "2024-06-01", "0x"])
def test_what_yaml_reads_as_text_needs_no_quotes(directory: Directory, id: str) -> None:
    directory.tenant("tricky", f"id: {id}\n")
    assert id in tenants(directory.load())


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("on", "`on` is read as true"),
        ("No", "`No` is read as false"),
        ("null", "`null` is read as null"),
        ("~", "`~` is read as null"),
        ("", "is empty"),
        ("123", "`123` is read as a number"),
        ("1.0", "`1.0` is read as a number"),
        ("010", "ambiguous number"),
        ("1:30", "ambiguous number"),
    ],
)
def test_what_yaml_reads_otherwise_asks_for_quotes(directory: Directory, id: str, message: str) -> None:
    directory.tenant("tricky", f"id: {id}\n")
    loaded = directory.load()
    problem = find(loaded, file="tenants/tricky.yaml", path="id", message=message, severity="error")
    assert not id or id == "~" or "quotes" in problem.expected
    assert tenants(loaded) == {"guest", "acme"}


@pytest.mark.parametrize(
    "id", ["ü", "x" * 200, "a b", "a|b", "a~b", "-a", "", "a/b", "a\tb", "..", "a\u0000"]
)
def test_a_name_that_cannot_be_used_is_refused_clearly(directory: Directory, id: str) -> None:
    directory.tenant("tricky", f"id: {json.dumps(id)}\n")
    loaded = directory.load()
    assert "A-Z a-z 0-9" in find(loaded, path="id", message="not a usable tenant id").expected
    assert tenants(loaded) == {"guest", "acme"}


def test_a_version_that_looks_like_a_number_asks_for_quotes(directory: Directory) -> None:
    directory.change_main("      e1:", "      1.10:")
    problem = find(directory.load(), message="the key `1.10` is read as a number")
    assert problem.expected == "text; write it in quotes: '1.10'"
    directory.change_main("      1.10:", '      "1.10":')
    loaded = directory.load()
    assert loaded.policy is not None
    assert "embed:1.10" in {pool.id for pool in loaded.policy.pools}


def test_a_version_may_be_a_date(directory: Directory) -> None:
    directory.change_main("      e1:", "      2024-06-01:")
    loaded = directory.load()
    assert loaded.policy is not None
    assert "embed:2024-06-01" in {pool.id for pool in loaded.policy.pools}


_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", fullmatch=True)


@given(_IDS)
def test_every_usable_id_comes_through_in_quotes(id: str) -> None:
    document = Document("x.yaml", f'id: "{id}"'.encode())
    spec, problems = validated(document, TenantFile, document.parsed.value)
    assert not problems
    assert spec is not None
    assert spec.id == id


@given(_IDS)
def test_an_id_without_quotes_comes_through_whole_or_is_refused(id: str) -> None:
    document = Document("x.yaml", f"id: {id}".encode())
    spec, problems = validated(document, TenantFile, document.parsed.value)
    assert problems or document.parsed.problems or (spec is not None and spec.id == id)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(main=st.binary(max_size=200) | st.text(max_size=80).map(str.encode), tenant=st.binary(max_size=200))
def test_no_bytes_make_loading_raise(directory: Directory, main: bytes, tenant: bytes) -> None:
    good = directory.load()
    kept = (directory.path / "tidegate.yaml").read_bytes()
    (directory.path / "tenants" / "acme.yaml").write_bytes(tenant)
    assert directory.load(good).policy is not None
    (directory.path / "tidegate.yaml").write_bytes(main)
    loaded = directory.load(good)
    assert loaded.policy is good.policy
    assert loaded.has_errors
    (directory.path / "tidegate.yaml").write_bytes(kept)
    directory.tenant("acme", "id: acme\n")


_WORDS = st.sampled_from(
    [
        "id",
        "identity",
        "api_keys",
        "jwt",
        "weight",
        "limits",
        "tokens",
        "match",
        "overrides",
        "chat",
        "<<",
        "quotas",
    ]
)
_TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(_TREE)
def test_no_tree_of_known_words_makes_loading_raise(directory: Directory, tree: object) -> None:
    (directory.path / "tenants" / "acme.yaml").write_text(
        json.dumps({"id": "acme", "x": tree} if tree else tree)
    )
    assert directory.load().policy is not None
    if isinstance(tree, dict):
        (directory.path / "tenants" / "acme.yaml").write_text(json.dumps({"id": "acme"} | tree))
        assert directory.load().policy is not None
