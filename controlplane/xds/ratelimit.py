"""The burst ladder -> the local_ratelimit filter: a constant, because any change of it refills every bucket.

Buckets are filled in universal cost units (UNITS_PER_S per second), one wildcard descriptor for each burst
class; Envoy makes one bucket for each distinct key it sees. What adapts is the price: the limits script
writes class, key and cost of every request into dynamic metadata, and a key of r requests/s pays
UNITS_PER_S / r. So rates move while buckets stay, tenants come without a new filter, and nothing is ever
given away by a change.

The default bucket is closed: a request whose price or class Envoy cannot read must not pass for free.
"""

from __future__ import annotations

from datetime import timedelta

from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    RuntimeFractionalPercent,
)
from envoy_data_plane.envoy.config.route.v3 import (
    RateLimit,
    RateLimitAction,
    RateLimitActionMetaData,
    RateLimitActionMetaDataSource,
    RateLimitHitsAddend,
)
from envoy_data_plane.envoy.extensions.common.ratelimit.v3 import (
    LocalClusterRateLimit,
    LocalRateLimitDescriptor,
    RateLimitDescriptorEntry,
    XRateLimitHeadersRfcVersion,
)
from envoy_data_plane.envoy.extensions.filters.http.local_ratelimit.v3 import LocalRateLimit
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import (
    FractionalPercent,
    FractionalPercentDenominatorType,
    HttpStatus,
    StatusCode,
    TokenBucket,
)

from controlplane.model.ladder import COST_MAX, LADDER_S, UNITS_PER_S, class_name
from controlplane.xds.names import (
    LIMITED_HEADER,
    METADATA,
    RUNTIME_ENFORCED,
    SLOTS,
    WOULD_LIMIT_HEADER,
)

_KEYS_MAX = 1_000_000  # a key beyond this would evict another, which comes back full; 0.5 kB each, when seen
_CLOSED = TokenBucket(max_tokens=1, tokens_per_fill=1, fill_interval=timedelta(hours=1))


def local_rate_limit() -> LocalRateLimit:
    """The one filter that refuses; it takes no input because nothing may ever change it."""
    return LocalRateLimit(
        stat_prefix="tidegate",
        status=HttpStatus(code=StatusCode.TooManyRequests),
        token_bucket=_CLOSED,
        filter_enabled=RuntimeFractionalPercent(default_value=_percent(100)),
        filter_enforced=RuntimeFractionalPercent(runtime_key=RUNTIME_ENFORCED, default_value=_percent(100)),
        request_headers_to_add_when_not_enforced=[_header(WOULD_LIMIT_HEADER)],
        response_headers_to_add=[_header(LIMITED_HEADER)],
        rate_limits=[_slot(number) for number in SLOTS],
        descriptors=[_descriptor(burst_s) for burst_s in LADDER_S],
        max_dynamic_descriptors=_KEYS_MAX,
        always_consume_default_token_bucket=False,
        local_cluster_rate_limit=LocalClusterRateLimit(),
        rate_limited_as_resource_exhausted=True,
        # In cost units, for the limits script alone: it computes Retry-After from them and takes them off.
        enable_x_ratelimit_headers=XRateLimitHeadersRfcVersion.DRAFT_VERSION_03,
    )


def _descriptor(burst_s: float) -> LocalRateLimitDescriptor:
    """A bucket for each key of this class: filled at UNITS_PER_S, `burst_s` deep.

    The deepest class ends just below COST_MAX, so that a closed key (which pays COST_MAX) is closed there
    too.
    """
    return LocalRateLimitDescriptor(
        entries=[
            RateLimitDescriptorEntry(key="class", value=class_name(burst_s)),
            RateLimitDescriptorEntry(key="key"),  # no value: any
        ],
        token_bucket=TokenBucket(
            max_tokens=min(round(UNITS_PER_S * burst_s), COST_MAX - 1),
            tokens_per_fill=UNITS_PER_S,
            fill_interval=timedelta(seconds=1),
        ),
    )


def _slot(number: str) -> RateLimit:
    """One limit of a request. Absent metadata skips the slot; the first refusal ends the evaluation."""
    return RateLimit(
        actions=[from_metadata("class", f"c{number}"), from_metadata("key", f"k{number}")],
        hits_addend=RateLimitHitsAddend(format=f"%DYNAMIC_METADATA({METADATA}:u{number})%"),
    )


def from_metadata(descriptor_key: str, name: str) -> RateLimitAction:
    """A descriptor entry with the value of `METADATA:name`; without one the whole descriptor is skipped."""
    return RateLimitAction(
        metadata=RateLimitActionMetaData(
            descriptor_key=descriptor_key,
            metadata_key=MetadataKey(key=METADATA, path=[MetadataKeyPathSegment(key=name)]),
            source=RateLimitActionMetaDataSource.DYNAMIC,
        )
    )


def _percent(numerator: int) -> FractionalPercent:
    return FractionalPercent(numerator=numerator, denominator=FractionalPercentDenominatorType.HUNDRED)


def _header(name: str) -> HeaderValueOption:
    return HeaderValueOption(header=HeaderValue(key=name, value="1"))
