"""The loop: read signals, judge, translate, publish; again a second later.

Only here is everything caught: a tick that fails is logged once, counted, and leaves the last good limits
in force. The loop runs right behind each read of the signals, so a new value is enforced after one
judgement and one push, not at the end of some other period.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from controlplane.app import fleet
from controlplane.decide import step
from controlplane.model.decision import Decision
from controlplane.model.policy import Mode, Policy
from controlplane.model.resource import ENDPOINT, Snapshot
from controlplane.model.signal import Observation
from controlplane.serve.cache import Ack, Cache, ConnectedNode, Held, Hooks, Push, Rejection
from controlplane.serve.changes import Change, Trail, changes
from controlplane.serve.collector import ViewCollector
from controlplane.serve.documents import short_name
from controlplane.serve.metrics import Metrics
from controlplane.serve.view import Control, Moment
from controlplane.xds import names
from controlplane.xds.translate import Translator

REACTIONS_KEPT = 1000
EXCHANGED_WITHIN_S = 0.05  # from the ACK of a script until the last worker has let go of the old one


class Reader(Protocol):
    """Where observations come from (`signals.feed.Feed`)."""

    async def read(self, now_s: float, *, gateways: int = 1) -> Observation: ...
    async def read_behind_push(self) -> None: ...
    async def retarget(self, policy: Policy) -> None: ...
    async def close(self) -> None: ...


class Events(Protocol):
    """Where what happened is written down (`serve.log`)."""

    def changed(self, lines: Sequence[Change], *, omitted: int = 0) -> None: ...
    def rejected(self, node: str, type_name: str, origins: Sequence[str], reason: str) -> None: ...
    def tick_failed(self, error: Exception) -> None: ...
    def gateway(self, node: str, address: str, *, connected: bool, gateways: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the loop is built from."""

    clock: Callable[[], float]  # Unix seconds
    open_reader: Callable[[Policy], Reader]
    translator: Translator
    metrics: Metrics
    events: Events


class Loop:
    """The state of a running control plane, and what moves it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._clock = parts.clock
        self.cache = Cache(
            clock=parts.clock,
            hooks=Hooks(
                on_connect=self._on_connect,
                on_disconnect=self._on_disconnect,
                on_held=self._on_held,
                on_push=self._on_push,
                on_ack=self._on_ack,
                on_nack=self._on_nack,
                on_settled=self._on_settled,
            ),
        )
        self.trail = Trail()
        self.control = Control()
        self.collector: ViewCollector | None = None
        self.reactions_s: deque[float] = deque(maxlen=REACTIONS_KEPT)
        self.published = 0
        self.pushes = 0
        self.nacks = 0
        self.moment: Moment | None = None
        self._written: Policy | None = None  # as the operator wrote it
        self._policy: Policy | None = None  # with the switches of the admin API
        self._overrides: dict[str, bool | Mode] = {}
        self._state: step.State | None = None
        self._fleet = fleet.Fleet()
        self._reader: Reader | None = None
        self._snapshot: Snapshot | None = None
        self._visible_s: float | None = None
        self._wake = asyncio.Event()
        self._reading = asyncio.Lock()  # sources are not exchanged under a reading
        self._settled = asyncio.Event()

    @property
    def policy(self) -> Policy | None:
        """The policy in force, switches included."""
        return self._policy

    @property
    def gateways(self) -> int:
        """How many gateways share the limits."""
        return self._fleet.count

    def now_s(self) -> float:
        """Unix seconds."""
        return self._clock()

    def note(self, change: Change) -> None:
        """Write down a change that no tick made."""
        self.trail.add([change])
        self._parts.events.changed([change])

    async def apply(self, policy: Policy) -> None:
        """Put a checked configuration in force with the next tick, which follows at once.

        Raises what a wrong signal source raises (`CatalogueError`); the old policy then stays.
        """
        if self._reader is None:
            self._reader = self._parts.open_reader(policy)
            self._fleet = fleet.start(policy.gateways, self._clock())
        else:
            async with self._reading:
                await self._reader.retarget(policy)
        self._written = policy
        self._combine()

    def override(self, *, freeze: bool | None = None, mode: Mode | None = None) -> None:
        """The switches of the admin API; they outlive reloads, but not the process."""
        if freeze is not None:
            self._overrides["freeze"] = freeze
        if mode is not None:
            self._overrides["mode"] = mode
        self._combine()

    def _combine(self) -> None:
        if self._written is None:
            return
        self._policy = replace(self._written, **self._overrides) if self._overrides else self._written  # type: ignore[arg-type]
        self.control = replace(self.control, mode=self._policy.mode, frozen=self._policy.freeze)
        self._wake.set()

    async def run(self) -> None:
        """Tick until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick_on())
            tasks.create_task(self._look_behind_pushes())

    async def _look_behind_pushes(self) -> None:
        """Envoy drops a script's counters with the script: look again before they reach what they were."""
        while True:
            await self._settled.wait()
            await asyncio.sleep(EXCHANGED_WITHIN_S)
            self._settled.clear()
            try:
                async with self._reading:
                    if self._reader is not None:
                        await self._reader.read_behind_push()
            except Exception as error:
                self._parts.events.tick_failed(error)

    async def _tick_on(self) -> None:
        while True:
            started_s = time.monotonic()
            self._wake.clear()
            if self._policy is not None:
                await self.tick()
            await self._pause(started_s)

    async def _pause(self, started_s: float) -> None:
        interval_s = self._policy.signals.interval_s if self._policy else 1.0
        left_s = max(0.0, started_s + interval_s - time.monotonic())
        try:
            async with asyncio.timeout(left_s if self._policy else None):
                await self._wake.wait()
        except TimeoutError:
            return

    async def tick(self) -> None:
        """One reading, one judgement, one publication. Never raises."""
        policy, reader = self._policy, self._reader
        assert policy is not None
        assert reader is not None
        self._count_fleet(policy)
        try:
            async with self._reading:
                observation = await reader.read(self._clock(), gateways=self._fleet.count)
            if policy is not self._policy:
                return  # a reload overtook the reading; the tick that it woke judges with the new policy
            self._judge(policy, observation)
        except Exception as error:
            self._parts.metrics.tick_failed()
            self._parts.events.tick_failed(error)

    def _judge(self, policy: Policy, observation: Observation) -> None:
        started_s, cpu_s = time.perf_counter(), time.thread_time()
        observation = replace(observation, gateways=self._fleet.count)
        before = self.moment
        state = self._state or step.start(policy)
        self._state, decision = step.step(policy, state, observation)
        self.moment = Moment(policy=policy, decision=decision, observation=observation)
        self._note_visible(before, decision, observation)
        self._publish(policy, decision)
        self._parts.metrics.tick_done(
            duration_s=time.perf_counter() - started_s, cpu_s=time.thread_time() - cpu_s
        )
        self._record(before)

    def _publish(self, policy: Policy, decision: Decision) -> None:
        members = fleet.members(self._fleet.count)
        snapshot = self._parts.translator.snapshot(policy, decision, members)
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self.published += 1
            self.cache.publish(snapshot)
        if self.cache.settled:
            self._visible_s = None  # nobody is waiting for it: nothing changed, or nobody is connected

    def _record(self, before: Moment | None) -> None:
        moment = self.moment
        assert moment is not None
        old = (before.policy, before.decision) if before else None
        found = changes(old, (moment.policy, moment.decision))
        if found.lines or found.omitted:
            self.trail.add(found.lines)
            self._parts.events.changed(found.lines, omitted=found.omitted)
            kinds = [line.kind for line in found.lines]
            counts = {kind: kinds.count(kind) for kind in set(kinds)}
            counts["key"] = counts.get("key", 0) + found.omitted
            self._parts.metrics.limits_changed(counts)
        if self.collector is not None and moment.observation is not None:
            dt_s = moment.decision.now_s - before.decision.now_s if before else 0.0
            self.collector.count_traffic(moment.policy, moment.observation, max(0.0, dt_s))

    # From a value being visible to its limits being enforced

    def _note_visible(self, before: Moment | None, decision: Decision, observation: Observation) -> None:
        """Remember when the values behind a changed pool rate arrived; the first unanswered one counts."""
        if before is None or self._visible_s is not None:
            return
        moved = [
            pool
            for pool, judged in decision.pools.items()
            if pool in before.decision.pools and judged.rate_per_s != before.decision.pools[pool].rate_per_s
        ]
        times = [
            reading.sampled_at_s
            for pool in moved
            if pool in observation.loads
            for reading in observation.loads[pool].readings.values()
            if reading.sampled_at_s is not None
        ]
        if times:
            # A backend's sample may be older than our read of it; it was not visible here before the read.
            self._visible_s = max(max(times), observation.now_s)

    def _on_settled(self, _seconds: float) -> None:
        self._settled.set()
        if self._visible_s is None:
            return
        reaction_s = max(0.0, self._clock() - self._visible_s)
        self._visible_s = None
        self.reactions_s.append(reaction_s)
        self._parts.metrics.visible_to_acked(reaction_s)

    # The fleet

    def _count_fleet(self, policy: Policy, *, held_count: int = 0) -> None:
        connected = fleet.distinct(node.id for node in self.cache.nodes)
        self._fleet = fleet.observe(
            self._fleet, policy.gateways, connected, self._clock(), held_count=held_count
        )

    def _on_connect(self, node: ConnectedNode) -> None:
        """Runs before the new gateway's first answer, so it never enforces a share that is too large."""
        if self._policy is not None:
            before = self._fleet.count
            self._count_fleet(self._policy)
            self._parts.events.gateway(node.id, node.peer, connected=True, gateways=self._fleet.count)
            self._share_anew(before)

    def _on_held(self, held: Held) -> None:
        """A gateway that comes back says what share it enforces: a restarted control plane believes it."""
        version = held.versions.get(names.GATEWAYS_CLUSTER)
        if held.type_url != ENDPOINT or version is None or self._policy is None:
            return
        before = self._fleet.count
        self._count_fleet(self._policy, held_count=fleet.held_count(version, self._policy.gateways))
        self._share_anew(before)

    def _share_anew(self, before: int) -> None:
        moment = self.moment
        if moment is not None and self._fleet.count != before:
            decision = replace(moment.decision, gateways=self._fleet.count)
            self.moment = replace(moment, decision=decision)
            self._publish(moment.policy, decision)

    def _on_disconnect(self, node: ConnectedNode) -> None:
        self._parts.events.gateway(node.id, node.peer, connected=False, gateways=self._fleet.count)

    # Counting

    def _on_push(self, push: Push) -> None:
        self.pushes += 1
        self._parts.metrics.pushed(short_name(push.type_url))

    def _on_ack(self, ack: Ack) -> None:
        self._parts.metrics.acked(short_name(ack.type_url), publish_to_ack_s=ack.latency_s)

    def _on_nack(self, rejection: Rejection) -> None:
        self.nacks += 1
        name = short_name(rejection.type_url)
        self._parts.metrics.nacked(name)
        origins = [resource.origin or resource.name for resource in rejection.suspects]
        self._parts.events.rejected(rejection.node.id, name, origins, rejection.reason)

    async def close(self) -> None:
        """Let go of sessions and threads."""
        if self._reader is not None:
            await self._reader.close()
