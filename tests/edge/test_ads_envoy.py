"""The discovery service against the real Envoy, delta and state-of-the-world: six types on one stream."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
import envoy_data_plane.envoy.extensions.filters.http.lua.v3
import envoy_data_plane.envoy.extensions.filters.http.router.v3
import envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3  # noqa: F401
import pytest
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.core.v3 import TypedExtensionConfig
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.service.runtime.v3 import Runtime

from controlplane.model.resource import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    Resource,
    Snapshot,
)
from controlplane.serve.ads import AdsOptions, AdsServer
from controlplane.serve.cache import Ack, Cache, Hooks, Push, Rejection
from controlplane.xds.exchange import Variant

pytestmark = pytest.mark.envoy

ADS = {"ads": {}, "resource_api_version": "V3"}
TYPES = "type.googleapis.com/envoy.extensions."
LUA = TYPES + "filters.http.lua.v3.Lua"
BOTH = pytest.mark.parametrize("variant", list(Variant))


def cluster(name: str, timeout: str = "1s") -> Resource:
    eds = {"eds_config": ADS}
    message = Cluster.from_dict(
        {"name": name, "type": "EDS", "connect_timeout": timeout, "eds_cluster_config": eds}
    )
    return Resource.of(name, bytes(message), origin=f"models.yaml:{name}")


def invalid(name: str) -> Resource:
    """A cluster that the validation of messages rejects: nothing of its response is applied."""
    return cluster(name, timeout="0s")


def impossible(name: str) -> Resource:
    """A valid message that cannot be made a cluster: Envoy applies the rest of its response and still
    NACKs."""
    message = Cluster.from_dict({"name": name, "cluster_type": {"name": "no.such.type"}})
    return Resource.of(name, bytes(message), origin=f"models.yaml:{name}")


def endpoint(name: str) -> Resource:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 1}}
    message = ClusterLoadAssignment.from_dict(
        {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}
    )
    return Resource.of(name, bytes(message))


def listener() -> Resource:
    router = {"@type": TYPES + "filters.http.router.v3.Router"}
    manager = {
        "@type": TYPES + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "rds": {"route_config_name": "routes", "config_source": ADS},
        "http_filters": [
            {"name": "mark", "config_discovery": {"config_source": ADS, "type_urls": [LUA]}},
            {"name": "router", "typed_config": router},
        ],
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    chains = [{"filters": [{"name": "manager", "typed_config": manager}]}]
    message = Listener.from_dict({"name": "in", "address": address, "filter_chains": chains})
    return Resource.of("in", bytes(message))


def route(text: str) -> Resource:
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": text}}}
    host = {"name": "all", "domains": ["*"], "routes": [answer]}
    message = RouteConfiguration.from_dict({"name": "routes", "virtual_hosts": [host]})
    return Resource.of("routes", bytes(message))


def script(source: str) -> Resource:
    lua = {"@type": LUA, "default_source_code": {"inline_string": source}}
    message = TypedExtensionConfig.from_dict({"name": "mark", "typed_config": lua})
    return Resource.of("mark", bytes(message), origin="tidegate.yaml:12")


def mark(text: str) -> Resource:
    """A Lua filter that answers with the header `x-mark: text`."""
    return script(f'function envoy_on_response(h) h:headers():replace("x-mark", "{text}") end')


def runtime(percent: int) -> Resource:
    return Resource.of("live", bytes(Runtime.from_dict({"name": "live", "layer": {"test.percent": percent}})))


@dataclass
class World:
    """What is published; each field is one type."""

    clusters: list[Resource] = field(default_factory=lambda: [cluster("a"), cluster("b")])
    routes: str = "one"
    extension: Resource = field(default_factory=lambda: mark("1"))
    percent: int = 1

    def snapshot(self) -> Snapshot:
        by_type = {
            CLUSTER: self.clusters,
            ENDPOINT: [endpoint(resource.name) for resource in self.clusters],
            RUNTIME: [runtime(self.percent)],
            LISTENER: [listener()],
            ROUTE: [route(self.routes)],
            EXTENSION: [self.extension],
        }
        return Snapshot(resources={t: {r.name: r for r in resources} for t, resources in by_type.items()})


class Plane:
    """The served cache, and what its hooks were told."""

    def __init__(self) -> None:
        self.world = World()
        self.pushes: list[Push] = []
        self.acks: list[Ack] = []
        self.nacks: list[Rejection] = []
        hooks = Hooks(on_push=self.pushes.append, on_ack=self.acks.append, on_nack=self.nacks.append)
        self.cache = Cache(clock=time.monotonic, hooks=hooks)
        self.port = 0

    async def serve(self) -> None:
        self.server = AdsServer(self.cache, AdsOptions(address=f"127.0.0.1:{self.port}", drain_s=0.05))
        self.port = await self.server.start()

    async def publish(self, within_s: float = 5.0, **changes: Any) -> list[str]:
        """Publish the world with `changes`; returns what was sent until every Envoy had everything."""
        for name, value in changes.items():
            setattr(self.world, name, value)
        self.pushes.clear()
        self.cache.publish(self.world.snapshot())
        assert await self.cache.wait_acked(timeout_s=within_s)
        return [push.type_url.rpartition(".")[2] for push in self.pushes]


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    made = Plane()
    await made.serve()
    yield made
    await made.server.stop()


@dataclass(frozen=True, kw_only=True)
class Envoy:
    """A running Envoy; `admin` is the address of its admin server."""

    admin: str
    http: aiohttp.ClientSession

    async def text(self, path: str) -> str:
        async with self.http.get(f"http://{self.admin}{path}") as answer:
            return await answer.text()

    async def ready(self) -> bool:
        return (await self.text("/ready")).strip() == "LIVE"

    async def clusters(self) -> set[str]:
        found = json.loads(await self.text("/clusters?format=json"))["cluster_statuses"]
        return {status["name"] for status in found} - {"ads"}

    async def get(self) -> tuple[str, str | None]:
        """Body and x-mark of the answer of its one listener."""
        found = json.loads(await self.text("/listeners?format=json"))["listener_statuses"]
        port = found[0]["local_address"]["socket_address"]["port_value"]
        async with self.http.get(f"http://127.0.0.1:{port}/") as answer:
            return await answer.text(), answer.headers.get("x-mark")


@asynccontextmanager
async def running(envoy_path: Path, plane: Plane, variant: Variant, folder: Path) -> AsyncIterator[Envoy]:
    """An Envoy that follows `plane`, started and ready."""
    folder.mkdir(exist_ok=True)
    (folder / "bootstrap.json").write_text(json.dumps(_bootstrap(plane.port, variant)))
    address = folder / "admin"
    address.unlink(missing_ok=True)
    command = [
        *(
            str(envoy_path),
            "-c",
            str(folder / "bootstrap.json"),
            "--concurrency",
            "1",
            "--use-dynamic-base-id",
        ),
        *("--log-level", "error", "--log-path", str(folder / "log"), "--admin-address-path", str(address)),
    ]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            async with asyncio.timeout(20):
                while not address.exists() or not address.read_text():
                    await asyncio.sleep(0.02)
                envoy = Envoy(admin=address.read_text(), http=http)
                while not await envoy.ready():
                    await asyncio.sleep(0.02)
                assert await plane.cache.wait_acked(timeout_s=5)
            yield envoy
    finally:
        process.kill()
        await process.wait()


def _bootstrap(port: int, variant: Variant) -> dict[str, Any]:
    http2 = {
        "@type": TYPES + "upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    plane: Mapping[str, Any] = {
        "name": "ads",
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
        "load_assignment": {
            "cluster_name": "ads",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }
    api = {
        "api_type": "DELTA_GRPC" if variant is Variant.DELTA else "GRPC",
        "transport_api_version": "V3",
        "grpc_services": [{"envoy_grpc": {"cluster_name": "ads"}}],
    }
    live = {"name": "live", "rtds_layer": {"name": "live", "rtds_config": ADS}}
    return {
        "node": {"id": "gw-1", "cluster": "test"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "dynamic_resources": {"ads_config": api, "cds_config": ADS, "lds_config": ADS},
        "layered_runtime": {"layers": [live]},
        "static_resources": {"clusters": [plane]},
    }


@BOTH
async def test_six_types_arrive_and_each_change_alone(
    variant: Variant, plane: Plane, envoy_path: Path, tmp_path: Path
) -> None:
    plane.cache.publish(plane.world.snapshot())
    async with running(envoy_path, plane, variant, tmp_path) as envoy:
        assert await envoy.get() == ("one", "1")
        assert await envoy.clusters() == {"a", "b"}

        assert await plane.publish(extension=mark("2")) == ["TypedExtensionConfig"]
        assert await envoy.get() == ("one", "2")
        assert await plane.publish(routes="two") == ["RouteConfiguration"]
        assert await envoy.get() == ("two", "2")
        assert await plane.publish(percent=7) == ["Runtime"]
        assert json.loads(await envoy.text("/runtime"))["entries"]["test.percent"]["final_value"] == "7"
        assert await plane.publish() == []

        # An updated cluster warms on the endpoints it had: without them it would wait for 15 s.
        updated = [cluster("a", timeout="2s"), cluster("b")]
        assert await plane.publish(within_s=3, clusters=updated) == ["Cluster", "ClusterLoadAssignment"]

        # Make before break, in one publication: cluster c comes before the script, b goes after it.
        sent = await plane.publish(clusters=[updated[0], cluster("c")], extension=mark("3"))
        assert sent[:3] == ["Cluster", "ClusterLoadAssignment", "TypedExtensionConfig"]
        assert sent[-1] == "Cluster"
        assert await envoy.clusters() == {"a", "c"}
        assert plane.nacks == []


@BOTH
@pytest.mark.parametrize("poisoned", [invalid, impossible])
async def test_one_poisoned_cluster_does_not_keep_the_good_ones_out(
    variant: Variant, poisoned: Callable[[str], Resource], plane: Plane, envoy_path: Path, tmp_path: Path
) -> None:
    plane.cache.publish(plane.world.snapshot())
    good = [cluster(f"good{n}") for n in range(8)]
    async with running(envoy_path, plane, variant, tmp_path) as envoy:
        await plane.publish(within_s=1, clusters=[cluster("a"), *good[:4], poisoned("evil"), *good[4:]])
        assert await envoy.clusters() == {"a"} | {resource.name for resource in good}
        (entry,) = plane.cache.status().quarantine
        assert (entry.name, entry.origin, entry.fleet) == ("evil", "models.yaml:evil", True)

        offers = sum(any(suspect.name == "evil" for suspect in nack.suspects) for nack in plane.nacks)
        assert offers <= 5  # the batch of nine, and at most its halves
        assert await plane.publish() == []  # the same again is not offered again

        await plane.publish(clusters=[cluster("a"), cluster("evil")])
        assert await envoy.clusters() == {"a", "evil"}
        assert plane.cache.status().quarantine == ()


@BOTH
async def test_old_and_restarted_envoys_run_the_last_good_script(
    variant: Variant, plane: Plane, envoy_path: Path, tmp_path: Path
) -> None:
    plane.cache.publish(plane.world.snapshot())
    async with running(envoy_path, plane, variant, tmp_path) as envoy:
        await plane.publish(extension=script("not lua at all"))
        assert await envoy.get() == ("one", "1")
        assert len(plane.nacks) == 1
    async with running(envoy_path, plane, variant, tmp_path) as envoy:
        assert await envoy.get() == ("one", "1")
        assert len(plane.nacks) == 1
        await plane.publish(extension=mark("2"))
        assert await envoy.get() == ("one", "2")


@BOTH
async def test_a_restarted_server_sends_nothing_that_did_not_change(
    variant: Variant, plane: Plane, envoy_path: Path, tmp_path: Path
) -> None:
    plane.cache.publish(plane.world.snapshot())
    async with running(envoy_path, plane, variant, tmp_path) as envoy:
        await plane.server.stop()
        plane.pushes.clear()
        await plane.serve()
        async with asyncio.timeout(15):
            while not plane.cache.nodes or len(plane.cache.status().streams[0].session.types) < 6:
                await asyncio.sleep(0.05)
        assert await plane.cache.wait_acked(timeout_s=5)
        sent = {push.type_url for push in plane.pushes}
        if variant is Variant.DELTA:
            assert sent == set()
        else:  # a named list says nothing of what its client lost meanwhile
            assert sent <= {ENDPOINT, RUNTIME, ROUTE, EXTENSION}
        await plane.publish(extension=mark("2"))
        assert await envoy.get() == ("one", "2")


@BOTH
async def test_from_publication_to_ack_takes_milliseconds(
    variant: Variant,
    plane: Plane,
    envoy_path: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    plane.cache.publish(plane.world.snapshot())
    async with running(envoy_path, plane, variant, tmp_path):
        plane.acks.clear()
        for n in range(40):
            await plane.publish(extension=mark(str(n)))
    latencies_ms = [ack.latency_s * 1000 for ack in plane.acks]
    p50, p95 = quantiles(latencies_ms, n=20)[9], quantiles(latencies_ms, n=20)[18]
    record_property("p50_ms", p50)
    record_property("p95_ms", p95)
    print(f"{variant}: publication to ACK of one script, p50 {p50:.1f} ms, p95 {p95:.1f} ms")
    assert len(latencies_ms) == 40
    assert p95 <= 800
