import hashlib
import string

import pytest
from fake_view import API_KEY, DIGESTS, ODD_API_KEY
from hypothesis import given
from hypothesis import strategies as st

from controlplane.serve.redact import HIDDEN, redact, redact_all

KNOWN = frozenset(DIGESTS)


@pytest.mark.parametrize(
    "text",
    [
        f"authorization: Bearer {API_KEY}",
        f"got {API_KEY}, which is unknown",
        f"?api_key={API_KEY}&x=1",
        f'{{"authorization": "{API_KEY}"}}',
        f"table has {DIGESTS[0]} = acme",
        f"DIGEST {DIGESTS[0].upper()}",
    ],
    ids=["bearer", "prefix", "query", "json", "digest", "upper-case digest"],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    shown = redact(text)
    assert API_KEY not in shown
    assert DIGESTS[0] not in shown.lower()
    assert HIDDEN in shown


@pytest.mark.parametrize("text", [f"value {ODD_API_KEY}", f"header x={ODD_API_KEY};", f"({ODD_API_KEY})"])
def test_a_key_of_any_shape_is_known_by_its_digest(text: str) -> None:
    assert ODD_API_KEY not in redact(text, KNOWN)


def test_a_password_in_a_url_is_hidden_and_the_rest_stays() -> None:
    assert redact("http://bob:hunter2@prom:9090/api") == f"http://bob:{HIDDEN}@prom:9090/api"


def test_a_json_web_token_is_hidden() -> None:
    assert redact("token eyJhbGciOi.eyJzdWIi.c2ln rejected") == f"token {HIDDEN} rejected"


@pytest.mark.parametrize(
    "text",
    [
        "chat|acme|chat:v1",
        "tenants/acme.yaml:14: tenants[2].tokens_per_day: must be > 0 (expected an integer)",
        "version 3f2a9c0d1e5b7a68 was rejected",
        "weighted share of the pool's rate",
        "tidegate.limits: script load error: [string]:3: unexpected symbol near 'x'",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text, KNOWN) == text


def test_fields_named_like_secrets_are_hidden_whatever_they_hold() -> None:
    shown = redact_all({"api_key": "x", "deep": [{"Authorization": "y", "tokens": 5, "token": "z"}]})
    assert shown == {"api_key": HIDDEN, "deep": [{"Authorization": HIDDEN, "tokens": 5, "token": HIDDEN}]}


@given(st.text(string.ascii_letters + string.digits + "-_.:/+=~!@#$%^*", min_size=8, max_size=40))
def test_every_configured_key_is_found_in_a_sentence(key: str) -> None:
    digests = frozenset({hashlib.sha256(key.encode()).hexdigest()})
    assert f" {key} " not in redact(f"refused {key} at the edge", digests)
