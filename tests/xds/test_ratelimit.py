"""The rate limit filter is a constant whose buckets hold what the ladder says."""

from __future__ import annotations

from controlplane.model.ladder import COST_MAX, LADDER_S, UNITS_PER_S, class_name
from controlplane.model.price import cost_units
from controlplane.xds import codec
from controlplane.xds.ratelimit import local_rate_limit

FILTER = local_rate_limit()


def test_there_is_a_wildcard_bucket_for_each_class() -> None:
    found = {
        descriptor.entries[0].value: descriptor.token_bucket.max_tokens
        for descriptor in FILTER.descriptors
        if descriptor.token_bucket is not None
    }
    assert list(found) == [class_name(burst_s) for burst_s in LADDER_S]
    for burst_s in LADDER_S[:-1]:
        assert found[class_name(burst_s)] == burst_s * UNITS_PER_S
    for descriptor in FILTER.descriptors:
        assert [entry.key for entry in descriptor.entries] == ["class", "key"]
        assert descriptor.entries[1].value == ""


def test_a_closed_key_is_closed_in_every_class() -> None:
    for descriptor in FILTER.descriptors:
        assert descriptor.token_bucket is not None
        assert descriptor.token_bucket.max_tokens < cost_units(0.0) == COST_MAX


def test_what_matches_no_class_meets_a_closed_bucket() -> None:
    assert FILTER.token_bucket is not None
    assert (FILTER.token_bucket.max_tokens, FILTER.token_bucket.fill_interval.total_seconds()) == (1, 3600)
    assert FILTER.always_consume_default_token_bucket is False


def test_many_more_keys_fit_than_envoys_default_of_twenty() -> None:
    assert FILTER.max_dynamic_descriptors is not None
    assert FILTER.max_dynamic_descriptors >= 1_000_000


def test_the_bytes_never_change() -> None:
    assert codec.encode(local_rate_limit()) == codec.encode(FILTER)
