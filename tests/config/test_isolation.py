"""[isolated] A bad tenant file affects that tenant alone; a broken main file keeps all that was good."""

from __future__ import annotations

import pytest

from controlplane.model.policy import Tenant

from .written import Directory, digest, errors, find, tenant, tenants


def weight(tenants: tuple[Tenant, ...], id: str) -> float:
    return next(tenant.share.weight for tenant in tenants if tenant.id == id)


BROKEN = {
    "not yaml": "id: acme\n  weight: [",
    "not utf-8": "id: acme\n\udcff",
    "not a mapping": "- acme",
    "nothing": "",
    "misspelt": tenant("acme", "wieght: 9"),
    "unknown model": tenant("acme", "models: [no-such]"),
    "limit below guarantee": tenant("acme", "guarantee: 5\nlimit: 1"),
    "no id": "weight: 9",
    "another's key": tenant("acme", key="key-bravo"),
    "missing key file": "id: acme\nidentity: {api_keys: [{file: nowhere}]}",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_tenant_keeps_its_last_good_version_and_others_land(directory: Directory, text: str) -> None:
    directory.tenant("acme", tenant("acme", "weight: 2"))
    directory.tenant("bravo", tenant("bravo", "weight: 2"))
    before = directory.load()
    (directory.path / "tenants" / "acme.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    directory.tenant("bravo", tenant("bravo", "weight: 7"))
    after = directory.load(before)
    assert after.policy is not None
    assert weight(after.policy.tenants, "bravo") == 7
    assert weight(after.policy.tenants, "acme") == 2
    assert errors(after)
    find(after, file="tenants/acme.yaml", message="last good version", severity="warning")


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_tenant_without_a_past_is_left_out_alone(directory: Directory, text: str) -> None:
    directory.tenant("bravo", tenant("bravo"))
    (directory.path / "tenants" / "acme.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    loaded = directory.load()
    # of two who claim one key without a past, the first file has it
    assert tenants(loaded) == ({"guest", "acme"} if text == BROKEN["another's key"] else {"guest", "bravo"})
    assert any("left out" in problem.message for problem in loaded.problems)


def test_a_broken_tenant_stays_while_it_stays_broken_and_heals(directory: Directory) -> None:
    loaded = directory.load()
    directory.tenant("acme", "id: acme\nlimt: 5\n")
    for _ in range(3):
        loaded = directory.load(loaded)
        assert tenants(loaded) == {"guest", "acme"}
    directory.tenant("acme", tenant("acme", "limit: 5"))
    healed = directory.load(loaded)
    assert healed.problems == ()
    assert healed.policy is not None
    assert healed.policy.tenants[0].share.ceiling_per_s == 5


def test_a_removed_tenant_goes(directory: Directory) -> None:
    before = directory.load()
    directory.remove("acme")
    assert tenants(directory.load(before)) == {"guest"}


def test_a_broken_file_of_many_keeps_the_good_ones_up_to_date(directory: Directory) -> None:
    directory.tenant("many", "tenants:\n- {id: one, weight: 1}\n- {id: two, weight: 1}\n")
    before = directory.load()
    directory.tenant("many", "tenants:\n- {id: one, weight: 5}\n- {id: two, wait: 5}\n- {id: three}\n")
    after = directory.load(before)
    assert after.policy is not None
    assert tenants(after) == {"guest", "acme", "one", "two", "three"}
    assert weight(after.policy.tenants, "one") == 5
    assert weight(after.policy.tenants, "two") == 1


@pytest.mark.parametrize(
    "text", ["", "models: [", "models: {}", "modles: {}", "models:\n  a: 1\n  a: 2\n", "\x00"]
)
def test_a_broken_main_file_keeps_the_whole_last_good_one(directory: Directory, text: str) -> None:
    before = directory.load()
    directory.main(text)
    directory.tenant("acme", tenant("acme", "weight: 9"))
    after = directory.load(before)
    assert after.policy is before.policy
    find(after, file="tidegate.yaml", severity="error")
    find(after, file="tidegate.yaml", message="whole last good configuration")


def test_a_missing_main_file_keeps_the_whole_last_good_one(directory: Directory) -> None:
    before = directory.load()
    (directory.path / "tidegate.yaml").unlink()
    assert directory.load(before).policy is before.policy
    assert directory.load().policy is None


def test_what_healed_after_a_broken_main_file_lands(directory: Directory) -> None:
    before = directory.load()
    text = (directory.path / "tidegate.yaml").read_text()
    directory.main("models: [")
    broken = directory.load(before)
    directory.tenant("acme", tenant("acme", "weight: 9"))
    directory.main(text)
    healed = directory.load(directory.load(broken))
    assert healed.policy is not None
    assert weight(healed.policy.tenants, "acme") == 9


def test_a_newcomer_cannot_take_a_key_that_is_in_use(directory: Directory) -> None:
    before = directory.load()
    directory.tenant("aaa-thief", tenant("thief", key="key-acme"))
    after = directory.load(before)
    assert tenants(after) == {"guest", "acme"}
    find(after, file="tenants/aaa-thief.yaml", message="also one of `acme`")


def test_a_newcomer_cannot_take_the_key_of_a_broken_tenant(directory: Directory) -> None:
    before = directory.load()
    directory.tenant("aaa-thief", tenant("thief", key="key-acme"))
    directory.tenant("acme", "id: acme\nbroken: yes\n")
    assert tenants(directory.load(before)) == {"guest", "acme"}


def test_a_newcomer_cannot_take_an_id_that_is_in_use(directory: Directory) -> None:
    before = directory.load()
    directory.tenant("aaa", tenant("acme", "weight: 100", key="other"))
    after = directory.load(before)
    assert after.policy is not None
    assert weight(after.policy.tenants, "acme") == 1
    assert after.policy.tenants[0].key_digests == (digest("key-acme"),)


def test_a_copy_of_a_tenant_file_does_not_block_the_original(directory: Directory) -> None:
    before = directory.load()
    directory.tenant("aaa-copy", tenant("acme", "weight: 100"))
    directory.tenant("acme", tenant("acme", "weight: 3"))
    after = directory.load(before)
    assert after.policy is not None
    assert weight(after.policy.tenants, "acme") == 3
    find(after, file="tenants/aaa-copy.yaml", message="does not take effect")


def test_a_tenant_that_adds_a_key_keeps_the_one_it_had(directory: Directory) -> None:
    directory.tenant("bravo", tenant("bravo"))
    before = directory.load()
    directory.tenant("acme", tenant("acme", key="key-bravo"))
    two = ", ".join(f"{{sha256: {digest(key)}}}" for key in ("key-bravo", "another"))
    directory.tenant("bravo", f"id: bravo\nidentity: {{api_keys: [{two}]}}\n")
    after = directory.load(before)
    assert after.policy is not None
    digests = {tenant.id: set(tenant.key_digests) for tenant in after.policy.tenants}
    assert digests["bravo"] == {digest("key-bravo"), digest("another")}
    assert digests["acme"] == {digest("key-acme")}


def test_a_key_may_move_from_one_tenant_to_another_in_one_change(directory: Directory) -> None:
    before = directory.load()
    directory.tenant("acme", tenant("acme", key="new"))
    directory.tenant("bravo", tenant("bravo", key="key-acme"))
    after = directory.load(before)
    assert not errors(after)
    assert tenants(after) == {"guest", "acme", "bravo"}


def test_a_tenant_may_move_to_another_file(directory: Directory) -> None:
    before = directory.load()
    directory.remove("acme")
    directory.tenant("renamed", tenant("acme"))
    after = directory.load(before)
    assert not errors(after)
    assert tenants(after) == {"guest", "acme"}


def test_a_guarantee_beyond_the_pool_is_refused_to_who_raised_it(directory: Directory) -> None:
    directory.tenant("acme", tenant("acme", "models: [embed]\nguarantee: 50"))
    directory.tenant("bravo", tenant("bravo", "models: [embed]\nguarantee: 10"))
    before = directory.load()
    directory.tenant("bravo", tenant("bravo", "models: [embed]\nguarantee: 60"))
    directory.tenant("acme", tenant("acme", "models: [embed]\nguarantee: 45"))
    after = directory.load(before)
    assert after.policy is not None
    guaranteed = {tenant.id: tenant.share.guarantee_per_s for tenant in after.policy.tenants}
    assert guaranteed == {"guest": 0, "acme": 45, "bravo": 10}
    find(after, file="tenants/bravo.yaml", path="guarantee", message="would add up to 105/s")


def test_a_model_that_goes_takes_nobody_with_it(directory: Directory) -> None:
    directory.tenant("acme", tenant("acme", "models: [chat, embed]\noverrides: {embed: {limit: 3}}"))
    before = directory.load()
    text = (directory.path / "tidegate.yaml").read_text()
    directory.main(text.replace('  embed:\n    versions:\n      e1: {endpoints: ["10.0.0.3:8000"]}\n', ""))
    after = directory.load(before)
    assert after.policy is not None
    assert {key.pool for key in after.policy.keys if key.tenant == "acme"} == {"chat:v1", "chat:v2"}
    find(after, file="tenants/acme.yaml", path="models[1]", message="no model `embed`")


def test_a_changed_key_file_counts_though_no_document_changed(directory: Directory) -> None:
    (directory.path / "key").write_text("one")
    directory.tenant("acme", "id: acme\nidentity: {api_keys: [{file: key}]}\n")
    before = directory.load()
    (directory.path / "key").write_text("two")
    after = directory.load(before)
    assert after.policy is not None
    assert after.policy.tenants[0].key_digests == (digest("two"),)


def test_links_that_lead_nowhere_or_round_in_circles_cost_only_themselves(directory: Directory) -> None:
    for name, target in (("loop.yaml", "loop.yaml"), ("round", "round"), ("gone.yaml", "nowhere")):
        (directory.path / "tenants" / name).symlink_to(target)
    loaded = directory.load()
    assert tenants(loaded) == {"acme", "guest"}
    assert {problem.file for problem in errors(loaded)} == {"tenants/gone.yaml", "tenants/loop.yaml"}
