"""The targets of one pool -> its readings.

A target counts as long as its last page is about as new as the newest one: a pod that stopped answering
leaves the mean while others are fresh, and when all are silent the last common value stays and grows old.
Nothing here makes up a zero: what nobody measured is absent, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from controlplane.model.signal import Reading
from controlplane.signals.catalogue import Candidate, Catalogue, Engine, Kind, Signal
from controlplane.signals.histogram import merge, quantile
from controlplane.signals.measure import EVENTS, join, ratio_of
from controlplane.signals.target import Known, Target
from controlplane.signals.window import total

_REASONS_SHOWN = 3

T = TypeVar("T")
Part = tuple[Target, Known, Candidate]


def readings(
    targets: Sequence[Target], engine: Engine, catalogue: Catalogue, *, fresh_s: float, source: str
) -> dict[str, Reading]:
    """The signals that `engine` measures, of the pool whose `targets` these are."""
    found = {
        name: _reading(name, targets, catalogue, fresh_s=fresh_s, source=source) for name in engine.signals
    }
    return {**found, "endpoints_up": endpoints_up(targets, source=source)}


def endpoints_up(targets: Sequence[Target], *, source: str) -> Reading:
    """How many targets answered the last time they were asked; absent before any was asked."""
    times = [target.time_s for target in targets if target.time_s is not None]
    if not targets:
        return Reading(source=source, absent="no endpoint has a metrics_url")
    if not times and not any(target.problem != "not asked yet" for target in targets):
        return Reading(source=source, absent="not asked yet")
    up = sum(target.answered for target in targets)
    if not times:
        return Reading(value=0.0, count=len(targets), source=source, absent="no endpoint has answered yet")
    return Reading(value=float(up), sampled_at_s=max(times), count=len(targets), source=source)


def fresh(items: Iterable[T], time_of: Callable[[T], float | None], fresh_s: float) -> list[T]:
    """The items within `fresh_s` of the newest one."""
    timed = [(item, time_s) for item in items if (time_s := time_of(item)) is not None]
    newest = max((time_s for _, time_s in timed), default=0.0)
    return [item for item, time_s in timed if newest - time_s <= fresh_s]


def absent(reasons: Iterable[str], *, source: str, not_exposed: bool = False) -> Reading:
    """A reading without a value, with the distinct reasons (the first few of them)."""
    distinct = list(dict.fromkeys(reason for reason in reasons if reason))
    more = len(distinct) - _REASONS_SHOWN
    text = "; ".join(distinct[:_REASONS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return Reading(source=source, absent=text or "nothing measured it", not_exposed=not_exposed)


def _reading(
    name: str, targets: Sequence[Target], catalogue: Catalogue, *, fresh_s: float, source: str
) -> Reading:
    signal = catalogue.signals[name]
    parts: list[Part] = [
        (target, known, known.candidate)
        for target in targets
        if (known := target.known.get(name)) is not None and known.candidate is not None
    ]
    usable = [part for part in parts if not _unusable(part)]
    chosen = fresh(usable, lambda part: _time_s(part), fresh_s)
    if not chosen:
        missing = [t for t in targets if t.answered and not t.problem and _lacks(t, name)]
        loud = any(not signal.optional or name in target.seen for target in missing)
        return absent(
            _reasons(targets, name), source=source, not_exposed=bool(missing) and not parts and loud
        )
    return _joined(signal, chosen, source)


def _joined(signal: Signal, parts: Sequence[Part], source: str) -> Reading:
    """One reading out of the fresh `parts`, all taken as the kind of the first."""
    candidate = parts[0][2]
    same = [part for part in parts if part[2].kind is candidate.kind]
    if candidate.kind is Kind.GAUGE:
        value, count, note = _gauges(signal, candidate, same)
    else:
        value, count, note = _grown(signal, candidate, same)
    if value is None:
        return Reading(source=f"{source} {candidate.metric}", absent=note)
    admitted = signal.admit(value)
    if admitted is None:
        problem = f"{candidate.metric} gives {value:g}, outside {signal.limits}"
        return Reading(source=f"{source} {candidate.metric}", absent=problem)
    oldest_s = min(time_s for part in same if (time_s := _time_s(part)) is not None)
    named = " or ".join(sorted({part[2].metric for part in same}))
    return Reading(value=admitted, sampled_at_s=oldest_s, count=count, source=f"{source} {named}{note}")


Joined = tuple[float | None, int, str]  # value, samples behind it, note (the reason when there is no value)


def _gauges(signal: Signal, candidate: Candidate, parts: Sequence[Part]) -> Joined:
    values = [known.gauge.value for _, known, _ in parts if known.gauge and known.gauge.value is not None]
    return join(candidate.across or signal.across, values), len(values), ""


def _grown(signal: Signal, candidate: Candidate, parts: Sequence[Part]) -> Joined:
    """The joint growth of counters: a rate, a ratio or a quantile over the window."""
    windows = [
        known.window for _, known, _ in parts if known.window is not None and known.window.covered_s > 0
    ]
    if not windows:
        return None, 0, "one scrape so far: a rate needs two"
    covered_s = max(window.covered_s for window in windows)
    if candidate.kind is Kind.COUNTER:
        rates = [window.grown.get(EVENTS, 0.0) / window.covered_s for window in windows]
        events = sum(window.grown.get(EVENTS, 0.0) for window in windows)
        return join("sum", rates) * candidate.scale, round(events), ""
    if candidate.kind is Kind.RATIO:
        share = ratio_of(total([window.grown for window in windows]))
        nothing = f"no requests in the last {covered_s:.0f} s"
        return (None, 0, nothing) if share is None else (share[0] * candidate.scale, round(share[1]), "")
    buckets = merge([window.grown for window in windows])
    found = quantile(0.95, buckets)
    if found is None:
        why = f"no requests in the last {covered_s:.0f} s" if buckets else "endpoints share no bucket bounds"
        return None, 0, why
    note = " (above its top bucket: a lower bound)" if found.saturated else ""
    return found.value * candidate.scale, round(found.count), note


def _unusable(part: Part) -> bool:
    """A part that has neither a value nor a window."""
    _, known, candidate = part
    if candidate.kind is Kind.GAUGE:
        return known.gauge is None or known.gauge.value is None
    return known.window is None or bool(known.problem)


def _time_s(part: Part) -> float | None:
    """When a part was sampled: the page's own timestamp if it has one, never later than the page."""
    target, known, candidate = part
    stamped = known.gauge.time_s if candidate.kind is Kind.GAUGE and known.gauge else None
    if stamped is None or target.time_s is None:
        return target.time_s
    return min(stamped, target.time_s)


def _lacks(target: Target, name: str) -> bool:
    known = target.known.get(name)
    return known is not None and known.candidate is None


def _reasons(targets: Sequence[Target], name: str) -> list[str]:
    """Why each target gives nothing: it does not answer, it does not expose it, or what it says is
    impossible.
    """
    silent = [f"{t.name} gave no page: {t.problem}" for t in targets if not t.answered]
    known = [known.problem for t in targets if t.answered and (known := t.known.get(name)) is not None]
    return [*known, *silent]
