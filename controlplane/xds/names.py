"""The names that listener, routes, scripts and bootstrap must agree on.

One place for every string that crosses from one Envoy message (or Lua script) to another.
"""

from __future__ import annotations

LISTENER_NAME = "tidegate"
ROUTE_CONFIG_NAME = "tidegate"
GATEWAYS_CLUSTER = "tidegate_gateways"
POLICY_CLUSTER = "tidegate_policy"
XDS_CLUSTER = "tidegate_xds"
RUNTIME_LAYER = "tidegate"
RUNTIME_ENFORCED = "tidegate.enforced"

JWT_FILTER = "tidegate.jwt"
IDENTITY_FILTER = "tidegate.identity"
BODY_FILTER = "tidegate.body"
LIMITS_FILTER = "tidegate.limits"
RATE_LIMIT_FILTER = "tidegate.rate_limit"
QUOTA_FILTER = "tidegate.quota"
QUOTA_DOMAIN = "tidegate"

# Dynamic metadata.
METADATA = (
    "tg"  # c,k,u of each of SLOTS; tenant, route, model_version, outcome; with a quota: reserve, settle
)
BODY_METADATA = "tg.body"  # the fields of `body.FIELDS`; `invalid` = true when the JSON body does not parse
JWT_METADATA = "envoy.filters.http.jwt_authn"  # provider name -> verified claims

# Limits on one request, in the order they are asked: shorter bursts of the adaptive one (RUNGS of the limits
# script), then itself and up to two windows, the shortest first.
SLOTS = ("b1", "b2", "b3", "b4", "b5", "b6", "1", "2", "3")

# Headers.
POOL_HEADER = "x-tidegate-pool"  # the cluster of a request
LIMITED_HEADER = "x-tidegate-limited"  # on our own 429s, so that a script can tell them from a model server's
QUOTA_HEADER = "x-tidegate-quota"  # the same on 429s of the policy service
WOULD_LIMIT_HEADER = "x-tidegate-would-limit"  # on requests that observe mode let through
