"""Simulated pods on real sockets, met with the official OpenAI SDK and a plain HTTP client."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.sim import control
from controlplane.sim.dcgm_text import BLANK, Layout
from controlplane.sim.physics import Physics
from controlplane.sim.pods import Fleet, FleetSpec, Pod, PodSpec, running_pods, serving

FAST = Physics(step_base_s=0.002, step_per_seq_s=0.0, prefill_tokens_per_s=1e6, max_num_seqs=4, kv_blocks=512)
SPEC = FleetSpec(
    pods=(
        PodSpec(name="chat-v1-0", model="chat", version="v1", namespace="llm", physics=FAST),
        PodSpec(name="chat-v2-0", model="chat", version="v2", namespace="llm", physics=FAST),
    ),
    idle_gpus=1,
)
MESSAGES: Any = [{"role": "user", "content": "hello there, how is the tide today?"}]


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with serving(SPEC) as fleet:
        yield fleet


@pytest.fixture
def pod(fleet: Fleet) -> Pod:
    return fleet.pods[0]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def sdk(pod: Pod) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{pod.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


async def _values(http: aiohttp.ClientSession, url: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples of an exposition by name."""
    async with http.get(url) as response:
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(await response.text()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found


async def _until(http: aiohttp.ClientSession, pod: Pod, *, within_s: float = 2.0, **wanted: Any) -> None:
    """Wait for a state of the engine."""
    end_s = time.monotonic() + within_s
    while True:
        state = await control.fetch_state(http, pod)
        if state.items() >= wanted.items():
            return
        assert time.monotonic() < end_s, f"{state} never became {wanted}"
        await asyncio.sleep(0.005)


async def test_the_sdk_reads_a_json_answer(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=5)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9, 5)


async def test_the_sdk_reads_a_stream_with_usage(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="chat:v1", messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons == [None] * 5 + ["length"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


async def test_the_sdk_reads_plain_completions(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model="chat", prompt="hello", max_tokens=3)
    assert answer.choices[0].text
    stream = await sdk.completions.create(model="chat", prompt="hello", max_tokens=3, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == answer.choices[0].text


async def test_json_and_stream_say_the_same(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=20)
    stream = await sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=20, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == whole.choices[0].message.content


async def test_an_unknown_model_and_a_long_prompt_raise_the_sdks_errors(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await sdk.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await sdk.completions.create(model="chat", prompt="x" * 40_000)


async def test_a_pod_names_its_models(sdk: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == ["chat", "chat:v1"]


async def test_the_metrics_count_what_was_served(
    sdk: openai.AsyncOpenAI, http: aiohttp.ClientSession, pod: Pod
) -> None:
    await asyncio.gather(
        *(sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=4) for _ in range(10))
    )
    values = await _values(http, f"{pod.url}/metrics")
    assert values["vllm:generation_tokens_total"] == [({"model_name": "chat", "engine": "0"}, 40.0)]
    assert values["vllm:prompt_tokens_total"][0][1] == 90.0
    assert values["vllm:e2e_request_latency_seconds_count"][0][1] == 10.0
    assert values["vllm:time_to_first_token_seconds_count"][0][1] == 10.0
    assert values["vllm:inter_token_latency_seconds_count"][0][1] == 30.0


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
async def test_a_client_that_leaves_frees_slot_and_cache(
    http: aiohttp.ClientSession, pod: Pod, stream: bool
) -> None:
    await control.set_faults(http, pod, latency_factor=25.0)  # 50 ms a step
    body = {"model": "chat", "messages": MESSAGES, "max_tokens": 60, "stream": stream}
    async with aiohttp.ClientSession() as leaving:
        request = asyncio.create_task(leaving.post(f"{pod.url}/v1/chat/completions", json=body))
        await _until(http, pod, running=1)
    request.cancel()
    await _until(http, pod, within_s=0.5, running=0, waiting=0, kv_usage_ratio=0.0)
    values = await _values(http, f"{pod.url}/metrics")
    reasons = {labels["finished_reason"]: value for labels, value in values["vllm:request_success_total"]}
    assert reasons["abort"] == 1.0


async def test_requests_beyond_the_slots_wait(http: aiohttp.ClientSession, pod: Pod) -> None:
    await control.set_faults(http, pod, hang=True)
    body = {"model": "chat", "messages": MESSAGES, "max_tokens": 2}
    requests = [asyncio.create_task(http.post(f"{pod.url}/v1/chat/completions", json=body)) for _ in range(6)]
    await _until(http, pod, waiting=6)
    await control.set_faults(http, pod, hang=False, latency_factor=50.0)
    await _until(http, pod, running=4, waiting=2)
    values = await _values(http, f"{pod.url}/metrics")
    assert values["vllm:num_requests_running"][0][1] == 4.0
    assert values["vllm:num_requests_waiting"][0][1] == 2.0
    assert [response.status for response in await asyncio.gather(*requests)] == [200] * 6


async def _status(http: aiohttp.ClientSession, pod: Pod) -> int:
    body = {"model": "chat", "messages": MESSAGES, "max_tokens": 1}
    async with http.post(f"{pod.url}/v1/chat/completions", json=body) as response:
        await response.read()
        return response.status


async def test_failures_are_exactly_as_frequent_as_asked(http: aiohttp.ClientSession, pod: Pod) -> None:
    await control.set_faults(http, pod, failure_ratio=0.25, failure_status=502)
    assert [await _status(http, pod) for _ in range(8)] == [200, 200, 200, 502] * 2
    await control.reset(http, pod)
    assert [await _status(http, pod) for _ in range(4)] == [200] * 4


async def test_out_of_memory_fails_every_request_and_shows_a_full_cache(
    http: aiohttp.ClientSession, pod: Pod
) -> None:
    await control.set_faults(http, pod, kv_oom=True)
    assert await _status(http, pod) == 500
    assert (await _values(http, f"{pod.url}/metrics"))["vllm:kv_cache_usage_perc"][0][1] == 1.0


async def test_a_cut_stream_breaks_off_after_the_first_token(http: aiohttp.ClientSession, pod: Pod) -> None:
    await control.set_faults(http, pod, cut_ratio=1.0)
    body = {"model": "chat", "messages": MESSAGES, "max_tokens": 10, "stream": True}
    async with http.post(f"{pod.url}/v1/chat/completions", json=body) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    await _until(http, pod, running=0)


async def test_metrics_can_fail_vanish_and_change_their_names(http: aiohttp.ClientSession, pod: Pod) -> None:
    old_name = "vllm:gpu_cache_usage_perc"
    await control.set_faults(
        http,
        pod,
        hide_metrics=["vllm:num_requests_waiting", "DCGM_FI_DEV_GPU_UTIL"],
        rename_metrics={"vllm:kv_cache_usage_perc": old_name},
    )
    names = set(await _values(http, f"{pod.url}/metrics"))
    assert old_name in names
    assert not {"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} & names
    assert "DCGM_FI_DEV_GPU_UTIL" not in await _values(http, f"{pod.url}/dcgm/metrics")
    await control.set_faults(http, pod, metrics_status=500)
    async with http.get(f"{pod.url}/metrics") as response:
        assert response.status == 500


async def test_a_misspelt_fault_is_refused(http: aiohttp.ClientSession, pod: Pod) -> None:
    with pytest.raises(ValueError, match=r"unknown: failure_rate; known: .*failure_ratio"):
        await control.set_faults(http, pod, failure_rate=0.5)


GPU_UTIL = "DCGM_FI_DEV_GPU_UTIL"


async def test_the_gpu_counter_follows_its_script(http: aiohttp.ClientSession, fleet: Fleet) -> None:
    first, second = fleet.pods
    await control.set_gpu(http, first, util_percent=95)
    await control.set_gpu(http, second, blank=True)
    assert fleet.dcgm_url is not None
    rows = {labels["pod"]: value for labels, value in (await _values(http, fleet.dcgm_url))[GPU_UTIL]}
    assert rows == {"chat-v1-0": 95.0, "chat-v2-0": BLANK, "": 0.0}
    ((labels, value),) = (await _values(http, f"{first.url}/dcgm/metrics"))[GPU_UTIL]
    assert (labels["pod"], labels["namespace"], value) == ("chat-v1-0", "llm", 95.0)
    await control.set_gpu(http, first, absent=True)
    rows = {labels["pod"]: value for labels, value in (await _values(http, fleet.dcgm_url))[GPU_UTIL]}
    assert set(rows) == {"chat-v2-0", ""}


async def test_a_nan_can_be_scripted(http: aiohttp.ClientSession, pod: Pod) -> None:
    await control.set_gpu(http, pod, util_percent=math.nan, sm_active_ratio=0.5)
    values = await _values(http, f"{pod.url}/dcgm/metrics")
    assert math.isnan(values[GPU_UTIL][0][1])
    assert values["DCGM_FI_PROF_SM_ACTIVE"][0][1] == 0.5


async def test_without_a_script_the_counter_shows_the_work(
    sdk: openai.AsyncOpenAI, http: aiohttp.ClientSession, pod: Pod
) -> None:
    assert (await _values(http, f"{pod.url}/dcgm/metrics"))[GPU_UTIL][0][1] == 0.0
    await control.set_faults(http, pod, latency_factor=20.0)
    await sdk.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=10)
    assert (await _values(http, f"{pod.url}/dcgm/metrics"))[GPU_UTIL][0][1] >= 30.0


async def test_the_exported_pod_layout_is_what_prometheus_keeps(http: aiohttp.ClientSession) -> None:
    spec = FleetSpec(pods=SPEC.pods[:1], dcgm_layout=Layout.EXPORTED_POD)
    async with serving(spec) as fleet:
        assert fleet.dcgm_url is not None
        for url in (fleet.dcgm_url, f"{fleet.pods[0].url}/dcgm/metrics"):
            ((labels, _),) = (await _values(http, url))[GPU_UTIL]
            assert (labels["exported_pod"], labels["exported_namespace"]) == ("chat-v1-0", "llm")
            assert labels["pod"] != "chat-v1-0"


async def test_trusted_headers_that_arrive_are_counted(http: aiohttp.ClientSession, pod: Pod) -> None:
    headers = {"X-Tidegate-Tenant": "acme", "Resilience.Status": "closed", "authorization": "Bearer secret"}
    body = {"model": "chat", "messages": MESSAGES, "max_tokens": 1}
    for _ in range(3):
        async with http.post(f"{pod.url}/v1/chat/completions", json=body, headers=headers):
            pass
    seen = await control.fetch_seen(http, pod)
    assert seen["requests"] == 3
    assert seen["headers"]["x-tidegate-tenant"]["values"] == {"acme": 3}
    assert seen["headers"]["resilience.status"]["values"] == {"closed": 3}
    assert "secret" not in str(seen)
    await control.reset(http, pod)
    assert (await control.fetch_seen(http, pod))["requests"] == 0


async def test_a_restarted_pod_counts_from_zero_and_warms_up_again(http: aiohttp.ClientSession) -> None:
    physics = Physics(warmup_s=10.0, step_base_s=0.01)
    spec = FleetSpec(pods=(PodSpec(name="p", model="chat", version="v1", physics=physics),), time_scale=50.0)
    async with serving(spec) as fleet:
        pod = fleet.pods[0]
        assert await _status(http, pod) == 503
        async with http.get(f"{pod.url}/health") as response:
            assert response.status == 503
        await _until(http, pod, ready=True)
        assert await _status(http, pod) == 200
        await control.restart(http, pod)
        assert await _status(http, pod) == 503
        values = await _values(http, f"{pod.url}/metrics")
        assert values["vllm:generation_tokens_total"][0][1] == 0.0


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
async def test_a_restart_loses_the_requests_in_flight(
    http: aiohttp.ClientSession, pod: Pod, stream: bool
) -> None:
    await control.set_faults(http, pod, hang=True)
    body = {"model": "chat", "messages": MESSAGES, "max_tokens": 10, "stream": stream}
    request = asyncio.create_task(http.post(f"{pod.url}/v1/chat/completions", json=body))
    await _until(http, pod, waiting=1)
    await control.restart(http, pod)
    response = await request
    if stream:
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    else:
        assert response.status == 500


async def test_a_fleet_of_its_own_process_serves_and_ends_cleanly(http: aiohttp.ClientSession) -> None:
    async with running_pods(SPEC) as fleet:
        assert [await _status(http, pod) for pod in fleet.pods] == [200, 200]
        url = fleet.pods[0].url
    with pytest.raises(aiohttp.ClientConnectorError):
        await http.get(f"{url}/health")


async def test_a_fleet_that_cannot_start_says_so() -> None:
    spec = FleetSpec(pods=(PodSpec(name="p", model="m", version="v1"),), host="192.0.2.1")
    with pytest.raises(RuntimeError, match=r"did not start \(exit status 1\)"):
        async with running_pods(spec):
            pass


async def test_an_orphaned_fleet_ends(http: aiohttp.ClientSession) -> None:
    """Whatever becomes of the parent, its end of the pipe closes."""
    read, write = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controlplane.sim.pods", "--spec", "-"),
        stdin=read,
        stdout=asyncio.subprocess.PIPE,
    )
    os.close(read)
    os.write(write, b'{"pods": [{"name": "p", "model": "m", "version": "v1"}]}\n')
    assert process.stdout is not None
    assert b'"port"' in await asyncio.wait_for(process.stdout.readline(), 20.0)
    os.close(write)
    assert await asyncio.wait_for(process.wait(), 5.0) == 0
