"""Routes that can never match, that answer nothing, or whose limits per window cannot work."""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.config.compile_main import main_window_places, model_from
from controlplane.config.compile_tenants import applying, route_pools
from controlplane.config.draft import Draft
from controlplane.config.lint_window import WINDOWS_MAX, unknown_scope, window_findings
from controlplane.config.problem import PathParts, Problem
from controlplane.config.validate import nearest
from controlplane.model.policy import Route


def route_problems(draft: Draft) -> Iterator[Problem]:
    """Everything about routes and the limits of the main file."""
    yield from _routes(draft)
    yield from _overlaps(draft)
    yield from _windows(draft)


def _routes(draft: Draft) -> Iterator[Problem]:
    main, ids = draft.main, dict[str, int]()
    known = sorted(main.models)
    for index, (spec, route) in enumerate(zip(main.routes, draft.policy.routes, strict=True)):
        path: PathParts = ("routes", index)
        if route.id in ids:
            at = (*path, "id") if spec.id else path
            yield draft.error(at, f"id `{route.id}` is also that of routes[{ids[route.id]}]", "another `id`")
        ids.setdefault(route.id, index)
        for place, name in enumerate(spec.models or ()):
            if name not in main.models:
                close = nearest(name, known)
                hint = f"; did you mean `{close}`?" if close else ""
                message = f"there is no model `{name}`{hint}"
                yield draft.error((*path, "models", place), message, f"one of {', '.join(known[:12])}")
        if spec.models == [] and not spec.free:
            yield draft.error(
                (*path, "models"), "is empty: nothing could be answered", "a model, or `free: true`"
            )
        yield from _model_source(draft, index, route)
        if route.identity != "required" and not route.free and main.default_tenant is None:
            message = f"`{spec.identity}` counts requests as `default_tenant`, which is not set"
            yield draft.error((*path, "identity"), message, "a `default_tenant`, or `free: true`")
        if spec.idle_timeout_s > spec.max_stream_duration_s:
            yield draft.warning(
                (*path, "idle_timeout_s"), "longer than `max_stream_duration_s`: never reached"
            )


def _model_source(draft: Draft, index: int, route: Route) -> Iterator[Problem]:
    spec, path = draft.main.routes[index], ("routes", index)
    source = model_from(spec)
    for needed, field in (("header", "model_header"), ("fixed", "fixed_model")):
        given = getattr(spec, field) is not None
        if source == needed and not given:
            yield draft.error((*path, field), f"is missing for `model_from: {needed}`", "this field")
        elif source != needed and given:
            yield draft.error(
                (*path, field), f"has no effect with `model_from: {source}`", f"`model_from: {needed}`"
            )
    if spec.fixed_model is None:
        return
    if unknown := unknown_scope(spec.fixed_model, draft.policy):
        yield draft.error((*path, "fixed_model"), *unknown)
    elif spec.fixed_model.partition(":")[0] not in route.models:
        yield draft.error(
            (*path, "fixed_model"), "is not among the route's models", f"one of {', '.join(route.models)}"
        )


def _overlaps(draft: Draft) -> Iterator[Problem]:
    routes = draft.main.routes
    for index, route in enumerate(routes):
        path: PathParts = ("routes", index, "path")
        for earlier in range(index):
            if covers(routes[earlier].path, route.path):
                message = (
                    f"can never match: routes[{earlier}] (`{routes[earlier].path}`) matches all of it first"
                )
                yield draft.error(path, message, "the more specific route first")
                break
        if route.path == draft.main.listener.health_path:
            yield draft.error(path, "can never match: it is `listener.health_path`", "another path")


def _windows(draft: Draft) -> Iterator[Problem]:
    names: dict[str, PathParts] = {}
    limits = {limit.name: limit for limit in draft.policy.windows}
    served = route_pools(draft.policy)
    for name, window, route, path in main_window_places(draft.main):
        if name in names:
            yield draft.error(
                (*path, "name"), f"`{name}` is also the name of another limit", "a name of its own"
            )
            continue
        names[name] = path
        matched = window.match.path if window.match else None
        if route is not None and matched not in (None, route.path):
            message = f"can never match: it stands in the route `{route.path}`"
            yield draft.error((*path, "match"), message, f"`{route.path}`, or no path")
            continue
        for finding in window_findings(window, limits[name], draft.policy, served):
            say = draft.error if finding.is_error else draft.warning
            yield say((*path, *finding.field), finding.message, finding.expected)
    yield from _too_many(draft, names)


def _too_many(draft: Draft, names: dict[str, PathParts]) -> Iterator[Problem]:
    windows = draft.policy.windows
    tenants: set[str] = {window.tenant_id or "" for window in windows} | {""}
    for route, pools in route_pools(draft.policy):
        for pool in pools:
            most = max((applying(windows, route, tenant, pool.id) for tenant in sorted(tenants)), key=len)
            if len(most) > WINDOWS_MAX:
                which = f"{pool.id} on `{route.pattern}`: {', '.join(most)}"
                message = f"{len(most)} limits per window apply to {which}"
                last = max((names[name] for name in most), key=str)
                yield draft.error(last, message, f"at most {WINDOWS_MAX}")
                return


def covers(pattern: str, other: str) -> bool:
    """True when `pattern` matches all that `other` does. `/v1/x/*` matches /v1/x and all below it."""
    if not pattern.endswith("/*"):
        return pattern == other
    prefix = pattern.removesuffix("/*")
    inner = other.removesuffix("/*")
    return inner == prefix or inner.startswith(prefix + "/")
