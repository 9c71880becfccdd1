"""Policy and decision -> the limits script: what each request costs, then the constant code.

The script is pushed every tick, so its text is made of two parts. The tables of the policy change with
the files and are rendered once. What a tick moves is one number for each key, its cost, and those are a
single string of fixed-width decimals: Envoy copies it instead of parsing 10,000 table entries, and numpy
writes it in a millisecond. A request finds its number by arithmetic: keys are laid out tenant by tenant,
and tenants with equal rights share one table of offsets (a profile). Every key also has a shape: its
burst class and the order of its slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from controlplane.model.decision import Decision
from controlplane.model.ladder import ADAPTIVE_LADDER_S, class_name
from controlplane.model.policy import Key, ModelFrom, Policy, Route, WindowLimit
from controlplane.model.price import cost_units_of, window_burst_class_s
from controlplane.xds import lua_text
from controlplane.xds.lua_breaker import breakers

COST_DIGITS = 10  # of COST_MAX
_WINDOWS_MAX = 2  # slots beside the adaptive one
_FIELD_LETTERS = {"tenant_id": "t", "model_version": "m", "path": "p"}


@dataclass(frozen=True, slots=True, eq=False)
class _Rendered:
    """The policy's part of a script. `order` lists the keys as they are laid out."""

    text: str
    order: NDArray[np.intp]


class _Inputs:
    """What the policy's part depends on, compared by identity: a policy is too large to hash."""

    __slots__ = ("burst", "policy")

    def __init__(self, policy: Policy, burst: bytes) -> None:
        self.policy = policy
        self.burst = burst

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Inputs) and self.policy is other.policy and self.burst == other.burst

    def __hash__(self) -> int:
        return id(self.policy)


def limits_script(policy: Policy, decision: Decision, code: str) -> str:
    """The whole script of the limits filter. `code` is `LuaCode.limits`. Equal inputs give equal bytes."""
    rendered = _policy_part(_Inputs(policy, decision.burst_s.tobytes()))
    costs = costs_text(decision.rate_per_s[rendered.order])
    tick = lua_text.record(
        gateways=str(max(1, decision.gateways)),
        costs=f'"{costs}"',
        failures=lua_text.table(failures(decision)),
        breakers=breakers(decision, policy.mode),
    )
    return f"{rendered.text}local TICK={tick}\n{code}"


def failures(decision: Decision) -> dict[str, str]:
    """The failure ratio of each pool as the model server is told it; pools without one are left out."""
    found = {pool: made.inputs.get("failure_ratio") for pool, made in sorted(decision.pools.items())}
    return {pool: f"{ratio:.4f}" for pool, ratio in found.items() if ratio is not None and ratio == ratio}


def costs_text(rate_per_s: NDArray[np.float64]) -> str:
    """The cost of one request at each rate, each as COST_DIGITS decimals, one after the other."""
    powers = 10 ** np.arange(COST_DIGITS - 1, -1, -1, dtype=np.int64)
    digits = cost_units_of(rate_per_s)[:, None] // powers % 10
    return (digits + ord("0")).astype(np.uint8).tobytes().decode("ascii")


@lru_cache(maxsize=2)
def _policy_part(inputs: _Inputs) -> _Rendered:
    policy = inputs.policy
    burst_s = np.frombuffer(inputs.burst, dtype=np.float64)
    order = np.array(
        sorted(range(len(policy.keys)), key=lambda index: policy.keys[index].tenant), dtype=np.intp
    )
    keys = [policy.keys[index] for index in order]
    windows = {window.name: number for number, window in enumerate(policy.windows, start=1)}
    text = "".join(
        (
            "local POLICY={routes={},served={},profiles={}}\n",
            _routes(policy),
            _tenants(policy, keys),
            _shapes(keys, [float(burst_s[index]) for index in order], policy, windows),
            _metered(policy, keys),
            _windows(policy),
        )
    )
    return _Rendered(text, order)


def _routes(policy: Policy) -> str:
    lists = sorted({tuple(sorted(route.models)) for route in policy.routes})
    served = [
        (number, lua_text.table(_names(policy, models))) for number, models in enumerate(lists, start=1)
    ]
    numbers = {models: number for number, models in enumerate(lists, start=1)}
    routes: list[tuple[lua_text.Scalar, str]] = [
        (route.id, _route(route, numbers[tuple(sorted(route.models))])) for route in policy.routes
    ]
    return lua_text.fill("POLICY.served", served) + lua_text.fill("POLICY.routes", routes)


def _route(route: Route, served: int) -> str:
    nothing = route.free and not route.models
    fields: dict[str, lua_text.Scalar] = {
        "from": "nothing" if nothing else route.model_from.value,
        "served": served,
        "free": route.free,
        "status": str(route.unknown_model_status),
        "pattern": route.pattern,
    }
    if route.model_from is ModelFrom.HEADER:
        fields["header"] = (route.model_header or "").lower()
    if route.model_from is ModelFrom.FIXED:
        fields["model"] = route.fixed_model or ""
    return lua_text.table(fields)


def _names(policy: Policy, models: Sequence[str]) -> dict[str, str]:
    """Every name a client may use for `models` -> the pool it means."""
    pools = {pool.id for pool in policy.pools}
    served: dict[str, str] = {}
    for model in policy.models:
        if model.name in models:
            served[model.name] = f"{model.name}:{model.default_version}"
            served |= {f"{model.name}:{version}": f"{model.name}:{version}" for version in model.versions}
    return {name: pool for name, pool in served.items() if pool in pools}


def _tenants(policy: Policy, keys: Sequence[Key]) -> str:
    """Where each tenant's keys begin, and its profile: priority, and offset of each `route|pool`."""
    base: dict[str, int] = {}
    rights: dict[str, list[str]] = {}
    for index, key in enumerate(keys):
        base.setdefault(key.tenant, index)
        rights.setdefault(key.tenant, []).append(f"{key.route}|{key.pool}")
    priorities = {tenant.id: tenant.priority.value for tenant in policy.tenants}
    numbers: dict[tuple[str, tuple[str, ...]], int] = {}
    profile = {
        tenant: numbers.setdefault((priorities.get(tenant, ""), tuple(pairs)), len(numbers) + 1)
        for tenant, pairs in rights.items()
    }
    offsets = [
        (number, lua_text.table({pair: offset for offset, pair in enumerate(pairs)}))
        for (_, pairs), number in numbers.items()
    ]
    return (
        f"POLICY.tenants={lua_text.record(base=lua_text.table(base), profile=lua_text.table(profile))}\n"
        f"POLICY.priority={lua_text.array(priority for priority, _ in numbers)}\n"
        f"{lua_text.fill('POLICY.profiles', offsets)}"
    )


def _shapes(keys: Sequence[Key], classes_s: Sequence[float], policy: Policy, windows: dict[str, int]) -> str:
    """Class and slots of each key, as a number into the list of distinct shapes.

    A slot is 0 for the adaptive limit, n for the n-th window, -1 for none. `first` to `last` number the
    classes of ADAPTIVE_LADDER_S that bound the adaptive limit besides, while its rate is high enough.
    """
    depth_s = {window.name: window_class_s(window, policy.gateways.max_count) for window in policy.windows}
    wanted = {pool.id: _rung(pool.rate.burst_s) for pool in policy.pools}
    numbers: dict[tuple[str, int, int, tuple[int, ...]], int] = {}
    shape_of: list[int] = []
    for key, adaptive_s in zip(keys, classes_s, strict=True):
        limits = [(adaptive_s, 0)] + [(depth_s[name], windows[name]) for name in key.windows[:_WINDOWS_MAX]]
        slots = tuple(number for _, number in sorted(limits))
        own = _rung(adaptive_s)
        padded = slots + (-1,) * (_WINDOWS_MAX + 1 - len(slots))
        shape = (class_name(adaptive_s), wanted.get(key.pool, own), own - 1, padded)
        shape_of.append(numbers.setdefault(shape, len(numbers)))
    width = len(str(max(0, len(numbers) - 1)))
    columns = {f"[{slot + 1}]": [slots[slot] for *_, slots in numbers] for slot in range(_WINDOWS_MAX + 1)}
    fields = {name: lua_text.array(column) for name, column in columns.items()}
    return (
        "POLICY.shapes="
        + lua_text.record(
            width=str(width),
            text='"' + "".join(f"{number:0{width}d}" for number in shape_of) + '"',
            first=lua_text.array(first for _, first, _, _ in numbers),
            last=lua_text.array(last for _, _, last, _ in numbers),
            **{"class": lua_text.array(name for name, *_ in numbers)},
            **fields,
        )
        + "\n"
    )


def _rung(burst_s: float) -> int:
    """Which class of ADAPTIVE_LADDER_S, counted from 1, is the first that holds `burst_s`."""
    holding = (number for number, class_s in enumerate(ADAPTIVE_LADDER_S, start=1) if class_s >= burst_s)
    return next(holding, len(ADAPTIVE_LADDER_S))


def _metered(policy: Policy, keys: Sequence[Key]) -> str:
    """A digit for each key: 1 where a quota of the tenant covers the pool."""
    covered = {(tenant.id, quota.model_version) for tenant in policy.tenants for quota in tenant.quotas}
    if not covered:
        return 'POLICY.metered=""\n'
    digits = "".join("1" if (key.tenant, key.pool) in covered else "0" for key in keys)
    return f'POLICY.metered="{digits}"\n'


def window_class_s(window: WindowLimit, gateways_max: int) -> float:
    """The burst class (s) of a window limit."""
    return window_burst_class_s(window.rate_per_s, window.burst_tokens, gateways_max).class_s


def _windows(policy: Policy) -> str:
    listed = policy.windows
    cost = cost_units_of(np.array([window.rate_per_s for window in listed], dtype=np.float64))
    classes = [class_name(window_class_s(window, policy.gateways.max_count)) for window in listed]
    fields = ["".join(_FIELD_LETTERS[name] for name in window.key_fields) for window in listed]
    return (
        "POLICY.windows="
        + lua_text.record(
            name=lua_text.array(window.name for window in listed),
            label=lua_text.array(_header_string(window.name) for window in listed),
            **{"class": lua_text.array(classes)},
            cost=lua_text.array(cost.tolist()),
            fields=lua_text.array(fields),
            per_token=lua_text.array(window.unit == "llm_token" for window in listed),
            tokens=lua_text.array(round(window.tokens) for window in listed),
            window_s=lua_text.array(max(1, round(window.window_s)) for window in listed),
        )
        + "\n"
    )


def _header_string(value: str) -> str:
    """What a quoted string of a header may hold: printable ASCII but for quote and backslash."""
    return "".join(char if " " <= char <= "~" and char not in '"\\' else "?" for char in value)
