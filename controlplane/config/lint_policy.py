"""What shows only when everything is compiled: more limits than a model version's rate can be split into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from controlplane.config.problem import Problem, Severity, dotted
from controlplane.decide.plan import compile_plan, unserved_keys
from controlplane.model.policy import Policy, Pool


def policy_problems(policy: Policy) -> Iterator[Problem]:
    """A warning for each model version with keys that nothing can be admitted for at its lowest rate."""
    pool_of = {key.id: key.pool for key in policy.keys}
    unserved = Counter(pool_of[key] for key in unserved_keys(compile_plan(policy)))
    total = Counter(pool_of.values())
    for pool in policy.pools:
        if unserved[pool.id]:
            some = f"{unserved[pool.id]} of its {total[pool.id]} limits"
            message = f"{some} are too slow to be enforced when its rate is lowest: their tenants would wait"
            yield at_pool(pool, message, "a larger `base_rate`, fewer tenants or routes", Severity.WARNING)


def at_pool(pool: Pool, message: str, expected: str, severity: Severity) -> Problem:
    """A finding about a model version as a whole."""
    path = dotted(("models", pool.model, "versions", pool.version))
    return Problem(
        severity=severity,
        file=pool.ref.file,
        line=pool.ref.line,
        path=path,
        message=message,
        expected=expected,
    )
