"""The field types of both documents. Text is text and a number is a number: nothing is converted."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A mapping of the configuration. Fields that are not known are errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


def refusal(message: str, expected: str) -> PydanticCustomError:
    """An error with our own words; `expected` says what would be right."""
    return PydanticCustomError("tidegate", "{message}", {"message": message, "expected": expected})


def _matching(pattern: str, kind: str, expected: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if compiled.fullmatch(value):
            return value
        raise refusal(f"not a usable {kind}", expected)

    return AfterValidator(check)


def _name(pattern: str, kind: str, expected: str) -> Any:
    return Annotated[
        str, _matching(pattern, kind, expected), Field(json_schema_extra={"pattern": f"^{pattern}$"})
    ]


_TENANT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_MODEL = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"
_VERSION = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_START = "starting with a letter or digit"

TenantId = _name(_TENANT, "tenant id", f"1 to 128 of A-Z a-z 0-9 . _ -, {_START}")
ModelName = _name(_MODEL, "model name", f"1 to 128 of A-Z a-z 0-9 . _ / -, {_START}")
VersionName = _name(_VERSION, "version", f"1 to 64 of A-Z a-z 0-9 . _ -, {_START}")
ShortName = _name(_VERSION, "name", f"1 to 64 of A-Z a-z 0-9 . _ -, {_START}")
Scope = _name(
    f"{_MODEL}(:{_VERSION})?",
    "model or model version",
    "`model` or `model:version`, in quotes when it has a colon",
)
HeaderName = _name(r"[a-z0-9][a-z0-9-]{0,63}", "header name", "lower-case letters, digits and -")
Sha256 = _name(r"[0-9A-Fa-f]{64}", "SHA-256 digest", "64 hexadecimal digits: printf %s KEY | sha256sum")
Url = _name(r"https?://[^\s/]+[^\s]*", "URL", "http://host... or https://host...")
Origin = _name(
    r"\*|https?://[^\s/*]+", "origin", "`*`, or scheme and host without a path: https://chat.example.com"
)
PlainText = _name(
    r"[^\x00-\x1f\x7f]{1,1024}", "text", "1 to 1024 characters, none of them a control character"
)
FilePath = _name(r"[^\x00-\x1f\x7f]{1,1024}", "file name", "a path, relative to the configuration directory")

Port = Annotated[int, Field(ge=1, le=65535)]
AnyPort = Annotated[int, Field(ge=0, le=65535)]  # 0: any free port
Count = Annotated[int, Field(ge=1, le=10_000)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Ratio = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]


def is_address(text: str) -> bool:
    """True for an IPv4 or IPv6 address (without brackets)."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


_HOST = re.compile(
    r"(?=.{1,253}\Z)([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)(\.[A-Za-z0-9_-]{1,63})*\.?"
)


def _host(value: str) -> str:
    looks_numeric = bool(re.fullmatch(r"[0-9.]+", value))
    if is_address(value) or (not looks_numeric and _HOST.fullmatch(value)):
        return value
    raise refusal("not an address or a host name", "an IP address or a DNS name, without a port")


def _pattern(value: str) -> str:
    body = value.removesuffix("/*") if value != "/*" else ""
    bad = "*" in body or "//" in value or not re.fullmatch(r"(/[A-Za-z0-9._~!$&'()+,;=:@%-]*)*", body)
    if bad or not value.startswith("/") or (body != "/" and body.endswith("/")) or "/.." in body:
        raise refusal(
            "not a path pattern", "a path such as `/v1/embeddings`, or a prefix such as `/v1/models/*`"
        )
    return value


Host = Annotated[str, AfterValidator(_host)]
PathPattern = Annotated[str, AfterValidator(_pattern)]
