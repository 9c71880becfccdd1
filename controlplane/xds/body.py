"""Which JSON fields of a request scripts may see -> the json_to_metadata filter, a constant.

It holds the request until its body is whole, so it runs on routes that find the model in the body only. A
body that is not JSON (or another content type) leaves `invalid`, one without a field leaves nothing.
"""

from __future__ import annotations

from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata.v3 import (
    JsonToMetadata,
    JsonToMetadataKeyValuePair,
    JsonToMetadataMatchRules,
    JsonToMetadataRule,
    JsonToMetadataSelector,
)
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher
from envoy_data_plane.google.protobuf import Value

from controlplane.xds.names import BODY_METADATA

FIELDS: tuple[str, ...] = (
    "model",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
)
_JSON_TYPES = r"(?i)application/([^;]+\+)?json\s*(;.*)?"  # many clients name a charset


def json_to_metadata() -> JsonToMetadata:
    """Copy `FIELDS` of a JSON request body to dynamic metadata."""
    return JsonToMetadata(
        request_rules=JsonToMetadataMatchRules(
            rules=[_rule(name) for name in FIELDS],
            allow_content_types_regex=RegexMatcher(regex=_JSON_TYPES),
        )
    )


def _rule(name: str) -> JsonToMetadataRule:
    invalid = JsonToMetadataKeyValuePair(
        metadata_namespace=BODY_METADATA, key="invalid", value=Value(bool_value=True)
    )
    return JsonToMetadataRule(
        selectors=[JsonToMetadataSelector(key=name)],
        on_present=JsonToMetadataKeyValuePair(metadata_namespace=BODY_METADATA, key=name),
        on_error=invalid if name == FIELDS[0] else None,
    )
