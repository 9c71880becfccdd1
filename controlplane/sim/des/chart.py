"""Series of numbers -> one line chart as SVG. No script, no font, no address: the text is all there is.

Colours are classes (`c1`, `c2`, ...) that the page's style sheet defines for light and dark. What a point
stands for is said in words when a mouse rests on it, by the `title` of a column that nobody sees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

WIDTH, HEIGHT = 560, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 26
_TICKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line; `values` go with the chart's times, None leaves a gap. `style` is a class of the page."""

    name: str
    values: Sequence[float | None]
    style: str
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over the same times (s), on a scale from zero."""

    title: str
    unit: str
    times_s: Sequence[float]
    until_s: float
    series: Sequence[Series]
    event_s: float | None = None  # marked by a vertical line
    top: float | None = None  # end of the scale; None: by the values


def highest(charts: Sequence[Chart]) -> float:
    """The largest value in any of them: one scale for charts that stand side by side."""
    return max(
        (v for chart in charts for line in chart.series for v in line.values if v is not None), default=1
    )


def figure(chart: Chart) -> str:
    """Title, legend and drawing as one HTML `figure`."""
    legend = "".join(
        f'<span class="key"><i class="{_style(line)}"></i>{escape(line.name)}</span>' for line in chart.series
    )
    return (
        f"<figure><figcaption><b>{escape(chart.title)}</b> <small>{escape(chart.unit)}</small>"
        f'<div class="legend">{legend}</div></figcaption>{svg(chart)}</figure>'
    )


def svg(chart: Chart) -> str:
    """The drawing alone."""
    step = tick_step(chart.top if chart.top is not None else highest([chart]))
    top = step * max(1, math.ceil((chart.top if chart.top is not None else highest([chart])) / step - 1e-9))
    place = _Place(top=top, until_s=max(chart.until_s, 1e-9))
    label = escape(f"{chart.title}, {chart.unit}", quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        + _grid(place, step)
        + _event(place, chart.event_s)
        + "".join(_path(place, chart.times_s, line) for line in chart.series)
        + _columns(place, chart)
        + "</svg>"
    )


def tick_step(top: float) -> float:
    """1, 2 or 5 times a power of ten, so that about four steps reach `top`."""
    if not top > 1e-9 or not math.isfinite(top):
        return 1.0
    power = 10.0 ** math.floor(math.log10(top / _TICKS))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= top / _TICKS - 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    top: float
    until_s: float

    def x(self, at_s: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * at_s / self.until_s

    def y(self, value: float) -> float:
        part = min(1.0, max(0.0, value / self.top))
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * part


def _grid(place: _Place, step: float) -> str:
    drawn = []
    for number in range(round(place.top / step) + 1):
        value = number * step
        y = place.y(value)
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.6g}</text>')
    every_s = time_step_s(place.until_s)
    for number in range(int(place.until_s / every_s + 1e-9) + 1):
        x = place.x(number * every_s)
        last = number * every_s > 0.97 * place.until_s
        anchor = "end" if last else "middle"
        drawn.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{clock(number * every_s)}</text>'
        )
    return "".join(drawn)


def time_step_s(until_s: float) -> float:
    """A step of the clock of which at most six fit."""
    steps = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)
    return next((step for step in steps if until_s / step <= 6), 86400.0)


def clock(at_s: float) -> str:
    """`45 s`, `2:30`, `1:05:00`."""
    seconds = round(at_s)
    if seconds < 60:
        return f"{seconds} s"
    hours, rest = divmod(seconds, 3600)
    minutes = f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else minutes


def _event(place: _Place, event_s: float | None) -> str:
    if event_s is None:
        return ""
    x = place.x(event_s)
    return f'<line class="event" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'


def _style(line: Series) -> str:
    return f"{line.style} dashed" if line.dashed else line.style


def _path(place: _Place, times_s: Sequence[float], line: Series) -> str:
    """One `polyline` for each run of known values; a lone value is a short stroke."""
    drawn = []
    points = list(zip(times_s, line.values, strict=True))
    style = _style(line)
    for known, group in groupby(points, key=lambda point: point[1] is not None):
        if not known:
            continue
        places = [(place.x(at_s), place.y(value)) for at_s, value in group if value is not None]
        if len(places) == 1:
            places.append((places[0][0] + 1.5, places[0][1]))
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline class="{style}" points="{text}"/>')
    return "".join(drawn)


def _columns(place: _Place, chart: Chart) -> str:
    """Invisible columns that say their numbers."""
    if not chart.times_s:
        return ""
    edges = [0.0]
    edges += [(a + b) / 2 for a, b in zip(chart.times_s, chart.times_s[1:], strict=False)]
    edges.append(chart.until_s)
    drawn = []
    for number, at_s in enumerate(chart.times_s):
        x, end = place.x(edges[number]), place.x(edges[number + 1])
        said = [f"{line.name}: {number_text(line.values[number])}" for line in chart.series]
        text = escape("\n".join([clock(at_s), *said]))
        drawn.append(
            f'<rect class="hit" x="{x:.1f}" y="{_TOP}" width="{max(0.0, end - x):.1f}"'
            f' height="{HEIGHT - _TOP - _BOTTOM}"><title>{text}</title></rect>'
        )
    return "".join(drawn)


def number_text(value: float | None) -> str:
    """Three significant digits; a dash for what is not known."""
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
