"""The admin API from a terminal: path and parameters in, JSON document out, or an error worth reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

DEFAULT_URL = "http://127.0.0.1:9090"
UNREACHABLE_EXIT_CODE = 2

Document = dict[str, Any]


class Unreachable(Exception):
    """No control plane answered at that address."""


class Refused(Exception):
    """The control plane answered, but not with what was asked for. `document` is its whole answer."""

    def __init__(self, status: int, message: str, document: Document) -> None:
        super().__init__(message)
        self.status = status
        self.document = document


class AdminClient:
    """One control plane's admin API."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 3.0) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._token = token
        self._timeout_s = timeout_s

    def get(self, path: str, **parameters: str | int | None) -> Document:
        """The document at `path`; raises Unreachable or Refused."""
        wanted = {name: value for name, value in parameters.items() if value not in (None, "")}
        return self._ask(Request(f"{self.url}{path}" + (f"?{urlencode(wanted)}" if wanted else "")))

    def post(self, path: str, body: Mapping[str, Any]) -> Document:
        """Flip a switch; raises Unreachable or Refused."""
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        return self._ask(Request(f"{self.url}{path}", data=json.dumps(body).encode(), headers=headers))

    def _ask(self, request: Request) -> Document:
        if request.type not in ("http", "https"):
            raise Unreachable(f"{self.url} is no http address")
        try:
            with urlopen(request, timeout=self._timeout_s) as response:
                return self._read(response.read())
        except HTTPError as error:
            document = self._read(error.read())
            told = document.get("error", {}).get("message") or f"HTTP {error.code}"
            raise Refused(error.code, told, document) from None
        except (URLError, OSError, ValueError) as error:
            raise Unreachable(f"no control plane answers at {self.url}: {_cause(error)}") from None

    def _read(self, body: bytes) -> Document:
        try:
            document = json.loads(body)
        except ValueError:
            raise Unreachable(f"{self.url} answers, but it is no Tidegate admin API") from None
        if not isinstance(document, dict):
            raise Unreachable(f"{self.url} answers, but it is no Tidegate admin API")
        return document


def _cause(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
