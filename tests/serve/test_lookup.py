import pytest
from fake_view import policy

from controlplane.model.policy import Key
from controlplane.serve.lookup import Unknown, find_key

POLICY = policy()


@pytest.mark.parametrize(
    ("route", "model_version", "key_id"),
    [
        ("chat", "chat:v1", "chat|acme|chat:v1"),
        ("/v1/chat/completions", "chat:v1", "chat|acme|chat:v1"),
        ("chat", "chat", "chat|acme|chat:v2"),
    ],
    ids=["route id", "route pattern", "bare model"],
)
def test_a_key_is_found_by_the_names_people_use(route: str, model_version: str, key_id: str) -> None:
    key = find_key(POLICY, tenant="acme", route=route, model_version=model_version)
    assert isinstance(key, Key)
    assert key.id == key_id


@pytest.mark.parametrize(
    ("tenant", "route", "model_version", "field", "close"),
    [
        ("acne", "chat", "chat:v1", "tenant", "acme"),
        ("acme", "chad", "chat:v1", "route", "chat"),
        ("acme", "completions", "chat:v1", "route", "/v1/chat/completions"),
        ("acme", "chat", "chat:v3", "model_version", "chat:v1"),
        ("zzz", "chat", "chat:v1", "tenant", "globex"),
    ],
)
def test_a_misspelling_is_answered_with_what_was_meant(
    tenant: str, route: str, model_version: str, field: str, close: str
) -> None:
    found = find_key(POLICY, tenant=tenant, route=route, model_version=model_version)
    assert isinstance(found, Unknown)
    assert found.field == field
    assert close in found.close
    assert close in found.message


def test_a_tenant_without_the_model_is_told_what_it_has() -> None:
    found = find_key(POLICY, tenant="initech", route="chat", model_version="chat:v2")
    assert isinstance(found, Unknown)
    assert "tenant 'initech' has no limit for 'chat:v2' on route 'chat'" in found.message
    assert found.close == ("chat chat:v1",)


def test_nothing_configured_is_said_so() -> None:
    found = find_key(policy(tenants=()), tenant="acme", route="chat", model_version="chat:v1")
    assert isinstance(found, Unknown)
    assert found.message == "no tenant 'acme'; none is configured"
