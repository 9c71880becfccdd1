"""What one stream asked for of one type: names, or everything; and which names each request (re)asks or
drops.

The wildcard has two spellings: an explicit `*`, and for clusters and listeners an empty first request
(legacy). In delta the legacy wildcard lasts until `*` is unsubscribed; in state-of-the-world the first
non-empty list ends it for good, and from then on an empty list means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

WILDCARD = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one request changed: names to be sent whatever the client holds, names it forgot, and whether it
    newly asked for everything (which is owed an answer, even an empty one)."""

    asked: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    everything: bool = False


@dataclass(slots=True, kw_only=True)
class Subscription:
    """The names one stream wants of one type. `legacy`: an empty first request means everything."""

    legacy: bool
    wildcard: bool = False
    names: set[str] = field(default_factory=set)
    opened: bool = False

    def covers(self, name: str) -> bool:
        """Whether the client wants `name`."""
        return self.wildcard or name in self.names

    def change(self, subscribe: Iterable[str], unsubscribe: Iterable[str]) -> Change:
        """Apply one delta request. A name that is in both lists is asked for anew."""
        subscribe, unsubscribe = set(subscribe), set(unsubscribe)
        first, self.opened = not self.opened, True
        if first and self.legacy and not subscribe:
            self.wildcard = True
            return Change(everything=True)
        left = self.names & unsubscribe
        self.names -= left
        if WILDCARD in unsubscribe:
            self.wildcard = False
        everything = WILDCARD in subscribe and not self.wildcard
        self.wildcard |= everything
        asked = subscribe - {WILDCARD}
        self.names |= asked
        # A name that is dropped while the wildcard still covers it must be sent again, or reported as
        # removed.
        still_wanted = left if self.wildcard else set()
        return Change(
            asked=frozenset(asked | still_wanted),
            dropped=frozenset(left - asked - still_wanted),
            everything=everything,
        )

    def replace(self, names: Iterable[str]) -> Change:
        """Apply one state-of-the-world request, whose list is the whole subscription."""
        listed = set(names)
        first, self.opened = not self.opened, True
        if self.legacy and not listed:
            self.wildcard = True
            return Change(everything=first)
        self.legacy = False
        everything = WILDCARD in listed and not self.wildcard
        self.wildcard = WILDCARD in listed
        before, self.names = self.names, listed - {WILDCARD}
        return Change(
            asked=frozenset(self.names - before),
            dropped=frozenset(before - self.names),
            everything=everything,
        )
