"""What is thrown at the parts that read what others wrote, and what must hold whatever it is.

Each target is a function of one generated input that fails by raising. `tests/fuzz` runs each for a moment;
`make fuzz SECONDS=600` for as long as there is time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st
from lupa import luajit21

from controlplane import config
from controlplane.model.resource import CLUSTER, ENDPOINT, EXTENSION, RUNTIME, Resource, Snapshot
from controlplane.pb import tidegate_discovery_pb2 as pb
from controlplane.serve.cache import Cache, Stream
from controlplane.signals import text as scrape
from controlplane.xds import limits, lua_text
from controlplane.xds.exchange import ProtocolError, Variant

# Bytes that are nearly right: something valid, with pieces cut out, doubled, exchanged or invented.
Edit = tuple[str, float, float, bytes]
edits: st.SearchStrategy[list[Edit]] = st.lists(
    st.tuples(
        st.sampled_from(["cut", "double", "put", "flip"]),
        st.floats(0, 1),
        st.floats(0, 1),
        st.binary(max_size=12),
    ),
    max_size=6,
)


def edited(source: bytes, changes: list[Edit]) -> bytes:
    """`source` after each of `changes`; places are fractions of its length."""
    for kind, start, end, piece in changes:
        a, b = sorted((int(start * len(source)), int(end * len(source))))
        b = min(b, a + 200)
        if kind == "cut":
            source = source[:a] + source[b:]
        elif kind == "double":
            source = source[:b] + source[a:]
        elif kind == "put":
            source = source[:a] + piece + source[a:]
        elif a < len(source):
            source = source[:a] + bytes([source[a] ^ (piece[0] if piece else 1)]) + source[a + 1 :]
    return source


# The session: several streams of both variants, of clients that answer honestly, lie, and send junk.

TYPES = (CLUSTER, ENDPOINT, RUNTIME, EXTENSION, "type.googleapis.com/unknown", "")
names = st.sampled_from(["a", "b", "c", "*", "", "ü"]) | st.text(max_size=4)
name_lists = st.lists(names, max_size=4)
texts = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2", "bad"]), max_size=3)
snapshots = st.fixed_dictionaries({}, optional=dict.fromkeys(TYPES[:4], texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """One message: `answer` chooses the nonce, of what was sent last or of something else."""

    type_url: str
    node_id: str
    answer: Literal["none", "last", "stale", "invented"]
    error: str | None
    one: list[str]
    other: list[str]
    held: dict[str, str]
    version: str
    damage: list[Edit]


said = st.builds(
    Say,
    type_url=st.sampled_from(TYPES),
    node_id=st.sampled_from(["gw-1", "gw-2", ""]) | st.text(max_size=5),
    answer=st.sampled_from(["none", "last", "last", "last", "stale", "invented"]),
    error=st.none() | st.none() | st.text(max_size=5),
    one=name_lists,
    other=name_lists,
    held=st.dictionaries(names, st.text(max_size=3), max_size=3),
    version=st.text(max_size=3),
    damage=st.just([]) | st.just([]) | edits,
)
step = st.one_of(
    st.tuples(st.just("say"), st.integers(0, 3), said),
    st.tuples(st.just("say"), st.integers(0, 3), said),
    st.tuples(st.just("read"), st.integers(0, 3), st.integers(1, 3)),
    st.tuples(st.just("junk"), st.integers(0, 3), st.binary(max_size=40)),
    st.tuples(st.just("publish"), st.just(0), snapshots),
    st.tuples(st.just("time"), st.just(0), st.sampled_from([0.1, 1.0, 10.0])),
    st.tuples(st.just("leave"), st.integers(0, 3), st.none()),
)
conversations = st.lists(step, max_size=40)


class Talk:
    """A cache and four clients, of which nothing honest is expected."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.cache = Cache(clock=lambda: self.now_s)
        self.streams: dict[int, Stream] = {}
        self.nonces: dict[int, list[str]] = {}

    def stream(self, who: int) -> Stream:
        if who not in self.streams:
            self.streams[who] = self.cache.join((Variant.DELTA, Variant.SOTW)[who % 2], "peer")
            self.nonces[who] = []
        return self.streams[who]

    def say(self, who: int, what: Say) -> None:
        nonces = self.nonces.setdefault(who, [])
        nonce = {
            "none": "",
            "last": nonces[-1] if nonces else "",
            "stale": nonces[0] if nonces else "",
            "invented": "77",
        }[what.answer]
        fields: dict[str, Any] = {"type_url": what.type_url, "response_nonce": nonce}
        if what.error is not None:
            fields["error_detail"] = pb.Status(code=3, message=what.error)
        node = pb.Node(id=what.node_id)
        if self.stream(who).variant is Variant.DELTA:
            message: Any = pb.DeltaDiscoveryRequest(
                node=node,
                resource_names_subscribe=what.one,
                resource_names_unsubscribe=what.other,
                initial_resource_versions=what.held,
                **fields,
            )
        else:
            message = pb.DiscoveryRequest(
                node=node, resource_names=what.one, version_info=what.version, **fields
            )
        self.junk(who, edited(message.SerializeToString(), what.damage))

    def junk(self, who: int, message: bytes) -> None:
        stream = self.stream(who)
        try:
            stream.receive(message)
        except ProtocolError:
            self.leave(who, None)

    def read(self, who: int, count: int) -> None:
        stream = self.stream(who)
        for _ in range(min(count, stream.outbox.qsize())):
            # Both responses have their nonce in field 5.
            self.nonces[who].append(pb.DeltaDiscoveryResponse.FromString(stream.outbox.get_nowait()).nonce)

    def publish(self, _: int, chosen: dict[str, dict[str, str]]) -> None:
        self.cache.publish(
            Snapshot(
                resources={
                    kind: {name: Resource.of(name, text.encode()) for name, text in named.items()}
                    for kind, named in chosen.items()
                }
            )
        )

    def time(self, _: int, seconds: float) -> None:
        self.now_s += seconds
        self.cache.tick()

    def leave(self, who: int, _: None) -> None:
        self.cache.leave(self.stream(who))
        del self.streams[who]


def session(steps: list[tuple[str, int, Any]]) -> None:
    """Nothing but ProtocolError, bounded outboxes, a status that can be shown, and nobody is left over."""
    talk = Talk()
    for verb, who, what in steps:
        getattr(talk, verb)(who, what)
        for stream in talk.streams.values():
            assert stream.outbox.qsize() <= limits.UNREAD_MAX + 8
            for channel in stream.session._channels.values():
                thorough = copy(channel)
                thorough._touch_all()
                assert thorough.todo == channel.todo  # only touched names are compared: no other differs
    status = talk.cache.status()
    assert len(status.quarantine) <= 4 * 3 * 3 * (len(steps) + 1)
    for who in list(talk.streams):
        talk.leave(who, None)
    assert talk.cache.nodes == ()
    assert talk.cache.settled == talk.cache.ready


# Pages of metrics.

PAGE = b"""# HELP vllm:num_requests_waiting Waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="a\\\\b\\"c\\n"} 0.25 1700000000000
lat_bucket{le="+Inf"} 7
lat_bucket{le="0.5"} NaN
up 1
"""
pages = st.lists(
    st.builds(edited, st.just(PAGE), edits) | st.binary(max_size=80) | st.text(max_size=80).map(str.encode),
    min_size=1,
    max_size=3,
)
WANTED = frozenset({"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "lat_bucket", "up", ""})


def scraped(several: list[bytes]) -> None:
    """Never an exception; samples have numbers; what is remembered is of the last page."""
    reader = scrape.Reader(scrape.exactly(WANTED))
    for page in several:
        text = page.decode("utf-8", "replace")
        found = reader.read(text)
        lines = text.count("\n") + 1
        assert sum(map(len, found.samples.values())) + found.unreadable <= lines
        assert all(
            isinstance(sample.value, float) for samples in found.samples.values() for sample in samples
        )
        assert found == scrape.Reader(scrape.exactly(WANTED)).read(text) or "nan" in text.lower()
        assert len(reader._labels) <= lines


# Configuration files.

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_MAIN = [path.read_bytes() for path in sorted(_EXAMPLES.glob("*/tidegate.yaml"))]
_TENANTS = [path.read_bytes() for path in sorted(_EXAMPLES.glob("*/tenants/*.yaml"))]
files = st.tuples(
    st.builds(edited, st.sampled_from(_MAIN), edits) | st.binary(max_size=100),
    st.builds(edited, st.sampled_from(_TENANTS), edits) | st.binary(max_size=100),
)


def loaded(contents: tuple[bytes, bytes]) -> None:
    """Never an exception; no policy without a usable main file; every problem says where."""
    main, one = contents
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tenants").mkdir()
        (folder / "tidegate.yaml").write_bytes(main)
        (folder / "tenants" / "acme.yaml").write_bytes(one)
        found = config.load(folder, mounts=frozenset())
        assert found.policy is not None or found.has_errors
        assert all(problem.file and problem.line >= 1 and str(problem) for problem in found.problems)
        again = config.load(folder, found, mounts=frozenset())
        assert again.policy == found.policy


# Text that goes into Lua.

scalars = st.text() | st.integers(-(2**53), 2**53) | st.booleans() | st.floats(allow_nan=False, width=32)
tables = st.dictionaries(st.text(), scalars, max_size=5)


def written_to_lua(values: dict[str, Any]) -> None:
    """LuaJIT reads back exactly what was written: no text ends its literal, none runs."""
    lua = luajit21.LuaRuntime(encoding="utf-8", unpack_returned_tuples=True)
    source = lua_text.table({key: value for key, value in values.items() if value not in _INFINITE})
    assert source.isascii()
    assert "\n" not in source
    read = dict(lua.execute(f"return {source}"))
    assert {key: read[key] for key in read} == {k: v for k, v in values.items() if v not in _INFINITE}


_INFINITE = (float("inf"), float("-inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]


TARGETS = {
    "session": Target(inputs=conversations, check=session),
    "scrape": Target(inputs=pages, check=scraped),
    "yaml": Target(inputs=files, check=loaded),
    "lua": Target(inputs=tables, check=written_to_lua),
}
