from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.config.match import FIELDS, MatchError, parse_match


@pytest.mark.parametrize(
    ("expression", "selector"),
    [
        ("tenant_id == 'acme'", {"tenant_id": "acme"}),
        (
            "tenant_id == 'acme' && path == '/v1/models/*'",
            {"tenant_id": "acme", "path": "/v1/models/*"},
        ),
        ("model_version=='chat:v1'&&tenant_id=='a'", {"model_version": "chat:v1", "tenant_id": "a"}),
        ('  path == "/v1/x"  ', {"path": "/v1/x"}),
        ("path == 'a && b == c'", {"path": "a && b == c"}),
    ],
)
def test_an_expression_is_equalities_joined(expression: str, selector: dict[str, str]) -> None:
    assert parse_match(expression) == selector


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("tenant_id = 'acme'", "cannot read"),
        ("tenant_id == acme", "field == 'literal'"),
        ("tenant_id == 'acme' &&", "another comparison"),
        ("tenant_id == 'acme' || path == '/x'", "cannot read"),
        ("tenant_id == 'acme' path == '/x'", "only `&&`"),
        ("tenant == 'acme'", "unknown field `tenant`"),
        ("tenant_id == 'a' && tenant_id == 'b'", "twice"),
        ("tenant_id == ''", "empty text"),
        ("'acme' == tenant_id", "field == 'literal'"),
        ("tenant_id == 'acme", "cannot read"),
        ("&& tenant_id == 'acme'", "field == 'literal'"),
    ],
)
def test_anything_else_is_refused_with_the_place(expression: str, message: str) -> None:
    with pytest.raises(MatchError, match=None) as refused:
        parse_match(expression)
    assert message in str(refused.value)


_LITERAL = st.text(st.characters(exclude_characters="'", codec="utf-8"), min_size=1, max_size=20)


@given(st.dictionaries(st.sampled_from(FIELDS), _LITERAL, min_size=1))
def test_what_is_written_is_what_is_read(selector: dict[str, str]) -> None:
    expression = " && ".join(f"{field} == '{literal}'" for field, literal in selector.items())
    assert parse_match(expression) == selector


@given(st.text(max_size=60))
def test_no_text_makes_it_fail_otherwise(expression: str) -> None:
    with contextlib.suppress(MatchError):
        parse_match(expression)
