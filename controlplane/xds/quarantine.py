"""Which version of each resource may be sent: the published one, or the last good one while that is refused.

A version that a client rejected and nobody accepted is quarantined for the whole fleet, old and new members
alike, until its content changes. A version that somebody accepted, before or after, is a matter between it
and the clients that rejected it: one odd client must not roll back the others, in whatever order they answer.
In place of a refused version stands the last version that was accepted; where there is none, the resource is
withheld: nobody is sent it, and nobody who holds one loses it.

What was published away but is still referred to by a last good version stays too: as long as a type has a
refused resource, the types before it in SEND_ORDER keep what was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from controlplane.model.resource import SEND_ORDER, Resource, Snapshot

VERSIONS_KEPT = 2  # the one in use and the one before it
NODES_KEPT = 10_000  # whose refusals are remembered; the id of a node is whatever a client says
Key = tuple[str, str]  # type URL, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """One refused version. `node_id` rejected it first; `fleet`: nobody is sent it, else only that node is
    not."""

    type_url: str
    name: str
    version: str
    origin: str
    reason: str
    node_id: str
    at_s: float
    fleet: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one client may be sent, and the names of each type of which no version is fit to be sent."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    withheld: Mapping[str, frozenset[str]] = field(default_factory=dict)


class Quarantine:
    """The published snapshot, what was accepted of it, and what was refused."""

    def __init__(self) -> None:
        self._published = Snapshot()
        self._good: dict[str, dict[str, tuple[Resource, ...]]] = {}  # type -> name -> newest first
        self._fleet: dict[Key, Quarantined] = {}
        self._nodes: dict[str, dict[Key, tuple[Quarantined, ...]]] = {}
        self._views: dict[str | None, View] = {}  # None: every node without refusals of its own

    def publish(self, snapshot: Snapshot) -> None:
        """Replace what is wanted. What was refused is forgotten where the content changed."""
        before, self._published = self._published, snapshot

        def same(key: Key) -> bool:
            return _find(before, key) == _find(snapshot, key)

        self._fleet = {key: entry for key, entry in self._fleet.items() if same(key)}
        nodes = {
            node_id: {key: entries for key, entries in refusals.items() if same(key)}
            for node_id, refusals in self._nodes.items()
        }
        self._nodes = {node_id: refusals for node_id, refusals in nodes.items() if refusals}
        self._views.clear()

    def accept(self, type_url: str, resources: Iterable[Resource]) -> bool:
        """Remember versions that a client accepted. The one that is wanted now counts as the newest. True
        when that ends a quarantine of the fleet."""
        good = self._good.setdefault(type_url, {})
        wanted = self._published.of_type(type_url)
        ended = False
        for resource in resources:
            known = good.get(resource.name, ())
            current = wanted.get(resource.name)
            if known and known[0] is current and current.version == resource.version and not self._fleet:
                continue  # by far the most: another client accepted what is good already
            if current is not None and current.version == resource.version:
                others = tuple(old for old in known if old.version != resource.version)
                good[resource.name] = (current, *others)[:VERSIONS_KEPT]
                ended |= self._fleet.pop((type_url, resource.name), None) is not None
            elif resource.version not in {old.version for old in known}:
                good[resource.name] = (*known, resource)[:VERSIONS_KEPT]
        if ended:
            self._views.clear()
        return ended

    def refuse(self, type_url: str, resource: Resource, reason: str, node_id: str, now_s: float) -> bool:
        """Take a version out of circulation; False when that changes nothing (it was superseded or known)."""
        key = (type_url, resource.name)
        accepted = {old.version for old in self._good.get(type_url, {}).get(resource.name, ())}
        wanted = _find(self._published, key)
        fleet = wanted == resource.version and resource.version not in accepted
        refusals = self._nodes.get(node_id, {}).get(key, ())
        known = resource.version in {entry.version for entry in refusals}
        if wanted is None or known or not (fleet or resource.version in accepted):
            return False
        entry = Quarantined(
            type_url=type_url,
            name=resource.name,
            version=resource.version,
            origin=resource.origin,
            reason=reason,
            node_id=node_id,
            at_s=now_s,
            fleet=fleet,
        )
        self._nodes.setdefault(node_id, {})[key] = (*refusals, entry)
        if len(self._nodes) > NODES_KEPT:
            del self._nodes[next(iter(self._nodes))]
        if fleet and key in self._fleet:
            return False
        if fleet:
            self._fleet[key] = entry
        self._views.clear()
        return True

    def view(self, node_id: str) -> View:
        """What `node_id` may be sent now. The same object until something changes."""
        who = node_id if self._own(node_id) else None
        if who not in self._views:
            self._views[who] = self._compose(self._refusals(who))
        return self._views[who]

    def entries(self) -> tuple[Quarantined, ...]:
        """All that is refused now: the fleet's, then what only single nodes are not sent."""
        own = [replace(entry, fleet=False) for node_id in self._nodes for entry in self._own(node_id)]
        return (*self._fleet.values(), *own)

    def forget(self) -> None:
        """Drop what was accepted of resources that are gone. Call it when every client has all that is
        published."""
        if self._fleet or self._nodes:
            return
        for type_url, good in self._good.items():
            wanted = self._published.of_type(type_url)
            for name in [name for name in good if name not in wanted]:
                del good[name]

    def _own(self, node_id: str) -> list[Quarantined]:
        """The refusals of `node_id` that are not the whole fleet's."""
        return [
            entry
            for key, entries in self._nodes.get(node_id, {}).items()
            for entry in entries
            if key not in self._fleet or self._fleet[key].version != entry.version
        ]

    def _refusals(self, who: str | None) -> dict[Key, frozenset[str]]:
        refused = {key: frozenset({entry.version}) for key, entry in self._fleet.items()}
        for entry in self._own(who) if who is not None else ():
            key = (entry.type_url, entry.name)
            refused[key] = refused.get(key, frozenset()) | {entry.version}
        return refused

    def _compose(self, refused: Mapping[Key, frozenset[str]]) -> View:
        if not refused:
            return View(snapshot=self._published)
        resources = {type_url: dict(named) for type_url, named in self._published.resources.items()}
        withheld: dict[str, set[str]] = {}
        for (type_url, name), versions in refused.items():
            candidates = (
                self._published.of_type(type_url)[name],
                *self._good.get(type_url, {}).get(name, ()),
            )
            fit = next((resource for resource in candidates if resource.version not in versions), None)
            if fit is None:
                del resources[type_url][name]
                withheld.setdefault(type_url, set()).add(name)
            else:
                resources[type_url][name] = fit
        for type_url in _before(type_url for type_url, _ in refused):
            kept = {name: versions[0] for name, versions in self._good.get(type_url, {}).items()}
            resources[type_url] = {**resources.get(type_url, {}), **_missing(kept, self._published, type_url)}
        return View(
            snapshot=Snapshot(resources=resources),
            withheld={type_url: frozenset(names) for type_url, names in withheld.items()},
        )


def _find(snapshot: Snapshot, key: Key) -> str | None:
    resource = snapshot.of_type(key[0]).get(key[1])
    return resource.version if resource else None


def _before(type_urls: Iterable[str]) -> tuple[str, ...]:
    """The types before the last of `type_urls` in SEND_ORDER: what they may refer to."""
    ranks = [SEND_ORDER.index(type_url) for type_url in type_urls if type_url in SEND_ORDER]
    return SEND_ORDER[: max(ranks, default=0)]


def _missing(kept: Mapping[str, Resource], published: Snapshot, type_url: str) -> dict[str, Resource]:
    wanted = published.of_type(type_url)
    return {name: resource for name, resource in kept.items() if name not in wanted}
