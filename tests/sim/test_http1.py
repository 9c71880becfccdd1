"""A response is understood wherever its bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.sim.http1 import Malformed, Response

PLAIN = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n10;ext=1\r\n0123456789abcde\n\r\n0\r\ntrailer: x\r\n\r\n"
)
EMPTY = b"HTTP/1.1 204 No Content\r\nserver: x\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


def _fed(*pieces: bytes) -> Response:
    response = Response()
    for piece in pieces:
        response.feed(piece)
    return response


@pytest.mark.parametrize(
    ("message", "status", "body_bytes"),
    [(PLAIN, 429, 5), (CHUNKED, 200, 21), (EMPTY, 204, 0), (INTERIM, 429, 5)],
    ids=["length", "chunked", "no body", "interim first"],
)
@given(cuts=st.sets(st.integers(1, 200)))
def test_cuts_change_nothing(message: bytes, status: int, body_bytes: int, cuts: set[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(message)), len(message)]
    response = Response()
    for start, end in pairwise(edges):
        assert not response.complete
        response.feed(message[start:end])
    assert (response.status, response.body_bytes, response.complete) == (status, body_bytes, True)
    assert response.reusable


def test_the_first_bytes_of_the_body_show_before_its_end() -> None:
    response = _fed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    assert (response.status, response.body_bytes) == (200, 0)
    response.feed(b"3\r\nabc\r\n")
    assert response.body_bytes == 3
    assert not response.complete


def test_header_fields_are_found_in_any_case() -> None:
    response = _fed(PLAIN)
    assert response.header("Retry-After") == "3"
    assert response.header("retry") is None


def test_a_body_without_length_ends_with_the_connection() -> None:
    response = _fed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    before = response.complete
    response.end_of_stream()
    assert (before, response.complete, response.reusable) == (False, True, False)


@pytest.mark.parametrize(
    "message", [PLAIN[:-1], CHUNKED[:-3], b"HTTP/1.1 200"], ids=["plain", "chunked", "head"]
)
def test_a_broken_off_response_stays_incomplete(message: bytes) -> None:
    response = _fed(message)
    response.end_of_stream()
    assert not response.complete


def test_a_closing_server_is_believed() -> None:
    message = b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n"
    response = _fed(message)
    assert response.complete
    assert not response.reusable


@pytest.mark.parametrize(
    "message", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n"]
)
def test_what_is_no_http_is_malformed(message: bytes) -> None:
    with pytest.raises(Malformed):
        _fed(message)
