"""The digest that API keys are looked up by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa import luajit21

from controlplane.assets import read_asset


def _sha256() -> Callable[[str], str]:
    digest: Callable[[str], str] = luajit21.LuaRuntime(encoding="latin-1").execute(
        read_asset("lua/envoy/sha256.lua")
    )
    return digest


SHA256 = _sha256()


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
    ],
    ids=["empty", "one block", "two blocks"],
)
def test_the_standards_own_vectors(text: str, digest: str) -> None:
    assert SHA256(text) == digest


@pytest.mark.parametrize("length", range(201))
def test_every_length_around_the_block_borders(length: int) -> None:
    text = bytes((7 * index + length) % 256 for index in range(length))
    assert SHA256(text.decode("latin-1")) == hashlib.sha256(text).hexdigest()


@given(st.binary(max_size=1000))
def test_any_bytes(text: bytes) -> None:
    assert SHA256(text.decode("latin-1")) == hashlib.sha256(text).hexdigest()
