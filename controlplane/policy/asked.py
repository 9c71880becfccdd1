"""The bytes of a ShouldRateLimit call -> what a gateway asks. Pure.

One descriptor, with `op` (reserve before the request, settle when its stream ended), `tenant`, `pool`
(`model:version`), `route` and `id` (the request's x-request-id); its hits are LLM tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from google.protobuf.message import DecodeError

from controlplane.pb.tidegate_ratelimit_pb2 import RateLimitRequest
from controlplane.policy.quota import TOKENS_MAX

DOMAIN = "tidegate"


class Op(StrEnum):
    """Before the request, and after it."""

    RESERVE = "reserve"
    SETTLE = "settle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call. `tokens` are estimated before the request, counted after it."""

    op: Op
    tenant: str
    pool: str
    request: str
    tokens: int


def asked(message: bytes) -> Asked | None:
    """None when it is not a call of ours, or lacks something."""
    try:
        call = RateLimitRequest.FromString(message)
    except DecodeError:
        return None
    if call.domain != DOMAIN or len(call.descriptors) != 1:
        return None
    descriptor = call.descriptors[0]
    words = {entry.key: entry.value for entry in descriptor.entries}
    op, tenant, pool, request = (words.get(name, "") for name in ("op", "tenant", "pool", "id"))
    if op not in tuple(Op) or not (tenant and pool and request):
        return None
    tokens = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else call.hits_addend
    return Asked(
        op=Op(op), tenant=tenant, pool=pool, request=request[:256], tokens=min(int(tokens), TOKENS_MAX)
    )
