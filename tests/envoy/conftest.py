"""Tests against the real Envoy, fed by the real discovery service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import stub_model
from field import Field


@pytest.fixture
async def field_parts(envoy_path: Path, tmp_path: Path) -> AsyncIterator[Field]:
    """Nothing runs yet but the model server; `serve` starts the control plane."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(stub_model.serving())
        yield Field(envoy_path, tmp_path, stack, model)


@pytest.fixture
async def field(field_parts: Field) -> Field:
    """The control plane and the model server run; `start` adds an Envoy."""
    await field_parts.serve()
    return field_parts
