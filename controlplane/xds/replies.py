"""What a client reads when Envoy itself answers: fixed-size, OpenAI-shaped JSON with an integer Retry-After.

Scripts write their own bodies (401, 404 of a model, 503 of a gateway without limits); here are the answers no
script sees coming. Each rule asks for a response flag, so that it never replaces a script's body, nor a model
server's. gRPC clients get the same words as their status message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    AndFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    HeaderFilter,
    MetadataFilter,
    ResponseFlagFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RuntimeUInt32,
    SubstitutionFormatString,
)
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    LocalReplyConfig,
    ResponseMapper,
)
from envoy_data_plane.envoy.type.matcher.v3 import (
    MetadataMatcher,
    MetadataMatcherPathSegment,
    StringMatcher,
    ValueMatcher,
    ValueMatcherNullMatch,
)

from controlplane.xds.names import METADATA


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer of our own. `flags` are Envoy's response flags, `status` the code it is sent with."""

    message: str
    kind: str  # error.type
    code: str  # error.code
    flags: tuple[str, ...] = ()
    status: int | None = None  # matched when there are no flags
    retry_after_s: int | None = None


REPLIES: tuple[Reply, ...] = (
    Reply(
        flags=("RL",),
        message="Rate limit reached. Try again later.",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after_s=1,
    ),
    Reply(
        flags=("UO",),
        message="The model is at capacity. Try again later.",
        kind="server_error",
        code="overloaded",
        retry_after_s=1,
    ),
    Reply(
        status=504,  # by its status: a stream that lasted too long has no flag
        message="The model did not answer in time.",
        kind="server_error",
        code="timeout",
        retry_after_s=1,
    ),
    Reply(
        flags=("UH", "UF", "UC", "UR", "LH", "LR", "NC", "UPE", "URX"),
        message="The model is not available. Try again later.",
        kind="server_error",
        code="model_unavailable",
        retry_after_s=1,
    ),
    Reply(
        flags=("NR",),
        message="No such path.",
        kind="invalid_request_error",
        code="not_found",
    ),
    Reply(
        status=413,
        message="The request is larger than this gateway accepts.",
        kind="invalid_request_error",
        code="request_too_large",
    ),
)

NOT_FOUND = next(reply for reply in REPLIES if reply.code == "not_found")


def body(reply: Reply) -> str:
    """The JSON body of `reply`, the shape the OpenAI clients turn into their own errors."""
    error = {"message": reply.message, "type": reply.kind, "param": None, "code": reply.code}
    return json.dumps({"error": error}, separators=(",", ":"))


def local_replies(replies: Sequence[Reply] = REPLIES) -> LocalReplyConfig:
    """First match wins: for each reply the gRPC form, then the JSON form."""
    mappers: list[ResponseMapper] = []
    for reply in replies:
        mappers += [_mapper(reply, grpc=True), _mapper(reply, grpc=False)]
    return LocalReplyConfig(mappers=mappers)


def _mapper(reply: Reply, *, grpc: bool) -> ResponseMapper:
    text, content_type = (reply.message, "text/plain") if grpc else (body(reply), "application/json")
    match = _matches(reply)
    return ResponseMapper(
        filter=AccessLogFilter(and_filter=AndFilter(filters=[match, _is_grpc()])) if grpc else match,
        body_format_override=SubstitutionFormatString(
            text_format_source=DataSource(inline_string=text), content_type=content_type
        ),
        headers_to_add=[] if reply.retry_after_s is None else [_retry_after(reply.retry_after_s)],
    )


def _matches(reply: Reply) -> AccessLogFilter:
    if reply.flags == ("RL",):
        return AccessLogFilter(and_filter=AndFilter(filters=[_flagged(reply), _without_quota()]))
    if reply.flags:
        return _flagged(reply)
    exactly = RuntimeUInt32(default_value=reply.status or 0, runtime_key="tidegate.reply_status")
    return AccessLogFilter(
        status_code_filter=StatusCodeFilter(
            comparison=ComparisonFilter(op=ComparisonFilterOp.EQ, value=exactly)
        )
    )


def _flagged(reply: Reply) -> AccessLogFilter:
    return AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=list(reply.flags)))


def _without_quota() -> AccessLogFilter:
    """A refusal of the policy service brings its own body, and has the same flag as the local limit's.

    A request with a quota that the local limit refuses gets its body from the limits script.
    """
    never = MetadataMatcher(
        filter=METADATA,
        path=[MetadataMatcherPathSegment(key="reserve")],
        value=ValueMatcher(null_match=ValueMatcherNullMatch()),
    )
    return AccessLogFilter(metadata_filter=MetadataFilter(matcher=never, match_if_key_not_found=True))


def _is_grpc() -> AccessLogFilter:
    matcher = HeaderMatcher(name="content-type", string_match=StringMatcher(prefix="application/grpc"))
    return AccessLogFilter(header_filter=HeaderFilter(header=matcher))


def _retry_after(seconds: int) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key="retry-after", value=str(seconds)),
        append_action=HeaderValueOptionHeaderAppendAction.ADD_IF_ABSENT,
    )
