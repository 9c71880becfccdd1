"""Limits per window that cannot work: too slow for a bucket, too small for one request, matching nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from controlplane.config.compile_main import pool_named
from controlplane.config.schema.limit import Window
from controlplane.config.validate import nearest
from controlplane.decide.burst import slowest_rate_per_s
from controlplane.model.policy import Policy, Pool, Route, WindowLimit
from controlplane.model.price import window_burst_class_s

WINDOWS_MAX = 2  # on one request, beside its adaptive limit


class Finding(NamedTuple):
    """A problem with one field, not yet placed in a file."""

    field: tuple[str | int, ...]
    message: str
    expected: str = ""
    is_error: bool = True


Served = Sequence[tuple[Route, Sequence[Pool]]]


def window_findings(window: Window, limit: WindowLimit, main: Policy, served: Served) -> Iterator[Finding]:
    """What is wrong with one limit, apart from the tenant it names. `served` is `route_pools(main)`."""
    yield from list(_selector(window, main)) or _reach(limit, served)
    yield from _numbers(window, limit, main)
    if window.unit == "llm_token":
        yield Finding(
            ("unit",),
            "LLM tokens are counted by an estimate made before the answer; "
            "what an answer really used is not enforced yet",
            is_error=False,
        )


def _selector(window: Window, main: Policy) -> Iterator[Finding]:
    match = window.match
    if match is None:
        return
    patterns = [route.pattern for route in main.routes]
    if match.path is not None and match.path not in patterns:
        yield Finding(
            ("match",),
            f"no route has the path `{match.path[:80]}`{_hint(match.path, patterns)}",
            _some(patterns),
        )
    if match.model_version is not None and pool_named(match.model_version, main.pools) is None:
        yield Finding(("match",), *unknown_pool(match.model_version, main.pools))


def _reach(limit: WindowLimit, served: Served) -> Iterator[Finding]:
    for route, pools in served:
        if limit.path in (None, route.pattern) and any(
            limit.model_version in (None, pool.id) for pool in pools
        ):
            return
    yield Finding(
        ("match",),
        "can never match: no limited route serves what it selects",
        "a path and a model version that go together",
    )


def unknown_pool(name: str, pools: Sequence[Pool]) -> tuple[str, str]:
    """Message and expectation for a model version that does not exist, or that several models have."""
    ids = [pool.id for pool in pools]
    if several := [pool.id for pool in pools if pool.version == name]:
        return f"several models have the version `{name[:80]}`", _some(several)
    return f"there is no model version `{name[:80]}`{_hint(name, ids)}", _some(ids)


def _numbers(window: Window, limit: WindowLimit, main: Policy) -> Iterator[Finding]:
    gateways = main.gateways.max_count
    slowest = slowest_rate_per_s(gateways)
    if limit.rate_per_s < slowest:
        yield Finding(
            ("tokens",),
            f"{limit.tokens:g} in {limit.window_s:g} s is too slow to be enforced by {gateways} gateway(s)",
            f"at least {slowest * limit.window_s:.4g} in this window; amounts per day are `quotas`",
        )
        return
    if limit.burst_tokens < 1:
        yield Finding(("burst",), "below one request: nothing would ever pass", "at least 1")
        return
    if limit.burst_tokens > limit.tokens:
        yield Finding(
            ("burst",), "larger than the window itself", f"at most {limit.tokens:g}", is_error=False
        )
    given = window_burst_class_s(limit.rate_per_s, limit.burst_tokens, gateways)
    if window.burst is not None and not 0.5 <= given.burst_tokens / limit.burst_tokens <= 1.001:
        yield Finding(
            ("burst",),
            f"{limit.burst_tokens:g} is enforced as {given.burst_tokens:.4g}, the nearest size of a bucket",
            is_error=False,
        )
    if window.burst is None and given.burst_tokens > max(limit.burst_tokens, 1) * 1.001:
        yield Finding(
            ("tokens",),
            f"so slow that each of {gateways} gateway(s) needs a larger bucket: "
            f"the burst is {given.burst_tokens:.4g}, not {limit.burst_tokens:g}",
            is_error=False,
        )
    yield from _capacity(limit, main)


def _capacity(limit: WindowLimit, main: Policy) -> Iterator[Finding]:
    if limit.unit != "request":
        return
    pools = [pool for pool in main.pools if limit.model_version in (None, pool.id)]
    largest = max((pool.rate.base_rate_per_s for pool in pools), default=None)
    if "model_version" in limit.key_fields and largest is not None and limit.rate_per_s > largest:
        yield Finding(
            ("tokens",),
            f"{limit.rate_per_s:.4g} requests/s is more than a model version it is for can serve",
            f"at most {largest:g}/s (`base_rate`), or it never binds",
            is_error=False,
        )


def _hint(name: str, known: Sequence[str]) -> str:
    close = nearest(name, known)
    return f"; did you mean `{close}`?" if close else ""


def _some(known: Sequence[str]) -> str:
    """The known names, not more than a line of them."""
    shown = ", ".join(list(known)[:12])
    return f"one of {shown}{', ...' if len(known) > 12 else ''}"


def unknown_scope(scope: str, main: Policy) -> tuple[str, str] | None:
    """Message and expectation when `scope` is neither a model nor a model version."""
    known = [model.name for model in main.models] + [pool.id for pool in main.pools]
    if scope in known:
        return None
    kind = "model version" if ":" in scope else "model"
    return f"there is no {kind} `{scope[:80]}`{_hint(scope, known)}", _some(known)
