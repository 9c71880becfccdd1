from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.config.document import Document
from controlplane.config.problem import Problem


def value(text: str) -> object:
    document = Document("x.yaml", text.encode())
    assert not document.parsed.problems
    return document.parsed.value


def problems(text: str | bytes) -> tuple[Problem, ...]:
    return Document("x.yaml", text if isinstance(text, bytes) else text.encode()).parsed.problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 2024-06-01", {"a": "2024-06-01"}),
        ("2024-06-01: a", {"2024-06-01": "a"}),
        ("a: =", {"a": "="}),
        ("a: 1e3", {"a": "1e3"}),
        ("a: n", {"a": "n"}),
        ("a: 'on'", {"a": "on"}),
        ("a: on", {"a": True}),
        ("a: 007x", {"a": "007x"}),
        ("a: -12", {"a": -12}),
        ("a: 1.50", {"a": 1.5}),
        ("a: 1.0e+3", {"a": 1000.0}),
        ("a: ~", {"a": None}),
        ("", None),
        ("# nothing", None),
        ("{a: [1, {b: c}]}", {"a": [1, {"b": "c"}]}),
        ("\ufeffa: b", {"a": "b"}),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, expected: object) -> None:
    assert value(text) == expected


@pytest.mark.parametrize("text", ["010", "0x10", "0b1", "1_000", "1:30", "1:30.5", "1_0.5", "9" * 40])
def test_a_number_that_may_mean_two_things_is_refused(text: str) -> None:
    (problem,) = problems(f"tokens: {text}")
    assert "ambiguous" in problem.message
    assert problem.path == "tokens"


def test_a_key_written_twice_is_an_error_that_names_both_lines() -> None:
    (problem,) = problems("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n")
    assert (problem.line, problem.path) == (5, "b.c")
    assert "first on line 3" in problem.message


def test_merge_keys_fill_in_what_is_not_said() -> None:
    assert value("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n") == {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}}
    assert value("x: &x {a: 1}\nz: &z {a: 2, c: 3}\ny: {<<: [*x, *z]}\n")["y"] == {"a": 1, "c": 3}  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2", "not valid YAML"),
        ("a: *nobody", "undefined alias"),
        ("&a [*a]", "refers to itself"),
        ("a: !!python/object:os.system x", "tag"),
        ("a: !!set {b}", "tag"),
        ("{[1]: 2}", "as a key"),
        ("on: 1", "is read as true"),
        ("a: 1\n---\nb: 2", "another document"),
        ("<<: 3", "merges mappings only"),
        ("[" * 200 + "]" * 200, "nested"),
        ("[" * 100_000, "nest"),
        (b"a: \xff", "UTF-8"),
        (b"a: \x00", "not valid YAML"),
    ],
)
def test_what_is_not_plain_yaml_is_a_problem(text: str | bytes, message: str) -> None:
    assert any(message in problem.message for problem in problems(text))


def test_a_billion_laughs_stay_small() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    assert not problems("\n".join(lines))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("b", "c"), 3),
        (("b", "d", 1), 6),
        (("b", "nothing"), 2),
        (("e",), 7),
        (("e", "k"), 1),
        (("b", "d", 9), 4),
    ],
)
def test_a_line_is_found_for_every_path(path: tuple[str | int, ...], line: int) -> None:
    text = "a: &a {k: 1}\nb:\n  c: 1\n  d:\n  - x\n  - y\ne: {<<: *a}\n"
    assert Document("x.yaml", text.encode()).line(path) == line


@given(st.binary(max_size=300))
def test_no_bytes_make_reading_raise(content: bytes) -> None:
    parsed = Document("x.yaml", content).parsed
    assert parsed.readable or parsed.problems


_JSON = st.recursive(
    st.integers(-(10**12), 10**12)
    | st.booleans()
    | st.text(st.characters(codec="utf-8", exclude_categories=["C"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abcxyz", min_size=1), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(_JSON)
def test_what_json_says_yaml_says(expected: object) -> None:
    assert value(json.dumps(expected, ensure_ascii=False)) == expected
