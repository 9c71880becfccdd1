"""Tests against the real Envoy, fed by the real discovery service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import stub_model
from field import Field


@pytest.fixture
async def field(envoy_path: Path, tmp_path: Path) -> AsyncIterator[Field]:
    """Nothing runs yet but the control plane and the model server; `start` adds an Envoy."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(stub_model.serving())
        made = Field(envoy_path, tmp_path, stack, model)
        await made.serve()
        yield made
