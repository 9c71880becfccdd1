"""Every error names file, line, path and what was expected; all of them are reported at once."""

from __future__ import annotations

import pytest

from .written import Directory, digest, errors, find, tenant


@pytest.mark.parametrize(
    ("old", "new", "path", "message"),
    [
        ("gateways:", "gatways:", "gatways", "did you mean `gateways`?"),
        ("{min: 1, max: 1}", "{min: 1, max: many}", "gateways.max", "`many`"),
        ("{min: 1, max: 1}", "{min: 3, max: 1}", "gateways.min", "more than `gateways.max`"),
        ("default_version: v1", "default_version: 1", "models.chat.default_version", "read as a number"),
        ("default_version: v1", "default_version: v3", "models.chat.default_version", "no version `v3`"),
        ("    default_version: v1\n", "", "models.chat.default_version", "several versions"),
        ('"10.0.0.1:8000"', '"10.0.0.1"', "models.chat.versions.v1.endpoints[0]", "not an endpoint"),
        ('"10.0.0.1:8000"', '"10.0.0.1:0"', "models.chat.versions.v1.endpoints[0].port", "out of range"),
        ('"10.0.0.1:8000"', '"10.0.0.999:80"', "models.chat.versions.v1.endpoints[0].address", "host name"),
        ('["10.0.0.1:8000"]', "[]", "models.chat.versions.v1.endpoints", "out of range"),
        ('["10.0.0.1:8000"]', "", "models.chat.versions.v1.endpoints", "is empty"),
        ("base_rate: 50", "base_rate: .inf", "models.chat.versions.v2.rate.base_rate", "`.inf`"),
        ("base_rate: 50", "base_rate: 1e3", "models.chat.versions.v2.rate.base_rate", "`1e3`"),
        (
            "base_rate: 50",
            "base_rat: 50",
            "models.chat.versions.v2.rate.base_rat",
            "did you mean `base_rate`?",
        ),
        ("base_rate: 50", "guards: maybe", "models.chat.versions.v2.rate.guards", "neither a switch"),
        ("base_rate: 50", "curve: tabel", "models.chat.versions.v2.rate.curve", "`tabel`"),
        ("models: [chat]", "models: [chatt]", "routes[0].models[0]", "did you mean `chat`?"),
        ("path: /v1/chat/completions", "path: v1", "routes[0].path", "not a path pattern"),
        ("id: models}", "id: chat}", "routes[1].id", "also that of routes[0]"),
        ("default_tenant: guest", "default_tenant: gest", "default_tenant", "did you mean `guest`?"),
        ("default_tenant: guest", "slos: {chta: {ttft_s: 1}}", "slos.chta", "did you mean `chat`?"),
        ("default_tenant: guest", "mode: off", "mode", "`off` is read as false"),
        ("default_tenant: guest", "listener: {port: 9090}", "listener.port", "also the port of `admin`"),
        ("default_tenant: guest", "xds: {tls: {cert: a}}", "xds.tls.key", "is missing"),
        ("default_tenant: guest", "signals: {source: prometheus}", "signals.prometheus", "is missing"),
        ("default_tenant: guest", "signals: {catalogue: no.yaml}", "signals.catalogue", "no such file"),
        (
            "default_tenant: guest",
            "identity: {jwt: {corp: {issuer: i, jwks_file: no.json}}}",
            "identity.jwt.corp.jwks_file",
            "no such file",
        ),
    ],
)
def test_an_error_in_the_main_file_is_named(
    directory: Directory, old: str, new: str, path: str, message: str
) -> None:
    directory.change_main(old, new)
    loaded = directory.load()
    problem = find(loaded, path=path, message=message)
    lines = (directory.path / "tidegate.yaml").read_text().splitlines()
    assert problem.file == "tidegate.yaml"
    assert new.rstrip() in lines[problem.line - 1]
    assert problem.expected
    assert loaded.policy is None


@pytest.mark.parametrize(
    ("extra", "path", "message"),
    [
        ("wieght: 3", "wieght", "did you mean `weight`?"),
        ("limit:", "limit", "is empty"),
        ("limit: fast", "limit", "`fast`"),
        ("limit: -1", "limit", "out of range"),
        ("weight: 0", "weight", "out of range"),
        ("guarantee: 5\nlimit: 2", "limit", "below the guarantee"),
        ("guarantee: 101", "guarantee", "cannot be guaranteed"),
        ("limit: 0.0005", "limit", "too slow"),
        ("priority: high", "priority", "`high`"),
        ("models: [chat, embd]", "models[1]", "did you mean `embed`?"),
        ("models: ['chat:v9']", "models[0]", "no model version `chat:v9`"),
        ("overrides: {'chat:v9': {limit: 1}}", "overrides['chat:v9']", "no model version"),
        ("overrides: {chat: {limits: 1}}", "overrides.chat.limits", "did you mean `limit`?"),
        ("overrides: {chat: {guarantee: 9, limit: 1}}", "overrides.chat.limit", "below the guarantee"),
        ("limits: [{tokens: 10}]", "limits[0].window_seconds", "is missing"),
        ("limits: [{tokens: '10', window_seconds: 1}]", "limits[0].tokens", "the text '10'"),
        ("limits: [{tokens: 10, window_seconds: 60, burst: 0.5}]", "limits[0].burst", "below one request"),
        ("limits: [{tokens: 1, window_seconds: 86400}]", "limits[0].tokens", "too slow"),
        ("limits: {tokens: 9, window_seconds: 9, match: path}", "limits[0].match", "does not parse"),
        (
            "limits: {tokens: 9, window_seconds: 9, match: \"tenant_id == 'guest'\"}",
            "limits[0].match",
            "limits only that tenant",
        ),
        (
            "limits: {tokens: 9, window_seconds: 9, match: {path: /v1/chat/completion}}",
            "limits[0].match",
            "did you mean `/v1/chat/completions`?",
        ),
        (
            "limits: {tokens: 9, window_seconds: 9, match: {model_version: 'chat:v7'}}",
            "limits[0].match",
            "no model version `chat:v7`",
        ),
        (
            "limits: {tokens: 9, window_seconds: 9, match: {path: /v1/chat/completions, model_version: e1}}",
            "limits[0].match",
            "can never match",
        ),
        (
            "limits: {tokens: 9, window_seconds: 9, match: {path: /v1/models-list}}",
            "limits[0].match",
            "can never match",
        ),
        (
            "limits: {tokens: 9, window_seconds: 9, key_template: 'tenant:path'}",
            "limits[0].key_template",
            "not a key template",
        ),
        (
            "limits:\n" + "- {tokens: 100, window_seconds: 60}\n" * 3,
            "limits",
            "3 limits per window apply",
        ),
        (
            "quotas: {daily: [{model_version: chat, tokens: 5}]}",
            "quotas.daily[0].model_version",
            "no model version",
        ),
        ("quotas: {daily: [{model_version: v1, tokens: 5.5}]}", "quotas.daily[0].tokens", "`5.5`"),
        ("quotas: {time_zone: Mars/Base}", "quotas.time_zone", "not an IANA time zone"),
    ],
)
def test_an_error_in_a_tenant_file_is_named(
    directory: Directory, extra: str, path: str, message: str
) -> None:
    directory.tenant("acme", tenant("acme", extra))
    problem = find(directory.load(), file="tenants/acme.yaml", path=path, message=message)
    assert problem.line >= 3
    assert problem.expected


def test_all_problems_are_reported_at_once(directory: Directory) -> None:
    directory.change_main("{min: 1, max: 1}", "{min: a, max: b}\nmode: loud\nfreeze: perhaps")
    directory.tenant("acme", "id: 7\nweight: none\nlimits: [{}]\n")
    found = {(problem.file, problem.path) for problem in errors(directory.load())}
    assert found == {
        ("tidegate.yaml", "gateways.min"),
        ("tidegate.yaml", "gateways.max"),
        ("tidegate.yaml", "mode"),
        ("tidegate.yaml", "freeze"),
        ("tenants/acme.yaml", "id"),
        ("tenants/acme.yaml", "weight"),
        ("tenants/acme.yaml", "limits[0].tokens"),
        ("tenants/acme.yaml", "limits[0].window_seconds"),
    }


def test_a_tenant_in_a_list_is_named_by_its_place(directory: Directory) -> None:
    directory.tenant(
        "many",
        "tenants:\n- {id: one}\n- {id: two}\n- id: three\n  limits:\n  - tokens: x\n    window_seconds: 1\n",
    )
    problem = find(directory.load(), path="tenants[2].limits[0].tokens")
    assert str(problem) == (
        "tenants/many.yaml:6: error: tenants[2].limits[0].tokens: "
        "`x` is of the wrong kind (expected a number)"
    )


@pytest.mark.parametrize(
    "identity",
    [
        "{api_keys: [sk-live-topsecret]}",
        "{api_keys: [{sha256: sk-live-topsecret}]}",
        "{api_keys: [{key: sk-live-topsecret}]}",
        "{api_keys: [{sk-live-topsecret: 1}]}",
        "{api_keys: {sk-live-topsecret: 1, sk-live-topsecret: 2}}",
        "{api_keys: sk-live-topsecret}",
        "{api_keys: [{sha256: [sk-live-topsecret]}]}",
        "{api_keys: [{sha256: sk-live-topsecret, file: sk-live-topsecret}]}",
    ],
)
def test_a_key_in_the_wrong_place_is_not_repeated(directory: Directory, identity: str) -> None:
    directory.tenant("acme", f"id: acme\nidentity: {identity}\n")
    loaded = directory.load()
    assert errors(loaded)
    assert "topsecret" not in repr(loaded.problems)
    assert "topsecret" not in repr(loaded)


def test_an_unknown_field_never_passes_silently(directory: Directory) -> None:
    """Each field of a whole tenant, misspelt, is an error: a misspelling never means `no limit`."""
    fields = {
        "priority": "normal",
        "weight": "1",
        "guarantee": "1",
        "limit": "5",
        "pin": "5",
        "models": "[chat]",
        "overrides": "{chat: {limit: 5}}",
        "limits": "{tokens: 10, window_seconds: 10}",
        "per_route_rate_limit": "{tokens: 10, window_seconds: 10}",
        "quotas": "{}",
    }
    for field, text in fields.items():
        for misspelt in (field[:-1], field + "_", field.upper(), field[::-1]):
            directory.tenant("acme", tenant("acme", f"{misspelt}: {text}"))
            if misspelt == "limit" and field == "limits":
                find(directory.load(), path="limit", message="wrong kind")
            else:
                find(directory.load(), path=misspelt, message="unknown field")


def test_a_digest_is_read_in_any_case(directory: Directory) -> None:
    directory.tenant("acme", f"id: acme\nidentity: {{api_keys: [{{sha256: {digest('k').upper()}}}]}}\n")
    loaded = directory.load()
    assert loaded.policy is not None
    assert loaded.policy.tenants[0].key_digests == (digest("k"),)
