"""The pod's record shows every spelling under which a forged value could have arrived."""

from __future__ import annotations

from typing import Any

from controlplane.sim.load_client import SPOOF_MARK, SPOOFED_HEADERS
from controlplane.sim.seen import MAX_VALUES, Seen
from controlplane.sim.spread import Spread


def _headers(seen: Seen) -> dict[str, Any]:
    headers = seen.as_json()["headers"]
    assert isinstance(headers, dict)
    return headers


def test_every_forged_spelling_is_seen() -> None:
    seen = Seen()
    seen.add([(name.encode(), value.encode()) for name, value in SPOOFED_HEADERS])
    values = [header["values"] for header in _headers(seen).values()]
    assert sum(value[SPOOF_MARK] for value in values) == len(SPOOFED_HEADERS)


def test_requests_and_repeats_are_counted_apart() -> None:
    seen = Seen()
    seen.add([(b"x-tidegate-tenant", b"acme"), (b"X-Tidegate-Tenant", b"evil")])
    seen.add([(b"x-tidegate-tenant", b"acme"), (b"accept", b"*/*")])
    assert seen.as_json() == {
        "requests": 2,
        "headers": {"x-tidegate-tenant": {"requests": 2, "repeated": 1, "values": {"acme": 2, "evil": 1}}},
    }


def test_a_secret_is_counted_and_never_shown() -> None:
    seen = Seen()
    seen.add([(b"Authorization", b"Bearer secret"), (b"x-request-id", b"1234")])
    assert _headers(seen)["authorization"] == {"requests": 1, "repeated": 0, "values": {}}
    assert "secret" not in str(seen.as_json())


def test_values_are_bounded() -> None:
    seen = Seen()
    for number in range(MAX_VALUES + 50):
        seen.add([(b"x-tidegate-tenant", str(number).encode())])
    values = _headers(seen)["x-tidegate-tenant"]["values"]
    assert len(values) == MAX_VALUES + 1
    assert values["(other)"] == 50


def test_a_spread_ratio_is_exact_and_even() -> None:
    spread = Spread()
    hits = [spread.hit(0.1) for _ in range(1000)]
    assert sum(hits) == 100
    assert all(sum(hits[start : start + 10]) == 1 for start in range(0, 1000, 10))
    assert not any(Spread().hit(0.0) for _ in range(10))
