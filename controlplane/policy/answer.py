"""A verdict -> the answer Envoy's rate limit filter gets, in bytes. Pure.

Bodies have a fixed size and headers few distinct values: what changes with every answer defeats HPACK.
"""

from __future__ import annotations

import json
import math

from controlplane.pb.tidegate_ratelimit_pb2 import HeaderValue, RateLimitResponse
from controlplane.policy.quota import Balance, Verdict, binding

RETRY_AFTER_MAX_S = 86_400
UNAVAILABLE_RETRY_S = 5
MODE_HEADER = "x-tidegate-quota-mode"
LIMITED_HEADER = "x-tidegate-limited"


def _body(message: str, type_: str, code: str) -> bytes:
    error = {"message": message, "type": type_, "param": None, "code": code}
    return json.dumps({"error": error}, separators=(",", ":")).encode()


EXCEEDED = _body(
    "You exceeded your current quota of tokens for this model. Please check your plan.",
    "insufficient_quota",
    "insufficient_quota",
)
UNAVAILABLE = _body(
    "Your quota cannot be checked right now. Please retry.", "server_error", "quota_unavailable"
)


def passed(*, is_degraded: bool = False) -> bytes:
    """It may pass."""
    return _DEGRADED if is_degraded else _PASSED


def refused(verdict: Verdict, tokens: int) -> bytes:
    """It may not: 429 with the quota that binds."""
    bound = None if verdict.unavailable else binding(verdict, tokens)
    headers = {"content-type": "application/json", LIMITED_HEADER: "quota"}
    if bound is None:
        headers["retry-after"] = str(UNAVAILABLE_RETRY_S)
    else:
        headers |= _limit_headers(bound, verdict.now_s)
    if verdict.degraded:
        headers[MODE_HEADER] = "degraded"
    return _response(RateLimitResponse.OVER_LIMIT, headers, UNAVAILABLE if bound is None else EXCEEDED)


def _limit_headers(bound: Balance, now_s: float) -> dict[str, str]:
    left_s = max(1, math.ceil(bound.window.end_s - now_s))
    period = bound.line.period
    return {
        "retry-after": str(min(left_s, RETRY_AFTER_MAX_S)),
        "ratelimit-policy": f'"{period}";q={bound.limit_tokens};w={bound.window.length_s}',
        "ratelimit": f'"{period}";r={rounded(bound.remaining_tokens)};t={left_s}',
    }


def rounded(tokens: int) -> int:
    """Down to two significant digits: it does not tell more than a client can use."""
    step: int = 10 ** max(0, len(str(tokens)) - 2)
    return tokens // step * step


def _response(code: RateLimitResponse.Code, headers: dict[str, str], body: bytes = b"") -> bytes:
    return RateLimitResponse(
        overall_code=code,
        statuses=[RateLimitResponse.DescriptorStatus(code=code)],
        response_headers_to_add=[HeaderValue(key=key, value=value) for key, value in headers.items()],
        raw_body=body,
    ).SerializeToString()


_PASSED = _response(RateLimitResponse.OK, {})
_DEGRADED = _response(RateLimitResponse.OK, {MODE_HEADER: "degraded"})
