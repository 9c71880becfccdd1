"""The issuers an operator trusts -> the jwt_authn filter.

It only verifies: a token that is missing or bad passes without claims, and the identity script, which also
knows API keys (they come in the same header), decides what that means for the route. The verified claims of
a provider are dynamic metadata under its name; a verified token is not forwarded to the model server.
"""

from __future__ import annotations

from collections.abc import Sequence

from envoy_data_plane.envoy.config.core.v3 import DataSource
from envoy_data_plane.envoy.config.route.v3 import RouteMatch
from envoy_data_plane.envoy.extensions.filters.http.jwt_authn.v3 import (
    JwtAuthentication,
    JwtProvider,
    JwtRequirement,
    JwtRequirementOrList,
    RequirementRule,
)
from envoy_data_plane.google.protobuf import Empty

from controlplane.model import policy


def jwt_authn(providers: Sequence[policy.JwtProvider]) -> JwtAuthentication:
    """Verify with whichever provider issued the token; without providers, a filter that passes everything."""
    if not providers:
        return JwtAuthentication()
    ordered = sorted(providers, key=lambda provider: provider.name)
    anyone = JwtRequirement(allow_missing_or_failed=Empty())
    requirements = [JwtRequirement(provider_name=provider.name) for provider in ordered]
    return JwtAuthentication(
        providers={provider.name: _provider(provider) for provider in ordered},
        rules=[
            RequirementRule(
                match=RouteMatch(prefix="/"),
                requires=JwtRequirement(
                    requires_any=JwtRequirementOrList(requirements=[*requirements, anyone])
                ),
            )
        ],
    )


def _provider(provider: policy.JwtProvider) -> JwtProvider:
    return JwtProvider(
        issuer=provider.issuer,
        audiences=list(provider.audiences),
        local_jwks=DataSource(inline_string=provider.jwks_json),
        payload_in_metadata=provider.name,
        forward=False,
    )
