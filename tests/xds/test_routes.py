"""Routes: patterns, what is free, and what lets a stream run."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from envoy_data_plane.envoy.config.route.v3 import Route as EnvoyRoute
from policies import CHAT, policy

from controlplane.model.policy import IdentityMode, ModelFrom, Route
from controlplane.xds import names
from controlplane.xds.routes import route, route_configuration

MODELS = policy().models


def _route(**fields: object) -> EnvoyRoute:
    return route(Route(**{"id": "r", "pattern": "/p", "models": ("m",), **fields}), MODELS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "field", "value"),
    [
        ("/v1/chat", "path", "/v1/chat"),
        ("/v1/*", "path_separated_prefix", "/v1"),
        ("/*", "prefix", "/"),
    ],
)
def test_a_pattern_is_exact_or_a_prefix(pattern: str, field: str, value: str) -> None:
    match = _route(pattern=pattern).match
    assert match is not None
    assert getattr(match, field) == value


def test_a_stream_may_run_as_long_as_the_route_says() -> None:
    action = _route(idle_timeout_s=30.0, max_stream_duration_s=600.0).route
    assert action is not None
    assert action.max_stream_duration is not None
    assert action.timeout == timedelta(0)
    assert action.idle_timeout == timedelta(seconds=30)
    assert action.max_stream_duration.max_stream_duration == timedelta(seconds=600)


def test_a_script_chooses_the_pool_and_the_model_server_does_not_see_it() -> None:
    made = _route()
    assert made.route is not None
    assert made.route.cluster_header == names.POOL_HEADER
    assert set(made.request_headers_to_remove) == {names.POOL_HEADER, "accept-encoding"}


@pytest.mark.parametrize(
    ("fields", "off"),
    [
        ({}, set()),
        ({"free": True}, {names.RATE_LIMIT_FILTER, names.QUOTA_FILTER}),
        ({"model_from": ModelFrom.FIXED, "fixed_model": "m"}, {names.BODY_FILTER}),
        ({"model_from": ModelFrom.HEADER, "model_header": "x"}, {names.BODY_FILTER}),
    ],
)
def test_a_route_does_without_the_filters_it_does_not_need(fields: dict[str, object], off: set[str]) -> None:
    assert set(_route(**fields).typed_per_filter_config) == off


def test_a_free_path_without_models_lists_them_and_still_asks_who_is_there() -> None:
    made = _route(free=True, models=())
    assert made.direct_response is not None
    assert made.direct_response.body is not None
    listed = json.loads(made.direct_response.body.inline_string or "")
    assert [entry["id"] for entry in listed["data"]] == ["m", "m:r1"]
    assert names.IDENTITY_FILTER not in made.typed_per_filter_config
    open_to_all = _route(free=True, models=(), identity=IdentityMode.NONE)
    assert names.IDENTITY_FILTER in open_to_all.typed_per_filter_config


def test_options_come_first_and_not_found_last() -> None:
    (host,) = route_configuration((CHAT,), MODELS, (), 1000).virtual_hosts
    assert [entry.name for entry in host.routes] == ["options", "chat", "not-found"]
    (host,) = route_configuration((CHAT,), MODELS, ("https://a",), 1000).virtual_hosts
    assert [entry.name for entry in host.routes] == ["preflight", "options", "chat", "not-found"]
