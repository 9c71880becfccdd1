"""One real Envoy and a policy of 10,000 keys: what the change of one key costs, from decision to ACK.

    python -m bench.fleet.envoy

Prints a JSON object; milliseconds. CPU is that of the whole control-plane process, and of Envoy.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.fleet.usage import cpu_s
from bench.translate import decision, policy
from controlplane.assets import read_asset
from controlplane.demo.processes import free_ports
from controlplane.envoy_binary import find_envoy
from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import Listener
from controlplane.model.resource import EXTENSION, Snapshot
from controlplane.pb import tidegate_discovery_pb2 as pb
from controlplane.serve.ads import AdsOptions, AdsServer
from controlplane.serve.cache import Cache, Hooks, Push
from controlplane.serve.documents import short_name
from controlplane.xds import codec, names
from controlplane.xds.bootstrap import Gateway, bootstrap
from controlplane.xds.lua_code import lua_code
from controlplane.xds.translate import Translator

CHANGES = 60


async def measure() -> dict[str, Any]:
    ports = free_ports()
    world = replace(policy(), listener=Listener(address="127.0.0.1", port=ports.gateway))
    translator = Translator(lua_code(read_asset))
    pushes: list[Push] = []
    rejected: list[object] = []
    cache = Cache(clock=time.monotonic, hooks=Hooks(on_push=pushes.append, on_nack=rejected.append))
    server = AdsServer(cache, AdsOptions(drain_s=0.1))
    gateway = Gateway(node_id="gw", xds_port=await server.start(), admin_port=ports.gateway_admin)
    members = [GatewayMember(id="gw")]
    made = decision(world, 0)
    cache.publish(translator.snapshot(world, made, members))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "envoy.json"
        path.write_text(json.dumps(bootstrap(gateway)))
        line = [
            str(find_envoy()),
            "-c",
            str(path),
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "-l",
            "off",
        ]
        envoy = await asyncio.create_subprocess_exec(*line)
        try:
            await _connected(cache)
            first = sum(push.size_bytes for push in pushes)
            pushes.clear()
            took_ms, own_ms, before_s = [], [], cpu_s(envoy.pid)
            for number in range(CHANGES):
                await asyncio.sleep(0.05)
                rates = made.rate_per_s.copy()
                rates[number * 97] += 1.0
                made = replace(made, rate_per_s=rates)
                started_s, spent_s = time.monotonic(), time.process_time()
                snapshot = translator.snapshot(world, made, members)
                cache.publish(snapshot)
                assert await cache.wait_acked(timeout_s=10)
                took_ms.append((time.monotonic() - started_s) * 1000)
                own_ms.append((time.process_time() - spent_s) * 1000)
            envoy_ms = (cpu_s(envoy.pid) - before_s) * 1000 / CHANGES
        finally:
            envoy.kill()
            await envoy.wait()
    await server.stop()
    return {
        "keys": len(world.keys),
        "first_sync_bytes": first,
        "ack_ms": {"p50": float(np.percentile(took_ms, 50)), "p99": float(np.percentile(took_ms, 99))},
        "cpu_ms_per_push": statistics.median(own_ms),
        "envoy_cpu_ms_per_push": envoy_ms,
        "sent": dict(Counter(f"{short_name(push.type_url)} x{push.resources}" for push in pushes)),
        "push_bytes": statistics.median(push.size_bytes for push in pushes),
        "rejected": len(rejected),
        "floor_ms": _floor_ms(snapshot),
    }


async def _connected(cache: Cache) -> None:
    """Until an Envoy has all six types."""
    async with asyncio.timeout(30):
        while not cache.nodes or not cache.settled or len(cache.status().streams[0].session.types) < 6:
            await asyncio.sleep(0.02)


def _floor_ms(snapshot: Snapshot) -> float:
    """The least a push can cost: the official protobuf runtime packs the finished script, no more."""
    resource = snapshot.of_type(EXTENSION)[names.LIMITS_FILTER]
    script: Any = codec.parse(EXTENSION, resource.body)
    source = script.typed_config.unpack().default_source_code.inline_string
    costs = []
    for _ in range(20):
        started_s = time.process_time()
        body = codec.encode(codec.lua_filter(names.LIMITS_FILTER, source))
        element = pb.Resource(name=names.LIMITS_FILTER, resource=pb.Any(value=body).SerializeToString())
        pb.DeltaDiscoveryResponse(resources=[element.SerializeToString()]).SerializeToString()
        costs.append((time.process_time() - started_s) * 1000)
    return statistics.median(costs)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
