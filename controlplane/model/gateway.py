"""The fleet of Envoys as the control plane sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GatewayMember:
    """One Envoy that shares the limits. Limits depend on the number of members; addresses are for people."""

    id: str  # node id
    address: str = "127.0.0.1"
    port: int = 1
