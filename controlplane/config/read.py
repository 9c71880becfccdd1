"""Files beside the configuration: API keys, key sets, everything a document only names.

A key's text lives as long as `read_key`: what leaves is its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

_KEY_BYTES_MAX = 4096
_JWKS_BYTES_MAX = 1024 * 1024
_PRIVATE_FIELDS = ("d", "p", "q", "dp", "dq", "qi", "k")

EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a file holds, or why it cannot be used."""

    text: str = ""
    fault: str = ""
    expected: str = ""


def read_key(path: Path) -> Content:
    """The SHA-256 (lower-case hex) of the one API key in `path`; blanks around it do not count."""
    raw, fault = _bytes(path, _KEY_BYTES_MAX)
    if fault:
        return Content(fault=fault, expected="a readable file with one API key")
    key = raw.strip()
    if not key:
        return Content(fault="the API key file is empty", expected="a file with one API key")
    if len(key.split()) > 1 or b"\0" in key:
        return Content(fault="the API key file holds more than one word", expected="a file with one API key")
    return Content(text=hashlib.sha256(key).hexdigest())


def read_jwks(path: Path) -> Content:
    """The text of a JWKS with public keys."""
    expected = 'a JSON file {"keys": [...]} with public keys'
    raw, fault = _bytes(path, _JWKS_BYTES_MAX)
    if fault:
        return Content(fault=fault, expected=expected)
    try:
        keys = json.loads(raw)["keys"]
        usable = bool(keys) and all(isinstance(key, dict) and key.get("kty") for key in keys)
    except (ValueError, TypeError, KeyError, RecursionError):
        usable = False
    if not usable:
        return Content(fault="not a JWKS with at least one key", expected=expected)
    if any(field in key for key in keys for field in _PRIVATE_FIELDS):
        return Content(fault="the JWKS holds a private or a symmetric key", expected=expected)
    return Content(text=raw.decode("utf-8", "replace").strip())


def is_readable(path: Path) -> bool:
    """True for a regular file that this process may read."""
    try:
        return path.is_file() and os.access(path, os.R_OK)
    except (OSError, ValueError):
        return False


def read_bytes(path: Path) -> tuple[bytes, str]:
    """The bytes of a document and "", or why there are none."""
    return _bytes(path, None)


def _bytes(path: Path, limit: int | None) -> tuple[bytes, str]:
    try:
        if not path.is_file():
            return b"", "there is no such file" if not path.exists() else "not a regular file"
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        return b"", f"the file cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}"
    if limit is not None and len(raw) > limit:
        return b"", f"the file has more than {limit} bytes"
    return raw, ""
