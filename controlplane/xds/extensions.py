"""Filters by ECDS: where the listener asks for them, and what it is sent.

The listener is frozen, for its change would refill every bucket; whatever changes with tenants, keys and
rates sits in filters it only names. The listener opens when they have arrived, so a new gateway's first
request meets real limits. Should they not arrive (or be refused), their defaults serve nothing: 503.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import betterproto2
from envoy_data_plane.envoy.config.core.v3 import DataSource, ExtensionConfigSource, TypedExtensionConfig
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter

from controlplane.model import policy
from controlplane.xds import codec
from controlplane.xds.cluster import ads
from controlplane.xds.jwt import jwt_authn
from controlplane.xds.names import JWT_FILTER

_WAIT = timedelta(seconds=5)


def discovered(name: str, default: betterproto2.Message) -> HttpFilter:
    """The HTTP filter `name`, delivered by ECDS; `default` when it does not come in time."""
    packed, source = codec.pack(default), ads()
    source.initial_fetch_timeout = _WAIT
    return HttpFilter(
        name=name,
        config_discovery=ExtensionConfigSource(
            config_source=source,
            default_config=packed,
            type_urls=[packed.type_url],
        ),
    )


def lua_default(source: str) -> Lua:
    """A Lua filter as authored into the listener; pushed scripts go the fast way, `codec.lua_filter`."""
    return Lua(default_source_code=DataSource(inline_string=source))


def jwt_filter(providers: Sequence[policy.JwtProvider]) -> TypedExtensionConfig:
    """What ECDS sends for the JWT filter."""
    return TypedExtensionConfig(name=JWT_FILTER, typed_config=codec.pack(jwt_authn(providers)))
