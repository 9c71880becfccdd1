"""The page is one file that a browser shows without a network, whatever names and numbers are in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from platforms import four_pods

from controlplane.sim.des.chart import Chart, Series, clock, figure, svg, tick_step
from controlplane.sim.des.page import Page, page
from controlplane.sim.des.scenario import scenario
from controlplane.sim.des.study import Settings, prepare

VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1e9)), min_size=1, max_size=30)
VOID = {"meta", "br", "hr", "img", "link"}


class Balanced(HTMLParser):
    """Fails when tags are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def document() -> str:
    made = prepare(four_pods(), scenario("s4", 60), Settings(seconds=60))
    runs = [made.play_policy("mine <b>&", made.policy), made.play_policy("other", made.policy)]
    others = [made.play(name, gate) for name, gate in made.rivals().items()]
    return page(Page(study=made, facts=["60 s"], shown=runs, others=others))


def test_the_page_is_well_formed(document: str) -> None:
    parser = Balanced()
    parser.feed(document)
    assert parser.open == []
    assert parser.seen.count("svg") == 2 + 2 * 6


def test_the_page_needs_nothing_from_elsewhere(document: str) -> None:
    assert "script" not in document
    assert re.findall(r"https?:|//|url\(|@import|src=|href=", document) == []


def test_names_are_text_and_not_markup(document: str) -> None:
    assert "<b>&" not in document
    assert "mine &lt;b&gt;&amp;" in document


def test_both_colour_schemes_are_there(document: str) -> None:
    assert "prefers-color-scheme:dark" in document


@given(VALUES, st.one_of(st.none(), st.floats(0.1, 1e6)))
def test_any_series_is_drawn_inside_the_frame(values: list[float | None], top: float | None) -> None:
    times = [n + 0.5 for n in range(len(values))]
    line = Series(name="x", values=values, style="c1")
    drawn = ElementTree.fromstring(
        svg(Chart(title="t", unit="u", times_s=times, until_s=len(values), series=[line], top=top))
    )
    for polyline in drawn.iter("polyline"):
        for point in polyline.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 562
            assert 0 <= y <= 220
    known = sum(len(polyline.attrib["points"].split()) for polyline in drawn.iter("polyline"))
    assert known >= sum(value is not None for value in values)


def test_a_gap_is_not_bridged() -> None:
    line = Series(name="x", values=[1.0, 2.0, None, 3.0, 4.0], style="c1")
    chart = Chart(title="t", unit="u", times_s=[0, 1, 2, 3, 4], until_s=5, series=[line])
    assert figure(chart).count("<polyline") == 2


@pytest.mark.parametrize(
    ("top", "step"), [(0.0, 1.0), (1.0, 0.5), (4.0, 1.0), (7.0, 2.0), (100.0, 50.0), (0.03, 0.01)]
)
def test_the_scale_has_round_steps(top: float, step: float) -> None:
    assert tick_step(top) == pytest.approx(step)


@pytest.mark.parametrize(("at_s", "said"), [(0, "0 s"), (59, "59 s"), (150, "2:30"), (3900, "1:05:00")])
def test_times_are_read_like_a_clock(at_s: float, said: str) -> None:
    assert clock(at_s) == said
