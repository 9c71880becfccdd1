"""Pages in Prometheus' text format."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from controlplane.signals.text import Reader, exactly

SAMPLES = sorted((Path(__file__).parent / "samples").glob("*.txt"))


def reference(text: str) -> list[tuple[str, dict[str, str], float, float | None]]:
    """What prometheus_client makes of the samples of `text`.

    Without the TYPE lines: with them it calls a counter `x` by the name `x_total`, which no Prometheus does.
    """
    text = "".join(f"{line}\n" for line in text.split("\n") if not line.startswith("#"))
    return [
        (sample.name, dict(sample.labels), float(sample.value), sample.timestamp)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def as_read(reader: Reader, text: str) -> list[tuple[str, dict[str, str], float, float | None]]:
    page = reader.read(text)
    assert page.unreadable == 0
    return [
        (name, dict(sample.labels), sample.value, sample.time_s)
        for name, samples in page.samples.items()
        for sample in samples
    ]


def same(one: list[tuple], other: list[tuple]) -> bool:
    """Equality that holds for NaN too, in any order of the names."""

    def key(row: tuple) -> tuple:
        name, labels, value, time_s = row
        return name, sorted(labels.items()), repr(value), repr(time_s)

    return sorted(map(key, one)) == sorted(map(key, other))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_real_page_reads_as_prometheus_client_reads_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    reader = Reader(lambda name: name)
    assert same(as_read(reader, text), reference(text))
    assert same(as_read(reader, text), reference(text)), "the second page, read from memory, is the same"


def test_only_wanted_names_are_read() -> None:
    page = Reader(exactly(frozenset({"a"}))).read('a 1\nab 2\na_bucket{le="1"} 3\n')
    assert list(page.samples) == ["a"]


def test_a_page_that_is_no_metrics_is_counted_not_raised() -> None:
    page = Reader(lambda name: name).read("<html>\n<body>oops {not=metrics</body>\n")
    assert not page.samples
    assert page.unreadable == 2


def test_a_line_cut_in_the_middle_loses_only_itself() -> None:
    page = Reader(lambda name: name).read('a{x="1"} 1\na{x="2"} 2\na{x="')
    assert [sample.value for sample in page.samples["a"]] == [1.0, 2.0]
    assert page.unreadable == 1


def test_timestamps_are_seconds() -> None:
    page = Reader(lambda name: name).read("a 1 1700000000123\n")
    assert page.samples["a"][0].time_s == pytest.approx(1700000000.123)


NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True)
LABELS = st.dictionaries(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True),
    st.text(
        st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="\x85\u2028\u2029"), max_size=8
    ),
    max_size=3,
)
VALUES = st.one_of(st.floats(), st.integers(-(10**20), 10**20).map(float))


def line(name: str, labels: dict[str, str], value: float, time_ms: int | None) -> str:
    escaped = ",".join(
        f'{key}="{text}"'
        for key, text in (
            (key, value.replace("\\", r"\\").replace('"', r"\"")) for key, value in labels.items()
        )
    )
    shown = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, repr(value))
    return f"{name}{'{' + escaped + '}' if labels else ''} {shown}{'' if time_ms is None else f' {time_ms}'}"


@given(st.lists(st.tuples(NAMES, LABELS, VALUES, st.none() | st.integers(0, 2**42)), max_size=8))
def test_any_page_reads_as_prometheus_client_reads_it(rows: list[tuple]) -> None:
    text = "".join(f"{line(*row)}\n" for row in rows)
    reader = Reader(lambda name: name)
    reader.read(text)
    assert same(as_read(reader, text), reference(text))
