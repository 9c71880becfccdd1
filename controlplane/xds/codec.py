"""Messages -> bytes and back: the only place that serialises.

Two routes with the same bytes. What is rare is authored with envoy-data-plane, complete and typed but
milliseconds for each message (it compiles a validator every time); what changes every tick is authored with
official protobuf classes of our own wire-compatible subset (`protos/tidegate_resources.proto`), about a
thousand times faster. Reading back, for goldens and people, always goes through envoy-data-plane, so a
subset that strayed from Envoy's numbering would show.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any as AnyValue

import betterproto2
from envoy_data_plane.google.protobuf import Any
from google.protobuf.message import Message

from controlplane.model import resource as types
from controlplane.pb import tidegate_resources_pb2 as pb

_MODULES: Mapping[str, tuple[str, str]] = {
    types.CLUSTER: ("envoy.config.cluster.v3", "Cluster"),
    types.ENDPOINT: ("envoy.config.endpoint.v3", "ClusterLoadAssignment"),
    types.LISTENER: ("envoy.config.listener.v3", "Listener"),
    types.ROUTE: ("envoy.config.route.v3", "RouteConfiguration"),
    types.EXTENSION: ("envoy.config.core.v3", "TypedExtensionConfig"),
    types.RUNTIME: ("envoy.service.runtime.v3", "Runtime"),
}

# Types that occur only inside an Any of the hot route: known to the reader once they are imported.
_NESTED = ("envoy.extensions.filters.http.lua.v3", "envoy.extensions.filters.http.jwt_authn.v3")


def encode(message: betterproto2.Message | Message) -> bytes:
    """The wire form of `message`; the same message gives the same bytes in every process."""
    if isinstance(message, Message):
        return message.SerializeToString(deterministic=True)
    return bytes(message)


def pack(message: betterproto2.Message) -> Any:
    """`message` inside an Any."""
    return Any.pack(message)


def lua_filter(name: str, source: str) -> pb.TypedExtensionConfig:
    """A Lua filter configuration for ECDS; the script may be large and change every tick."""
    config = pb.TypedExtensionConfig(name=name)
    config.typed_config.Pack(  # the subset has its own package, so the name is Envoy's, written out
        pb.Lua(default_source_code=pb.DataSource(inline_string=source)), deterministic=True
    )
    config.typed_config.type_url = LUA_TYPE
    return config


LUA_TYPE = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"


def parse(type_url: str, body: bytes) -> betterproto2.Message:
    """A resource as its envoy-data-plane message."""
    for module in _NESTED:
        importlib.import_module(f"envoy_data_plane.{module}")
    module, name = _MODULES[type_url]
    message_type = getattr(importlib.import_module(f"envoy_data_plane.{module}"), name)
    message: betterproto2.Message = message_type.parse(body)
    return message


def decode(type_url: str, body: bytes) -> dict[str, AnyValue]:
    """A resource as plain values (proto JSON with snake_case names), for goldens, static files and people."""
    plain: dict[str, AnyValue] = parse(type_url, body).to_dict(casing=betterproto2.Casing.SNAKE)
    return plain
