"""What one field alone does not show: overlaps, contradictions, numbers above capacity."""

from __future__ import annotations

import pytest

from .written import Directory, digest, errors, find, tenant, tenants, warnings


def test_the_configuration_of_these_tests_is_clean(directory: Directory) -> None:
    assert directory.load().problems == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("/v1/models/*", "/v1/models/*"),
        ("/v1/models/*", "/v1/models"),
        ("/v1/models/*", "/v1/models/a/b"),
        ("/v1/*", "/v1/models/*"),
        ("/*", "/v1/chat/completions"),
        ("/v1/a", "/v1/a"),
    ],
)
def test_a_route_behind_one_that_matches_all_of_it_is_an_error(
    directory: Directory, first: str, second: str
) -> None:
    directory.change_main(
        "routes:\n", f"routes:\n  - {{path: '{first}', id: one}}\n  - {{path: '{second}', id: two}}\n"
    )
    assert find(directory.load(), path="routes[1].path", message="can never match").line == 14


def test_the_more_specific_route_may_stand_first(directory: Directory) -> None:
    directory.change_main("routes:\n", "routes:\n  - {path: '/v1/models/x', id: one}\n")
    assert not errors(directory.load())


def test_the_health_path_is_no_route(directory: Directory) -> None:
    directory.change_main("/v1/models-list", "/healthz")
    find(directory.load(), path="routes[2].path", message="health_path")


def test_one_api_key_belongs_to_one_tenant(directory: Directory) -> None:
    directory.tenant("bravo", tenant("bravo", key="key-acme"))
    loaded = directory.load()
    problem = find(loaded, file="tenants/bravo.yaml", path="identity.api_keys")
    assert "`acme` (tenants/acme.yaml:1)" in problem.message
    assert tenants(loaded) == {"acme", "guest"}


def test_one_claim_value_belongs_to_one_tenant(directory: Directory) -> None:
    directory.tenant("acme", "id: acme\nidentity: {jwt: [a, team]}\n")
    directory.tenant("bravo", "id: bravo\nidentity: {jwt: [b, team]}\n")
    find(directory.load(), file="tenants/bravo.yaml", path="identity.jwt[1]", message="`acme`")


def test_a_tenant_id_stands_in_one_file(directory: Directory) -> None:
    directory.tenant("zulu", tenant("acme", key="other"))
    find(directory.load(), file="tenants/zulu.yaml", path="id", message="tenants/acme.yaml:1")


def test_guarantees_above_the_base_rate_are_an_error(directory: Directory) -> None:
    directory.tenant("acme", tenant("acme", "models: ['chat:v2']\nguarantee: 20"))
    directory.tenant("bravo", tenant("bravo", "models: ['chat:v2']\nguarantee: 10"))
    loaded = directory.load()
    problem = find(loaded, path="models.chat.versions.v2")
    # two routes serve the version: 2 * 20 + 2 * 10
    assert "add up to 60/s" in problem.message
    assert problem.severity == "error"
    assert tenants(loaded) >= {"acme", "bravo"}


def test_guarantees_near_the_base_rate_are_a_warning(directory: Directory) -> None:
    directory.tenant("acme", tenant("acme", "models: [embed]\nguarantee: 81"))
    problem = find(directory.load(), path="models.embed.versions.e1")
    assert problem.severity == "warning"
    assert "81/s" in problem.message


@pytest.mark.parametrize(
    ("extra", "path", "message"),
    [
        ("limit: 60", "limit", "above what chat:v2 can serve"),
        ("pin: 60", "pin", "above what chat:v2 can serve"),
        ("models: [embed]\noverrides: {chat: {limit: 5}}", "overrides.chat", "may not use it"),
        ("limits: {tokens: 100, window_seconds: 1, burst: 200}", "limits[0].burst", "larger than the window"),
        ("limits: {tokens: 101, window_seconds: 1}", "limits[0].tokens", "more than a model version"),
        ("limits: {tokens: 60, window_seconds: 60, unit: llm_token}", "limits[0].unit", "not enforced yet"),
    ],
)
def test_what_probably_is_not_meant_is_a_warning(
    directory: Directory, extra: str, path: str, message: str
) -> None:
    directory.tenant("acme", tenant("acme", extra))
    loaded = directory.load()
    assert find(loaded, path=path, message=message).severity == "warning"
    assert not errors(loaded)
    assert "acme" in tenants(loaded)


def test_a_tenant_nobody_can_be_is_a_warning(directory: Directory) -> None:
    directory.tenant("acme", "id: acme\n")
    find(directory.load(), path="identity", message="nobody can be recognised", severity="warning")


def test_claims_without_a_provider_are_a_warning(directory: Directory) -> None:
    directory.tenant("acme", "id: acme\nidentity: {jwt: [x]}\n")
    find(directory.load(), path="identity.jwt", message="no provider", severity="warning")


def test_a_server_in_two_pools_is_a_warning_and_twice_in_one_an_error(directory: Directory) -> None:
    directory.change_main('"10.0.0.2:8000"', '"10.0.0.1:8000"')
    find(directory.load(), message="also serves chat:v1", severity="warning")
    directory.change_main('["10.0.0.3:8000"]', '["10.0.0.3:8000", {address: 10.0.0.3, port: 8000}]')
    find(
        directory.load(),
        path="models.embed.versions.e1.endpoints[1]",
        message="listed twice",
        severity="error",
    )


def test_a_name_is_no_address(directory: Directory) -> None:
    directory.change_main('["10.0.0.3:8000"]', '["embed:8000"], dns: false')
    find(directory.load(), message="is a name, but `dns` is false")


def test_a_contract_above_the_base_rate_is_named_where_it_is_written(directory: Directory) -> None:
    directory.change_main("models:\n", "defaults: {rate: {contract_rate: 60}}\nmodels:\n")
    problem = find(directory.load(), path="defaults.rate.contract_rate")
    assert "60 is above the base rate of chat:v2" in problem.message


def test_more_gateways_make_slow_limits_impossible(directory: Directory) -> None:
    directory.tenant("acme", tenant("acme", "limit: 0.02"))
    assert not errors(directory.load())
    directory.change_main("max: 1", "max: 100")
    find(directory.load(), path="limit", message="too slow")


def test_a_fixed_model_must_be_served(directory: Directory) -> None:
    directory.change_main("models: [chat]", "models: [chat], fixed_model: embed")
    find(directory.load(), path="routes[0].fixed_model", message="not among the route's models")


def test_a_header_is_needed_to_read_the_model_from_it(directory: Directory) -> None:
    directory.change_main("models: [chat]", "models: [chat], model_from: header")
    find(directory.load(), path="routes[0].model_header", message="is missing")


def test_a_route_without_identity_needs_somebody_to_count(directory: Directory) -> None:
    directory.change_main("default_tenant: guest\n", "")
    directory.change_main("models: [chat]}", "models: [chat], identity: none}")
    find(directory.load(), path="routes[0].identity", message="default_tenant")


def test_windows_of_the_main_file_know_their_tenants_and_routes(directory: Directory) -> None:
    window = "{tokens: 60, window_seconds: 60, match: %s}"
    two = ", ".join(window % match for match in ("\"tenant_id == 'acm'\"", "{path: '/v1/models/*'}"))
    directory.change_main("models: [chat]}", f"models: [chat], per_route_rate_limit: [{two}]}}")
    loaded = directory.load()
    find(loaded, path="routes[0].per_route_rate_limit[0].match", message="did you mean `acme`?")
    find(loaded, path="routes[0].per_route_rate_limit[1].match", message="stands in the route")


def test_at_most_two_windows_apply_to_one_request(directory: Directory) -> None:
    window = "{tokens: 600, window_seconds: 60, name: %s}"
    three = ", ".join(window % name for name in "abc")
    directory.change_main("models: [chat]}", f"models: [chat], per_route_rate_limit: [{three}]}}")
    find(directory.load(), message="3 limits per window apply")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"one two\n", "more than one word"),
        (b"x" * 5000, "more than 4096 bytes"),
    ],
)
def test_a_key_file_without_one_key_is_an_error(
    directory: Directory, content: bytes | None, message: str
) -> None:
    if content is not None:
        (directory.path / "key").write_bytes(content)
    directory.tenant("acme", "id: acme\nidentity: {api_keys: [{file: key}]}\n")
    find(directory.load(), path="identity.api_keys[0].file", message=message, severity="error")


def test_a_key_file_leaves_only_its_digest(directory: Directory) -> None:
    (directory.path / "key").write_text("sk-live-topsecret\n")
    directory.tenant("acme", "id: acme\nidentity: {api_keys: [{file: key}]}\n")
    loaded = directory.load()
    assert loaded.policy is not None
    assert loaded.policy.tenants[0].key_digests == (digest("sk-live-topsecret"),)
    assert loaded.beside == (directory.path / "key",)
    assert "topsecret" not in repr(loaded) + repr(loaded.tenants) + repr(loaded.documents)


def test_the_digest_of_an_empty_key_is_refused(directory: Directory) -> None:
    directory.tenant("acme", tenant("acme", key=" ").replace(digest(" "), digest("")))
    find(directory.load(), path="identity.api_keys[0].sha256", message="empty key")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "not a JWKS"),
        ('{"keys": []}', "not a JWKS"),
        ("[", "not a JWKS"),
        ('{"keys": [{"kty": "RSA", "n": "x", "e": "AQAB", "d": "x"}]}', "private"),
        ('{"keys": [{"kty": "oct", "k": "x"}]}', "symmetric"),
    ],
)
def test_a_key_set_must_be_public_keys(directory: Directory, content: str, message: str) -> None:
    (directory.path / "jwks.json").write_text(content)
    directory.change_main(
        "models:\n", "identity: {jwt: {corp: {issuer: i, jwks_file: jwks.json}}}\nmodels:\n"
    )
    find(directory.load(), path="identity.jwt.corp.jwks_file", message=message)


def test_tenant_files_in_odd_places_are_not_overlooked(directory: Directory) -> None:
    (directory.path / "tenants" / "team").mkdir()
    (directory.path / "tenants" / "X.YAML").write_text("id: x\n")
    (directory.path / "tenants" / ".hidden.yaml").write_text("id: h\n")
    (directory.path / "tenants" / "notes.txt").write_text("hello")
    assert {problem.file for problem in warnings(directory.load())} == {"tenants/team", "tenants/X.YAML"}


def test_open_servers_are_warned_about(directory: Directory) -> None:
    directory.change_main("models:\n", "admin: {address: 0.0.0.0}\nxds: {address: 0.0.0.0}\nmodels:\n")
    assert {problem.path for problem in warnings(directory.load())} == {"admin.address", "xds.address"}


def test_a_file_name_of_any_length_is_only_a_problem(directory: Directory) -> None:
    long = "x" * 1000
    directory.tenant("acme", f"id: acme\nidentity: {{api_keys: [{{file: {long}}}]}}\n")
    directory.change_main("models:\n", f"admin: {{token_file: {long}}}\nmodels:\n")
    loaded = directory.load()
    find(loaded, path="identity.api_keys[0].file", message="cannot be read")
    find(loaded, path="admin.token_file", message="no such file", severity="warning")


def test_more_limits_than_a_rate_can_be_split_into_are_a_warning(directory: Directory) -> None:
    directory.change_main("base_rate: 50", "base_rate: 0.2, contract_rate: 0.01")
    many = "".join(f"- {{id: t{number}, weight: 1, models: ['chat:v2']}}\n" for number in range(30))
    directory.tenant("many", f"tenants:\n{many}")
    problem = find(directory.load(), path="models.chat.versions.v2", message="too slow to be enforced")
    assert problem.severity == "warning"


@pytest.mark.parametrize(
    ("policy", "path", "message", "severity"),
    [
        ("{store: redis}", "policy.redis", "is missing", "error"),
        ("{redis: {url: 'redis://cache:6379'}}", "policy.redis", "not used", "warning"),
        ("{store: redis, redis: {url: 'redis://me:pw@cache'}}", "policy.redis.url", "credentials", "error"),
        ("{store: redis, redis: {url: 'cache:6379'}}", "policy.redis.url", "not the URL", "error"),
        (
            "{store: redis, redis: {url: 'redis://c', password_file: none}}",
            "policy.redis.password_file",
            "no such file",
            "warning",
        ),
        ("{address: 0.0.0.0}", "policy.address", "nothing that Envoys can connect to", "error"),
        ("{embedded: false}", "policy.embedded", "another process counts in memory", "error"),
        ("{embedded: false, port: 0}", "policy.port", "known to the process alone", "error"),
        ("{port: 18000}", "policy.port", "also the port of `xds`", "error"),
    ],
)
def test_what_is_wrong_with_the_policy_service_is_named(
    directory: Directory, policy: str, path: str, message: str, severity: str
) -> None:
    directory.change_main("routes:\n", f"policy: {policy}\nroutes:\n")
    assert find(directory.load(), path=path, message=message).severity == severity
