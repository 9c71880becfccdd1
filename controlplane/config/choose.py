"""Which version of each tenant takes effect: the new one, its last good one, or none.

A tenant that is wrong affects itself alone. Who had an id, a key or a guarantee before keeps it against
whoever claims it now; among newcomers the first in the order of files wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.config.compile_tenants import may_use, share_in, tenant_of
from controlplane.config.entry import Entry
from controlplane.config.lint_policy import at_pool
from controlplane.config.problem import Problem, Severity, has_errors
from controlplane.config.tenant_file import Candidate
from controlplane.model.policy import IdentityMode, Policy, Pool, Route

GUARANTEED_RATIO_WARN = 0.8  # of the base rate: beyond it little is left to share

Served = Sequence[tuple[Route, Sequence[Pool]]]
Judge = Callable[[Entry], list[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The tenants in force, by id, and all that was found on the way."""

    entries: Mapping[str, Entry]
    problems: tuple[Problem, ...]


@dataclass
class _Owners:
    """Who holds each id, key and claim value."""

    entries: dict[str, Entry] = field(default_factory=dict)
    digests: dict[str, Entry] = field(default_factory=dict)
    claims: dict[str, Entry] = field(default_factory=dict)
    reserved: dict[tuple[str, str], Entry] = field(default_factory=dict)

    def reserve(self, entry: Entry, before: Entry) -> None:
        """Keep for `entry` what it already had, until its turn comes."""
        if entry.file == before.file:
            self.reserved["id", entry.id] = entry
        self.reserved.update({("key", one): entry for one in entry.digests if one in before.digests})
        values = set(before.spec.identity.jwt)
        self.reserved.update({("claim", one): entry for one in entry.spec.identity.jwt if one in values})

    def holder(self, kind: str, name: str, entry: Entry) -> Entry | None:
        """Who else has `name`, or keeps it."""
        held = {"id": self.entries, "key": self.digests, "claim": self.claims}[kind].get(name)
        kept = self.reserved.get((kind, name))
        is_own = kept is not None and (kept.id, kept.file) == (entry.id, entry.file)
        return held or (None if is_own else kept)

    def others_hold(self, entry: Entry) -> bool:
        """True when a key or a claim value of `entry` is with another tenant."""
        holders = [self.digests.get(one) for one in entry.digests]
        holders += [self.claims.get(one) for one in entry.spec.identity.jwt]
        return any(holder is not None and holder.id != entry.id for holder in holders)

    def conflicts(self, entry: Entry) -> list[Problem]:
        problems = []
        if other := self.holder("id", entry.id, entry):
            message = f"the tenant `{entry.id}` is also in {_place(other)}"
            problems.append(entry.problem(("id",), message, "an id of its own"))
        for digest in entry.digests:
            if other := self.holder("key", digest, entry):
                message = f"an API key of this tenant is also one of `{other.id}` ({_place(other)})"
                problems.append(entry.problem(("identity", "api_keys"), message, "every key with one tenant"))
        for index, value in enumerate(entry.spec.identity.jwt):
            if other := self.holder("claim", value, entry):
                message = f"`{value[:40]}` also means `{other.id}` ({_place(other)})"
                problems.append(
                    entry.problem(("identity", "jwt", index), message, "every value with one tenant")
                )
        return problems

    def add(self, entry: Entry) -> None:
        self.entries[entry.id] = entry
        self.digests.update(dict.fromkeys(entry.digests, entry))
        self.claims.update(dict.fromkeys(entry.spec.identity.jwt, entry))


def choose(
    candidates: Sequence[Candidate], previous: Mapping[str, Entry], main: Policy, served: Served, judge: Judge
) -> Chosen:
    """Every candidate's fate. `previous`: the tenants in force so far; `judge`: a tenant's own problems."""
    problems: list[Problem] = []
    sound: list[Entry] = []
    held: list[Candidate] = []
    for candidate in candidates:
        found = list(candidate.problems)
        if candidate.entry is not None:
            found += judge(candidate.entry)
        problems += found
        if candidate.entry is None or has_errors(found):
            held.append(candidate)
        else:
            sound.append(candidate.entry)
    owners = _Owners()
    good_ids = {entry.id for entry in sound}
    problems += _keep(held, previous, owners, good_ids)
    for entry in sound:
        if entry.id in previous:
            owners.reserve(entry, previous[entry.id])
    for entry in sound:
        if conflicts := owners.conflicts(entry):
            problems += conflicts
            problems.append(_fall_back(entry, previous, owners))
        else:
            owners.add(entry)
    problems += _guarantees(owners, previous, main, served)
    return Chosen(entries=owners.entries, problems=tuple(problems))


def _keep(
    held: Sequence[Candidate], previous: Mapping[str, Entry], owners: _Owners, good: set[str]
) -> Iterable[Problem]:
    """Put the last good versions of wrong tenants in force. Without an id a file stands for whom it had."""
    for candidate in held:
        if candidate.id is not None and candidate.id in previous:
            before = [previous[candidate.id]]
        elif candidate.id is not None:
            before = []
        else:
            before = [entry for entry in previous.values() if entry.file == candidate.file]
        kept = []
        for entry in before:
            if entry.id not in good and entry.id not in owners.entries and not owners.conflicts(entry):
                owners.add(entry)
                kept.append(entry.id)
        yield _fate(candidate, kept)


def _fate(candidate: Candidate, kept: Sequence[str]) -> Problem:
    name = f"the tenant `{candidate.id[:128]}`" if candidate.id is not None else "a tenant of this file"
    message = f"{name} is left out: its requests are refused"
    if kept:
        message = f"the last good version of {', '.join(f'`{one}`' for one in kept)} stays in force"
    return Problem(
        severity=Severity.WARNING, file=candidate.file, line=candidate.line, path="", message=message
    )


def _fall_back(entry: Entry, previous: Mapping[str, Entry], owners: _Owners) -> Problem:
    before = previous.get(entry.id)
    is_elsewhere = entry.id in owners.entries or owners.reserved.get(("id", entry.id), entry) is not entry
    if before is not None and not is_elsewhere and not owners.conflicts(before):
        owners.add(before)
        return entry.warning((), f"the last good version of `{entry.id}` stays in force")
    if is_elsewhere:
        return entry.warning((), f"this version of `{entry.id}` does not take effect")
    return entry.warning((), f"the tenant `{entry.id}` is left out: its requests are refused")


def _guarantees(
    owners: _Owners, previous: Mapping[str, Entry], main: Policy, served: Served
) -> Iterable[Problem]:
    """Sums of guarantees against the base rate of each model version.

    A tenant that raises its guarantee beyond what is left does not get it. When nobody raised one (the base
    rate fell, or there is no previous version), all stay in force and shrink in proportion.
    """
    claims = {entry.id: _claims(entry, main, served) for entry in owners.entries.values()}
    for pool in main.pools:
        if _sum(claims, pool) <= pool.rate.base_rate_per_s * (1 + 1e-9):
            continue
        for entry in list(owners.entries.values()):
            before = previous.get(entry.id)
            ours = claims[entry.id].get(pool.id, 0.0)
            if not previous or entry is before or ours <= 0:
                continue
            former = _claims(before, main, served) if before else {}
            if ours <= former.get(pool.id, 0.0):
                continue
            message = f"guarantees of {pool.id} would add up to {_sum(claims, pool):g}/s"
            yield entry.problem(
                ("guarantee",), message, f"at most {pool.rate.base_rate_per_s:g}/s together (`base_rate`)"
            )
            if before is not None and not owners.others_hold(before):
                owners.entries[entry.id], claims[entry.id] = before, former
                yield entry.warning((), f"the last good version of `{entry.id}` stays in force")
            else:
                del owners.entries[entry.id], claims[entry.id]
                yield entry.warning((), f"the tenant `{entry.id}` is left out: its requests are refused")
    yield from _sums(claims, main)


def _sums(claims: Mapping[str, Mapping[str, float]], main: Policy) -> Iterable[Problem]:
    for pool in main.pools:
        total, base = _sum(claims, pool), pool.rate.base_rate_per_s
        who = sorted((ours.get(pool.id, 0.0), name) for name, ours in claims.items())
        most = ", ".join(f"{name} {value:g}" for value, name in reversed(who[-3:]) if value)
        message = f"the guarantees of {pool.id} add up to {total:g}/s (most: {most})"
        if total > base * (1 + 1e-9):
            expected = f"at most {base:g}/s (`base_rate`); they shrink in proportion"
            yield at_pool(pool, message, expected, Severity.ERROR)
        elif total > GUARANTEED_RATIO_WARN * base:
            expected = f"at most {GUARANTEED_RATIO_WARN * base:g}/s, so that something is left to share"
            yield at_pool(pool, message, expected, Severity.WARNING)


def _claims(entry: Entry, main: Policy, served: Served) -> dict[str, float]:
    """The guarantees of one tenant by model version, over all routes."""
    tenant = tenant_of(entry)
    if not tenant.share.guarantee_per_s and not any(s.guarantee_per_s for s in tenant.shares.values()):
        return {}
    claims: dict[str, float] = {}
    for route, pools in served:
        if route.identity is IdentityMode.NONE and tenant.id != main.default_tenant:
            continue
        for pool in pools:
            if may_use(tenant, pool):
                claims[pool.id] = claims.get(pool.id, 0.0) + share_in(tenant, pool).guarantee_per_s
    return claims


def _sum(claims: Mapping[str, Mapping[str, float]], pool: Pool) -> float:
    return sum(ours.get(pool.id, 0.0) for ours in claims.values())


def _place(entry: Entry) -> str:
    return f"{entry.file}:{entry.line}"
