"""Who is asking, and what a client may not say."""

from __future__ import annotations

from typing import Any

import pytest
from lua_scripts import Headers, Script, identity
from sample_policy import digest, policy_of

from controlplane.model.policy import IdentityMode, JwtProvider, Route, Tenant
from controlplane.xds import names
from controlplane.xds.lua_identity import closed_script

ACME = [("authorization", "Bearer sk-acme")]
ISSUER = JwtProvider(
    name="corp", issuer="https://corp", audiences=(), jwks_json="{}", tenant_claim="org.tenant"
)
TRUSTED = [
    "x-tidegate-tenant",
    "x-tidegate-pool",
    "x-tidegate-anything",
    "resilience.status",
    "resilience.failure-rate",
]


def _route(mode: IdentityMode) -> Route:
    return Route(id="chat", pattern="/v1/chat", models=("llama",), identity=mode)


def _verified(claims: dict[str, Any]) -> dict[str, Any]:
    return {names.JWT_METADATA: {"corp": claims}}


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        (ACME, "acme"),
        ([("authorization", "bearer  sk-acme ")], "acme"),
        ([("x-api-key", "sk-beta-2")], "beta"),
        ([*ACME, ("x-api-key", "sk-acme")], "acme"),
    ],
    ids=["bearer", "scheme in any case", "x-api-key", "both say the same"],
)
def test_a_known_key_names_its_tenant(headers: Headers, tenant: str) -> None:
    stream = identity().stream(headers=headers).request()
    assert stream.refusal is None
    assert stream.metadata["tenant"] == tenant
    assert stream.upstream == [("x-tidegate-tenant", tenant)]


WRONG: list[Any] = [
    pytest.param([("authorization", "Bearer sk-wrong")], id="unknown key"),
    pytest.param([("authorization", f"Bearer {digest('sk-acme')}")], id="the digest itself"),
    pytest.param([("authorization", "Basic c2stYWNtZQ==")], id="another scheme"),
    pytest.param([("authorization", "sk-acme")], id="no scheme"),
    pytest.param([("authorization", "Bearer " + "k" * 100_000)], id="a huge key"),
    pytest.param(
        [("authorization", "Bearer k" + " " * 500_000 + "k")], id="spaces a pattern would crawl over"
    ),
    pytest.param([("x-api-key", "sk-wrong")], id="unknown x-api-key"),
    pytest.param([*ACME, ("x-api-key", "sk-beta")], id="two tenants"),
    pytest.param([*ACME, ("x-api-key", "sk-wrong")], id="one right, one wrong"),
    pytest.param([*ACME, ("authorization", "Bearer sk-beta")], id="the header twice"),
]


@pytest.mark.parametrize("mode", [IdentityMode.REQUIRED, IdentityMode.DEFAULT_TENANT])
@pytest.mark.parametrize("headers", WRONG)
def test_a_wrong_credential_is_refused(mode: IdentityMode, headers: Headers) -> None:
    script = identity(routes=[_route(mode)], default_tenant="acme")
    stream = script.stream(headers=headers).request()
    assert stream.refusal is not None
    assert stream.refusal[":status"] == "401"
    assert stream.refusal["www-authenticate"].startswith("Bearer")
    assert '"code":"invalid_api_key"' in stream.refusal_body
    assert "tenant" not in stream.metadata
    assert not any("sk-" in text for text in [stream.refusal_body, *stream.errors])


@pytest.mark.parametrize("headers", [[], [("authorization", "Bearer ")], [("x-api-key", "")]])
@pytest.mark.parametrize(
    ("mode", "default", "status", "tenant"),
    [
        (IdentityMode.REQUIRED, "acme", "401", None),
        (IdentityMode.DEFAULT_TENANT, "beta", None, "beta"),
        (IdentityMode.DEFAULT_TENANT, None, "401", None),
        (IdentityMode.NONE, None, None, None),
        (IdentityMode.NONE, "beta", None, "beta"),
    ],
)
def test_without_a_credential_the_route_decides(
    headers: Headers, mode: IdentityMode, default: str | None, status: str | None, tenant: str | None
) -> None:
    stream = identity(routes=[_route(mode)], default_tenant=default).stream(headers=headers).request()
    assert (stream.refusal or {}).get(":status") == status
    assert stream.metadata.get("tenant") == tenant


def test_a_route_without_identity_looks_at_no_key() -> None:
    stream = (
        identity(routes=[_route(IdentityMode.NONE)]).stream(headers=[("authorization", "Bearer x")]).request()
    )
    assert stream.refusal is None
    assert stream.upstream == []


@pytest.mark.parametrize("name", TRUSTED)
@pytest.mark.parametrize("route", ["chat", "options", None], ids=["chat", "a direct answer", "no route"])
def test_every_spelling_of_a_trusted_header_is_removed(name: str, route: str | None) -> None:
    spellings = [name, name.upper(), name.replace("-", "_"), name.replace(".", "_"), name.replace(".", "-")]
    spellings += [name.replace("-", "_").replace(".", "_").title(), name.replace("-", ".")]
    forged = [(spelling, f"evil-{index}") for index, spelling in enumerate(spellings * 2)]
    stream = (
        identity().stream(route=route, headers=[("x-keep", "1"), *forged, *ACME], trailers=forged).request()
    )
    assert not any("evil" in value for _, value in stream.upstream)
    assert ("x-keep", "1") in stream.upstream
    if route == "chat":
        assert stream.upstream_trailers == []


def test_trailers_keep_what_is_not_ours() -> None:
    trailers = [("x-tidegate-tenant", "evil"), ("x-checksum", "1"), ("Authorization", "Bearer sk-acme")]
    stream = identity().stream(headers=ACME, trailers=trailers).request()
    assert stream.upstream_trailers == [("x-checksum", "1")]


def test_a_client_does_not_steer_the_router() -> None:
    sent = [
        ("x-envoy-max-retries", "99"),
        ("x-envoy-retry-on", "5xx"),
        ("x-envoy-upstream-rq-timeout-ms", "1"),
    ]
    kept = [("x-envoy-external-address", "192.0.2.1"), ("x-request-id", "r"), ("x-env", "prod")]
    stream = identity().stream(headers=[*sent, *kept, *ACME]).request()
    assert stream.upstream == [*kept, ("x-tidegate-tenant", "acme")]


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
@pytest.mark.parametrize("route", ["chat", "options"])
def test_no_credential_goes_on(header: str, route: str) -> None:
    stream = identity().stream(route=route, headers=[(header, "Bearer sk-acme")]).request()
    assert header not in dict(stream.upstream)


@pytest.mark.parametrize(
    ("claims", "headers", "tenant"),
    [
        ({"org": {"tenant": "acme-inc"}}, [], "acme"),
        ({"org.tenant": "acme-inc"}, [], "acme"),
        ({"org": {"tenant": "acme-inc"}}, [("authorization", "Bearer a.b.c")], "acme"),
        ({"org": {"tenant": "acme-inc"}}, [("x-api-key", "sk-acme")], "acme"),
        ({"org": {"tenant": "acme-inc"}}, [("x-api-key", "sk-beta")], None),
        ({"org": {"tenant": "nobody"}}, [], None),
        ({"org": {"tenant": "nobody"}}, [("x-api-key", "sk-acme")], None),
        ({"org": {"tenant": 7}}, [], None),
        ({"org": "acme-inc"}, [], None),
        ({}, [], None),
    ],
    ids=[
        "nested claim",
        "claim with a dot",
        "the token may still be in its header",
        "with a key of the same tenant",
        "with a key of another tenant",
        "value of no tenant",
        "value of no tenant, with a key",
        "not a string",
        "not a table",
        "no claim",
    ],
)
def test_a_verified_token_names_its_tenant(
    claims: dict[str, Any], headers: Headers, tenant: str | None
) -> None:
    stream = identity(jwt=(ISSUER,)).stream(headers=headers, metadata=_verified(claims)).request()
    assert stream.metadata.get("tenant") == tenant
    assert (stream.refusal is None) == (tenant is not None)


def test_a_token_that_was_not_verified_says_nothing() -> None:
    stream = identity(jwt=(ISSUER,)).stream(headers=[("authorization", "Bearer a.b.c")]).request()
    assert stream.refusal is not None


def test_grpc_is_refused_in_its_own_words() -> None:
    stream = identity().stream(headers=[("content-type", "application/grpc+proto")]).request()
    assert stream.refusal is not None
    assert stream.refusal["grpc-status"] == "16"
    assert stream.refusal_body == "Incorrect or missing API key."


def test_a_failing_script_refuses_instead_of_letting_pass() -> None:
    script = identity()
    stream = script.stream(headers=ACME)
    stream._stream.metadata.set = None  # what Envoy offers has changed
    stream.request()
    assert stream.refusal is not None
    assert stream.refusal[":status"] == "503"
    assert stream.refusal["retry-after"] == "1"
    assert len(stream.errors) == 1


def test_ten_thousand_keys_load() -> None:
    tenants = [Tenant(id=f"t{n}", key_digests=(digest(f"sk-{n}"),)) for n in range(10_000)]
    script = identity(policy_of(tenants=tenants, routes=[Route(id="chat", pattern="/x", models=("mini",))]))
    stream = script.stream(headers=[("x-api-key", "sk-9999")]).request()
    assert stream.metadata["tenant"] == "t9999"


@pytest.mark.parametrize("grpc", [False, True])
def test_before_the_first_configuration_everything_waits(grpc: bool) -> None:
    headers = [("content-type", "application/grpc")] if grpc else []
    stream = Script(closed_script()).stream(headers=headers).request()
    assert stream.refusal is not None
    assert stream.refusal[":status"] == "503"
    assert stream.refusal["retry-after"] == "1"
    assert stream.refusal.get("grpc-status") == ("14" if grpc else None)
