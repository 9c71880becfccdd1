"""Metered streams and prompts of any length pass in bounded memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import fake_quota
import pytest
from field import Field
from policies import decision, tenant

from controlplane.model.policy import Endpoint, PolicyService, Pool, Quota

pytestmark = pytest.mark.envoy

EVENT = b'data: {"choices":[{"delta":{"content":"t"}}],"usage":null}\n\n'
PIECES, EVENTS_EACH = 200, 2000
QUOTA = (Quota(model_version="m:r1", tokens=10**9, period="daily"),)


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A stream of 400,000 tokens, without usage until its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    await reader.readexactly(int(length.partition(b":")[2]))
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    for _ in range(PIECES):
        writer.write(EVENT * EVENTS_EACH)
        await writer.drain()
    writer.write(b': ping\n\ndata: {"choices":[],"usage":{"total_tokens":5}}\n\n')
    await writer.drain()
    writer.close()


async def test_a_long_stream_is_metered_in_bounded_memory(field: Field) -> None:
    server = await asyncio.start_server(_endless, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with fake_quota.serving() as quota, server:
        policy = field.policy(
            [tenant("acme", quotas=QUOTA)],
            pools=(Pool(model="m", version="r1", endpoints=(Endpoint(address="127.0.0.1", port=port),)),),
            policy_service=PolicyService(port=quota.port, timeout_s=2.0),
        )
        client = await field.start(policy, decision(policy, 1000.0))
        before_kb = _resident_kb(field.envoys[0].pid)
        answer = await client.send("acme")
        assert len(answer.body) > PIECES * EVENTS_EACH * len(EVENT)  # 24 MB
        assert await quota.settled() == [5]
        assert _resident_kb(field.envoys[0].pid) - before_kb < 15_000


async def test_a_long_prompt_is_metered_in_bounded_memory(field: Field) -> None:
    async with fake_quota.serving() as quota:
        policy = field.policy(
            [tenant("acme", quotas=QUOTA)], policy_service=PolicyService(port=quota.port, timeout_s=2.0)
        )
        client = await field.start(policy, decision(policy, 1000.0))
        before_kb = _resident_kb(field.envoys[0].pid)
        for number in range(1, 9):
            assert (await client.send("acme", pad="p" * 5_000_000)).status == 200
            await quota.settled(number)
        assert quota.of("reserve")[0].tokens == pytest.approx(1_250_000, rel=0.01)
        # Held, and parsed for its model; then gone.
        assert _resident_kb(field.envoys[0].pid) - before_kb < 60_000


def _resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
