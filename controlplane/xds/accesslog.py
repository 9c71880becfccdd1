"""One JSON line for each request, on standard output: chosen fields, no credentials, query or body."""

from __future__ import annotations

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.core.v3 import SubstitutionFormatString
from envoy_data_plane.envoy.extensions.access_loggers.stream.v3 import StdoutAccessLog
from envoy_data_plane.google.protobuf import Struct

from controlplane.xds import codec
from controlplane.xds.names import METADATA

# The tenant is the verified one: a script's metadata, not a header a client could have sent.
FIELDS: dict[str, str] = {
    "bytes_received": "%BYTES_RECEIVED%",
    "bytes_sent": "%BYTES_SENT%",
    "duration_ms": "%DURATION%",
    "first_byte_ms": "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:ms)%",
    "flags": "%RESPONSE_FLAGS%",
    "flags_detail": "%RESPONSE_CODE_DETAILS%",
    "grpc_status": "%GRPC_STATUS_NUMBER%",
    "method": "%REQ(:METHOD)%",
    "model_version": f"%DYNAMIC_METADATA({METADATA}:model_version)%",
    "outcome": f"%DYNAMIC_METADATA({METADATA}:outcome)%",
    "path": "%PATH(NQ)%",
    "protocol": "%PROTOCOL%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "route": "%ROUTE_NAME%",
    "started": "%START_TIME%",
    "status": "%RESPONSE_CODE%",
    "tokens": f"%DYNAMIC_METADATA({METADATA}:settle)%",
    "tokens_reserved": f"%DYNAMIC_METADATA({METADATA}:reserve)%",
    "tenant": f"%DYNAMIC_METADATA({METADATA}:tenant)%",
    "upstream": "%UPSTREAM_HOST%",
}


def access_log() -> AccessLog:
    """The access log of the listener; a part of it, so it never changes at run time."""
    return AccessLog(
        name="envoy.access_loggers.stdout",
        typed_config=codec.pack(
            StdoutAccessLog(log_format=SubstitutionFormatString(json_format=Struct.from_dict(FIELDS)))
        ),
    )
