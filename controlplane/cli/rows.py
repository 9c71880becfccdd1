"""Documents of the admin API in, rows of the tables out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from controlplane.cli.table import GatewayRow, LimitRow, PoolRow, sum_known

Document = Mapping[str, Any]

_RATE_SIGNALS: Mapping[str, tuple[str, ...]] = {
    "gpu_util": ("gpu_util_percent",),
    "effective": ("kv_cache_usage_ratio", "waiting_requests", "sm_active_ratio"),
}


def limit_rows(decisions: Document, *, short: bool = False) -> list[LimitRow]:
    """A row for each tenant x model version, its routes added up; `short` gives reasons in one word."""
    observing = decisions["mode"] == "observe"
    ordered = sorted(decisions["keys"], key=_place)
    return [_limit_row(list(keys), observing, short) for _, keys in groupby(ordered, key=_place)]


def _place(key: Document) -> tuple[str, str]:
    return key["model_version"], key["tenant"]


def _limit_row(keys: Sequence[Document], observing: bool, short: bool) -> LimitRow:
    reasons = {key["reason_code" if short else "reason"] for key in keys}
    return LimitRow(
        model_version=keys[0]["model_version"],
        tenant=keys[0]["tenant"],
        offered_per_s=sum_known(key["offered_per_s"] for key in keys),
        admitted_per_s=sum_known(key["admitted_per_s"] for key in keys),
        limited_per_s=sum_known(key["would_limit_per_s" if observing else "limited_per_s"] for key in keys),
        rate_per_s=sum_known(key["rate_per_s"] for key in keys),
        burst_requests=sum_known(key["burst_requests"] for key in keys),
        why=reasons.pop() if len(reasons) == 1 else f"{len(keys)} routes",
        would_limit=observing,
    )


def pool_rows(decisions: Document, signals: Document | None) -> list[PoolRow]:
    """A row for each model version; without `signals` their age is not known."""
    measured = {pool["model_version"]: pool for pool in signals["pools"]} if signals else {}
    return [
        PoolRow(
            model_version=pool["model_version"],
            state=pool["state"],
            utilisation_percent=pool["utilisation_percent"],
            factor=pool["factor"],
            rate_per_s=pool["rate_per_s"],
            age_s=_age_s(measured.get(pool["model_version"])),
            why=pool["reason"],
        )
        for pool in decisions["pools"]
    ]


def _age_s(pool: Document | None) -> float | None:
    """Age of the newest signal that the rate of the pool follows."""
    if pool is None:
        return None
    readings = pool["signals"]
    names = _RATE_SIGNALS.get(pool["rate_signal"], ())
    ages = [readings[name]["age_s"] for name in names if readings.get(name, {}).get("age_s") is not None]
    return min(ages, default=None)


def pool_reasons(decisions: Document) -> dict[str, str]:
    """In a few words, how the rate of each model version came about."""
    return {pool["model_version"]: _pool_reason(pool) for pool in decisions["pools"]}


def _pool_reason(pool: Document) -> str:
    if pool["utilisation_percent"] is None or pool["factor"] is None:
        return str(pool["state"])
    measured = f"{pool['utilisation_percent']:.0f} % x{pool['factor']:.2f}"
    return measured if pool["state"] == "live" else f"{measured}, {pool['state']}"


def gateway_rows(xds: Document) -> list[GatewayRow]:
    """A row for each connected gateway."""
    return [_gateway_row(gateway) for gateway in xds["gateways"]]


def _gateway_row(gateway: Document) -> GatewayRow:
    types = gateway["types"].values()
    nacks = gateway["nacks"]
    return GatewayRow(
        node=gateway["node"],
        address=gateway["address"],
        protocol=gateway["protocol"],
        settled=gateway["settled"],
        waiting=sum(kind["waiting"] for kind in types),
        refused=sum(kind["refused"] for kind in types),
        last_nack=f"{nacks[-1]['type']}: {nacks[-1]['reason']}" if nacks else "",
    )
