"""Snapshots -> what is on offer of each type, with what changed since the offer before.

The comparison is made once for each publication and shared by all streams: a stream that saw the offer before
looks at the changed names only, however many resources there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.model.resource import Resource, Snapshot

Names = frozenset[str]
_NONE: Names = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What may be sent of one type. `withheld` exists but has no version fit to send: whoever holds one
    keeps it. `news` are the names that differ from the offer that had `before` and `before_withheld`."""

    resources: Mapping[str, Resource] = field(default_factory=dict)
    withheld: Names = _NONE
    before: Mapping[str, Resource] | None = None  # None: compare everything
    before_withheld: Names = _NONE
    news: Names = _NONE

    def follows(self, earlier: Offer) -> bool:
        """Whether `news` are the differences from `earlier`."""
        return self.before is earlier.resources and self.before_withheld == earlier.withheld


Offers = Mapping[str, Offer]


def offers(snapshot: Snapshot, withheld: Mapping[str, Names], earlier: Offers | None = None) -> Offers:
    """The offers of all types; of a type that is as in `earlier`, the very same object."""
    earlier = earlier or {}
    types = snapshot.resources.keys() | withheld.keys() | earlier.keys()
    return {
        type_url: _offer(snapshot.of_type(type_url), withheld.get(type_url, _NONE), earlier.get(type_url))
        for type_url in types
    }


def _offer(resources: Mapping[str, Resource], withheld: Names, earlier: Offer | None) -> Offer:
    if earlier is None:
        return Offer(resources=resources, withheld=withheld)
    news = _differences(resources, earlier.resources) | (withheld ^ earlier.withheld)
    if not news:
        return earlier
    return Offer(
        resources=resources,
        withheld=withheld,
        before=earlier.resources,
        before_withheld=earlier.withheld,
        news=news,
    )


def _differences(new: Mapping[str, Resource], old: Mapping[str, Resource]) -> Names:
    if new is old:
        return _NONE
    changed = {name for name, resource in new.items() if old.get(name) is not resource}
    changed |= old.keys() - new.keys()
    return frozenset(name for name in changed if new.get(name) != old.get(name))
