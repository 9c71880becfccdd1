"""A backend in memory that answers what no backend should."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from controlplane.model.policy import Endpoint, Pool, PrometheusPolicy
from controlplane.signals.backend import Backend
from controlplane.signals.catalogue import Catalogue
from controlplane.signals.prometheus import PrometheusSource

POLICY = PrometheusPolicy(url="http://prometheus:9090")
POOL = Pool(model="llama", version="v1", endpoints=(Endpoint(address="10.0.0.1", port=8000),))
NOW_S = 1_000_000.0


class Odd(Backend):
    """Raises what it is told to, then answers."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__(POLICY)
        self._errors = list(errors)

    def query(self, promql: str, deadline: float) -> list[dict[str, Any]]:
        if self._errors:
            raise self._errors.pop(0)
        labels = {"__name__": "vllm:num_requests_running", "model_name": "llama", "version": "v1"}
        return [{"metric": labels, "values": [[NOW_S - 1, "3"]]}]


async def test_an_error_nobody_thought_of_is_over_with_the_tick_it_happened_in(catalogue: Catalogue) -> None:
    source = PrometheusSource(
        [POOL], POLICY, catalogue, clock=lambda: NOW_S, backend=Odd(RuntimeError("odd"))
    )
    try:
        with pytest.raises(RuntimeError):
            await source.read(NOW_S)
        assert (await source.read(NOW_S))["llama:v1"]["running_requests"].value == 3
    finally:
        await source.close()


ENDS_WHILE_ASKING = """
import asyncio, time
from controlplane.signals.prometheus import _in_thread

async def main():
    asking = asyncio.create_task(_in_thread(lambda: time.sleep(60)))
    await asyncio.sleep(0.1)
    asking.cancel()

asyncio.run(main())
"""


def test_a_backend_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS_WHILE_ASKING], timeout=30, check=False)
    assert ended.returncode == 0
