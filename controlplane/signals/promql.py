"""The catalogue and the matched series of each pool -> PromQL. Pure.

Two queries make a tick. The first is one range selector over every name that matters: it brings the gauges
of all pools with the true time of each sample (an instant query would give the time of the evaluation
instead), and shows which counters exist under which labels. The second holds one branch per pool and
windowed signal, for example `histogram_quantile(0.95, sum by (le)
(rate(vllm:time_to_first_token_seconds_bucket{model_name="m",version="v"}[300s])))`, each tagged with its
number. One evaluation, one timestamp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.signals.catalogue import Candidate, Engine, Kind

BRANCH = "tidegate_branch"
INFINITE = 'le="+Inf"'
BRANCHES_MAX = 120  # of one query: Prometheus refuses none of that size, some proxies refuse longer ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One expression of a combined query. `part` says what its value is for: p95, count, rate, bad, all,
    minus.
    """

    pool: str
    signal: str
    part: str
    expression: str


def latest(names: Iterable[str], *, lookback_s: float, matchers: str = "") -> str:
    """The samples of every series called one of `names` in the last `lookback_s`, with their own times."""
    pattern = "|".join(sorted(names))
    return f"{{{_all(f'__name__=~{_quoted(pattern)}', matchers)}}}[{_span(lookback_s)}]"


def combined(branches: Sequence[Branch]) -> list[str]:
    """Queries that evaluate all `branches`; row labels carry the number of the branch."""
    tagged = [
        f'label_replace({each.expression}, "{BRANCH}", "{number}", "", "")'
        for number, each in enumerate(branches)
    ]
    return [" or ".join(tagged[at : at + BRANCHES_MAX]) for at in range(0, len(tagged), BRANCHES_MAX)]


def proof(candidate: Candidate) -> tuple[str, ...]:
    """The series that show whether a windowed candidate exists, one per label set."""
    if candidate.kind is Kind.HISTOGRAM:
        return (f"{candidate.metric}_count",)
    return candidate.of or (candidate.metric,)


def names(engine: Engine) -> frozenset[str]:
    """The names that the first query asks for."""
    found: set[str] = set()
    for candidates in engine.signals.values():
        for each in candidates:
            found.update((each.metric,) if each.kind is Kind.GAUGE else proof(each))
    return frozenset(found)


def branches(
    pool: str, signal: str, candidate: Candidate, selector: str, *, window_s: float, recorded: bool
) -> list[Branch]:
    """What the second query must evaluate for one signal of one pool, whose series `selector` selects."""
    span = _span(window_s)

    def rate(name: str, extra: str = "") -> str:
        return f"rate({name}{{{_all(selector, extra)}}}[{span}])"

    def branch(part: str, expression: str) -> Branch:
        return Branch(pool=pool, signal=signal, part=part, expression=expression)

    if candidate.kind is Kind.HISTOGRAM:
        buckets, everything = rate(f"{candidate.metric}_bucket"), rate(f"{candidate.metric}_count")
        if recorded and candidate.recorded:
            buckets = f"{candidate.recorded}{{{selector}}}"
            everything = f"{candidate.recorded}{{{_all(selector, INFINITE)}}}"
        return [
            branch("p95", f"histogram_quantile(0.95, sum by (le) ({buckets}))"),
            branch("count", f"sum({everything})"),
        ]
    where = ",".join(f"{label}={_quoted(value)}" for label, value in sorted(candidate.where.items()))
    if candidate.kind is Kind.COUNTER:
        if recorded and candidate.recorded:
            return [branch("rate", f"sum({candidate.recorded}{{{_all(selector, where)}}})")]
        return [branch("rate", f"sum({rate(candidate.metric, where)})")]
    return [
        branch("bad", f"sum({rate(candidate.metric, where)})"),
        *(branch("all", f"sum({rate(name)})") for name in candidate.of),
        *(branch("minus", f"sum({rate(name)})") for name in candidate.minus),
    ]


def selector(series: Sequence[Mapping[str, str]], labels: Sequence[str], *, matchers: str = "") -> str:
    """Matchers for the `labels` that all of `series` have: each label one of the values seen."""
    parts = []
    for label in labels:
        values = sorted({each.get(label, "") for each in series})
        if not values or "" in values:
            continue
        if len(values) == 1:
            parts.append(f"{label}={_quoted(values[0])}")
        else:
            parts.append(f"{label}=~{_quoted('|'.join(_literal(value) for value in values))}")
    return _all(*parts, matchers)


def _literal(value: str) -> str:
    """`value` as an RE2 pattern that matches only itself."""
    return re.sub(
        r"([^A-Za-z0-9_:/-])",
        lambda found: "\\" + found.group() if ord(found.group()) < 128 else found.group(),
        value,
    )


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _all(*matchers: str) -> str:
    return ",".join(each for each in matchers if each)


def _span(seconds: float) -> str:
    """A PromQL duration, in whole milliseconds."""
    whole_ms = max(1, round(seconds * 1000))
    return f"{whole_ms // 1000}s" if whole_ms % 1000 == 0 else f"{whole_ms}ms"
