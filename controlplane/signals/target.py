"""The pages of one target, one after the other -> what is known of its signals.

A target is one answering process for one pool: a model server, or a gateway. It keeps its last values and the
windows of its counters. A page that does not come changes nothing: the last values grow old.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controlplane.signals.catalogue import Candidate, Catalogue, Engine, Kind
from controlplane.signals.measure import Gauge, Samples, exposed, gauge, vector
from controlplane.signals.window import Window


@dataclass(slots=True)
class Known:
    """What one target says about one signal since its last page."""

    candidate: Candidate | None = None  # None: the page exposes none of the names
    gauge: Gauge | None = None
    window: Window | None = None
    problem: str = ""


@dataclass(slots=True)
class Target:
    """One target of one pool. `time_s` is the time of its last page, None before the first."""

    name: str
    time_s: float | None = None
    answered: bool = False  # the last attempt brought a page
    problem: str = "not asked yet"  # why it did not
    known: dict[str, Known] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)  # signals it has ever exposed

    def observe(
        self,
        samples: Samples,
        time_s: float,
        engine: Engine,
        catalogue: Catalogue,
        *,
        window_s: float,
        restarted: bool = False,
        problem: str = "",
    ) -> None:
        """A page came. `samples` are those of this pool; `problem` says why it has none."""
        before_s, self.time_s, self.answered, self.problem = self.time_s, time_s, True, problem
        for name, candidates in engine.signals.items():
            known = self.known.setdefault(name, Known())
            found = exposed(candidates, samples)
            if found is None:
                tried = ", ".join(each.metric for each in candidates)
                missing = f"metric {candidates[0].metric} not exposed by {self.name}; tried {tried}"
                self.known[name] = Known(problem=f"{self.name}: {problem}" if problem else missing)
                continue
            known.problem = ""
            if found.kind is Kind.GAUGE:
                known.gauge = gauge(found, catalogue.signals[name], samples, engine.replica_labels)
                known.problem = f"{self.name}: {known.gauge.problem}" if known.gauge.problem else ""
            else:
                began_s = None if name in self.seen else before_s
                self._count(known, found, samples, began_s, window_s, restarted=restarted)
            known.candidate = found
            self.seen.add(name)

    def not_after(self, now_s: float) -> None:
        """A clock that stepped back: what is known counts as of now, or it would stay the newest for long."""
        if self.time_s is not None:
            self.time_s = min(self.time_s, now_s)

    def miss(self, problem: str) -> None:
        """No page came."""
        self.answered, self.problem = False, problem

    def _count(
        self,
        known: Known,
        found: Candidate,
        samples: Samples,
        began_s: float | None,
        window_s: float,
        *,
        restarted: bool,
    ) -> None:
        """Add the counters of a page. `began_s`: they were not there at that time, so they began at zero."""
        counts = vector(found, samples)
        if counts is None:
            known.problem = f"{self.name}: {found.metric} is no possible count"
            return
        if known.window is None or known.candidate is None or known.candidate.metric != found.metric:
            known.window = Window(window_s)
            if began_s is not None:
                known.window.add(began_s, {})
        assert self.time_s is not None
        known.window.add(self.time_s, counts, restarted=restarted)
