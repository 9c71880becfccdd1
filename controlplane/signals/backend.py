"""A PromQL query -> rows, through prometheus-api-client, with everything that client leaves open.

It has no time-out of its own, retries three times, sends POST parameters in the URL, and drops `warnings`,
so that a partial answer looks whole. All of that is settled in the `requests` session it is given.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from controlplane.model.policy import PrometheusPolicy

ANSWER_MAX_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_SHOWN = 200


class SignalError(Exception):
    """The backend gave no whole answer; the text says why, without the query."""


class PartialAnswer(SignalError):
    """The backend answered, and said itself that something is missing."""


class Backend:
    """One Prometheus-compatible server. Blocking: call it in a thread."""

    def __init__(self, policy: PrometheusPolicy, *, timer: Callable[[], float] = time.monotonic) -> None:
        """`timer` measures the deadline of an answer (seconds)."""
        self._timeout_s = policy.timeout_s
        self._timer = timer
        self._session = _Session(policy, timer)
        self._client = PrometheusConnect(
            url=policy.url.rstrip("/"),
            headers=dict(policy.headers) or None,
            retry=Retry(total=0, redirect=3),
            auth=_FileAuth(policy),
            session=self._session,
            timeout=policy.timeout_s,
            method=policy.method,
        )

    def deadline(self) -> float:
        """The end of a request that starts now, on the timer."""
        return self._timer() + self._timeout_s

    def query(self, promql: str, deadline: float) -> list[dict[str, Any]]:
        """The rows of an instant query; SignalError when there is no whole answer before `deadline`."""
        left_s = deadline - self._timer()
        if left_s <= 0:
            raise SignalError(f"no answer within {self._timeout_s:g} s")
        self._session.deadline = deadline
        try:
            rows: list[dict[str, Any]] = self._client.custom_query(promql, timeout=left_s)
        except (requests.Timeout, ReadTimeoutError) as error:
            raise SignalError(f"no answer within {self._timeout_s:g} s") from error
        except requests.JSONDecodeError as error:
            raise SignalError(f"unusable answer: {_short(str(error))}") from error
        except requests.RequestException as error:
            raise SignalError(_short(_cause(error))) from error
        except PrometheusApiClientException as error:
            raise SignalError(_short(str(error))) from error
        except (HTTPError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise SignalError(_short(f"unusable answer: {type(error).__name__}: {error}")) from error
        return rows

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


class _Session(requests.Session):
    """Puts POST parameters into the body, bounds time and size of the answer, refuses partial ones."""

    def __init__(self, policy: PrometheusPolicy, timer: Callable[[], float]) -> None:
        super().__init__()
        self.deadline = 0.0
        self._timer = timer
        self._extra = dict(policy.query_params)
        self.verify = policy.ca_file or True
        if policy.cert_file:
            self.cert = (policy.cert_file, policy.key_file) if policy.key_file else policy.cert_file

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        query = kwargs.pop("params", None) or {}
        if method == "POST":
            kwargs.update(params=self._extra, data=query)
        else:
            kwargs.update(params={**self._extra, **query})
        response = super().request(method, url, *args, **{**kwargs, "stream": True})
        try:
            body = self._read(response)
        finally:
            response.close()
        response._content = body
        if response.status_code == 200 and b'"warnings"' in body:
            _refuse_partial(response.json())
        return response

    def _read(self, response: requests.Response) -> bytes:
        """The whole body; a server that drips is given up at the deadline."""
        body = bytearray()
        while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
            body += chunk
            if len(body) > ANSWER_MAX_BYTES:
                raise SignalError(f"answer above {ANSWER_MAX_BYTES} bytes")
            if self._timer() > self.deadline:
                raise requests.Timeout("the answer came too slowly")
        return bytes(body)


class _FileAuth(AuthBase):
    """Basic or bearer authentication whose secret is read from its file for every request: it rotates."""

    def __init__(self, policy: PrometheusPolicy) -> None:
        self._policy = policy

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        policy = self._policy
        if policy.bearer_token_file:
            r.headers["Authorization"] = f"Bearer {_secret(policy.bearer_token_file)}"
        elif policy.basic_user is not None:
            password = _secret(policy.basic_password_file) if policy.basic_password_file else ""
            pair = b64encode(f"{policy.basic_user}:{password}".encode()).decode()
            r.headers["Authorization"] = f"Basic {pair}"
        return r


def _secret(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SignalError(f"{path}: cannot be read: {type(error).__name__}") from error


def _refuse_partial(answer: Any) -> None:
    """Raise PartialAnswer for real warnings. Hints about a query (`PromQL info`) say nothing about its
    result.
    """
    given = answer.get("warnings") if isinstance(answer, dict) else None
    warnings = [str(each) for each in given or () if not str(each).startswith("PromQL info")]
    if warnings:
        raise PartialAnswer(_short(f"partial answer: {'; '.join(warnings)}"))


def _cause(error: requests.RequestException) -> str:
    """The innermost reason; requests wraps it several times, with object addresses in between."""
    inner: BaseException = error
    while inner.args and isinstance(inner.args[0], BaseException):
        inner = inner.args[0]
    reason = getattr(inner, "reason", None)
    text = str(reason or inner)
    return text.rpartition("object at 0x")[2].partition(">: ")[2] or text


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
