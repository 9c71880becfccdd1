"""Which trusted headers reached a model server: the proof that a gateway replaced what clients forged.

A name is counted as it came (lower case), in every spelling a back end might take for the trusted one:
`x-tidegate-tenant`, `x_tidegate_tenant`, `resilience.status`, `resilience-status`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

TRUSTED_PREFIX = b"x-tidegate-"
TRUSTED_NAMES = (b"resilience-status", b"resilience-failure-rate")
SHOWN_NAMES = (b"x-env",)
COUNTED_NAMES = (b"x-request-id", b"authorization")  # their values differ, or are secret
MAX_VALUES = 100  # per name; the rest is counted as "(other)"


class Seen:
    """Counts of header values over all requests since the last reset."""

    def __init__(self) -> None:
        self.requests = 0
        self._values: dict[str, Counter[str]] = {}
        self._with: Counter[str] = Counter()
        self._repeated: Counter[str] = Counter()

    def add(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Count one request with these raw headers."""
        self.requests += 1
        names: set[str] = set()
        for raw, value in headers:
            shown = _shown(raw.lower())
            if shown is None:
                continue
            name = raw.decode("latin-1").lower()
            if name in names:
                self._repeated[name] += 1
            else:
                names.add(name)
                self._with[name] += 1
            if shown:
                self._count(name, value.decode("latin-1"))

    def as_json(self) -> dict[str, object]:
        """requests, and per header name: requests that had it, repeats within one request, values."""
        return {
            "requests": self.requests,
            "headers": {
                name: {
                    "requests": count,
                    "repeated": self._repeated[name],
                    "values": dict(self._values.get(name, {})),
                }
                for name, count in sorted(self._with.items())
            },
        }

    def _count(self, name: str, value: str) -> None:
        counter = self._values.setdefault(name, Counter())
        counter[value if value in counter or len(counter) < MAX_VALUES else "(other)"] += 1


def _shown(name: bytes) -> bool | None:
    """True: count the value too; False: count the name only; None: not interesting."""
    if name in COUNTED_NAMES:
        return False
    plain = name.replace(b"_", b"-").replace(b".", b"-")
    if plain.startswith(TRUSTED_PREFIX) or plain in TRUSTED_NAMES or plain in SHOWN_NAMES:
        return True
    return None
