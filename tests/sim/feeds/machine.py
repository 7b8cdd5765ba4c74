"""A machine of a run: the real worker with several actors, on a simulated disk, network and group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from actors._core.group.members import TaskId
from actors._core.group.placement import place
from actors._core.task.commit import CommitPolicy
from actors._faust.setup import Setup
from actors._kafka.admin.owners import KafkaOwners, encode_owner
from actors.ports import SourceEvents, TopicPartition
from actors.runtime.committer import Committer
from actors.runtime.spec import ActorSpec, TaskServices
from actors.runtime.state.restore import Restorer
from actors.runtime.worker import LateSource, Worker
from actors.testing.driving import SimTopics
from actors.testing.fakes.ports import FakeGroupView, FakeLogs, FakeWriter
from tests.sim.fakes.clock import MachineClock
from tests.sim.fakes.cluster import CompactedLog, SimKafka
from tests.sim.fakes.disk import Disk
from tests.sim.fakes.group import LostMembershipError
from tests.sim.fakes.loop import Process, VirtualLoop
from tests.sim.fakes.network import Network
from tests.sim.fakes.source import Assigned, FakeGroupSettings, FakeSource
from tests.sim.feeds.program import Shape, make_app
from tests.sim.node import REVOKE_S, SKEW_MARGIN_MS, STOP_S, SUPERVISED_S, Node


class TimedLog(CompactedLog):
    """A log that knows when each of its records and markers was written."""

    now_s = staticmethod(lambda: asyncio.get_running_loop().time())

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.written_s: list[float] = []

    def _put(self, record: Any) -> None:
        super()._put(record)
        self.written_s.append(self.now_s())


class FeedKafka(SimKafka):
    """The cluster, whose logs know when they were written."""

    log_type = TimedLog


@dataclass
class Notes:
    """What a run is judged by, in place of the audit of one actor: violations, and a trace."""

    loop: VirtualLoop
    print_trace: bool = False
    violations: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        line = f"{self.loop.time():9.3f} {text}"
        self.trace.append(line)
        if self.print_trace:
            print(line)

    def violated(self, text: str) -> None:
        self.note(f"VIOLATED {text}")
        self.violations.append(text)


@dataclass
class FeedWorld:
    """What all machines of a run share; what `tests.sim.nemesis` uses of a world is in it too."""

    loop: VirtualLoop
    cluster: FeedKafka
    network: Network
    audit: Notes
    random: Random
    shape: Shape
    topics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    slow_s: dict[str, float] = field(default_factory=dict)
    max_poll_records: int = 50
    queue_records: int = 1000
    commit_interval_s: float = 0.1
    commit_deadline_s: float = 5.0
    session_s: float = 6.0
    features: frozenset[str] = frozenset()
    is_failing: bool = False

    def fails(self, number: int) -> bool:
        """Return whether the first stage raises now for a record of this id."""
        return self.is_failing and number % 3 == 0

    def set_clock(self, clock: MachineClock, offset_ms: int) -> None:
        """Set a machine's clock."""
        clock.wall_offset_ms = offset_ms

    def delete_keys(self) -> None:
        """Do nothing: keys are deleted by no fault here."""


class FeedSource(FakeSource):
    """The consumer of a worker with several actors, given by the first input of each with all of its inputs."""

    def __init__(self, *args: Any, actors: Mapping[str, tuple[str, ...]], **named: Any) -> None:
        super().__init__(*args, [topic for topics in actors.values() for topic in topics], **named)
        self._actors = actors
        self._first = {topic: first for first, topics in actors.items() for topic in topics}

    def _task_of(self, source: TopicPartition) -> TaskId:
        return TaskId(self._first[source.topic], source.partition)

    def _assign(self, infos: Mapping[str, Any]) -> Mapping[str, list[TopicPartition]]:
        members = [replace(info, member_id=member_id) for member_id, info in infos.items()]
        tasks = [TaskId(*log.name) for first in self._actors for log in self._cluster.topic(first).partitions]
        placement = place(members, tasks, self._rules)
        is_moving = any(copies.handed_over for copies in placement.copies.values())
        return {
            member_id: Assigned(
                [TopicPartition(topic, task.partition) for task in theirs for topic in self._actors[task.actor]],
                replace(placement.copies[member_id], may_keep=True, is_moving=is_moving),
            )
            for member_id, theirs in placement.owners.items()
        }


class Machine(Node):
    """A machine: a disk and a clock that stay, and processes that run the worker and die."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self._feeds: FeedWorld = world

    def _machine(self, world: Any) -> Disk:
        disk = super()._machine(world)
        disk.on_write = disk.on_delete = None
        return disk

    async def _stop(self, worker: Worker, source: FakeSource) -> None:
        await worker.stop(STOP_S)
        await source.close()

    async def _main(self, process: Process, clock: MachineClock) -> None:
        world = self._feeds
        setup, topics = Setup(make_app(world.shape, world.fails)), SimTopics(world.cluster)
        specs, outputs = await self._specs(setup, topics)
        logs, sink = FakeLogs(world.cluster, world.network, chunk_records=20), LateSource()
        view = FakeGroupView(world.cluster, world.network)
        committer = Committer(self._committing(), 1_000_000, longest_rest_s=world.commit_interval_s, knows=view.knows)
        settings = replace(
            setup.task_settings(),
            worker=process.name,
            policy=CommitPolicy(interval_s=world.commit_interval_s, max_bytes=1_000_000),
            queue_records=world.queue_records,
            checkpoint_refresh_s=1_000.0,
            transactional_id=self.disk.transactional_id,
        )

        def failed(error: BaseException) -> None:
            if isinstance(error, LostMembershipError):
                self._end(process)
            else:
                world.audit.violated(f"a task of {process.name} failed: {error!r}")

        worker = Worker(
            specs,
            source=sink,
            services=TaskServices(
                group=view,
                logs=logs,
                owners=KafkaOwners(setup.owners_topic, logs),
                restorer=Restorer(logs, clock, clock_skew_margin_ms=SKEW_MARGIN_MS),
                stores=self.disk.cache(process),
                sink=sink,
                clock=clock,
                resolve_output=outputs,
                encode_owner=lambda record: encode_owner(setup.owners_topic, record),
            ),
            task_settings=settings,
            revoke_s=REVOKE_S,
            member=committer.member,
            task_log=committer.new_log,
            on_failure=failed,
        )
        sink.source = source = self._consumer(worker, failed)
        if self.process is process:
            self.worker, self.source = worker, source
        source.open()
        await worker.run()

    async def _specs(self, setup: Setup, topics: Any) -> tuple[list[ActorSpec], Any]:
        inputs = await setup.check_topics(topics)
        outputs = await setup.outputs(topics)
        changelogs = await topics.existing(setup.compacted(inputs))
        specs = await setup.specs(inputs, changelogs, topics)
        self._feeds.topics = {spec.topic: spec.topics for spec in specs}
        return [self._slowed(spec) for spec in specs], outputs

    def _slowed(self, spec: ActorSpec) -> ActorSpec:
        """Have an actor take its time, which the schedule may change; a forwarder may have lanes."""
        slow_s = self._feeds.slow_s

        def slowed(handler: Any) -> Any:
            async def handle(ctx: Any, value: Any) -> None:
                delay_s = slow_s.get(f"{spec.name}[{ctx.partition}]", 0.0)
                if delay_s:
                    await asyncio.sleep(delay_s)
                await handler(ctx, value)

            return handle

        is_forwarder = bool(spec.feeds and not spec.feeds.upstream)
        return replace(spec.with_handlers(slowed), concurrency=self._feeds.shape.concurrency if is_forwarder else 1)

    def _committing(self) -> FakeWriter:
        world = self._feeds
        return FakeWriter(
            world.cluster,
            world.network,
            transactional_id=self.disk.transactional_id,
            transaction_timeout_s=world.commit_deadline_s + 7.0,
            commit_deadline_s=world.commit_deadline_s,
        )

    def _consumer(self, worker: Worker, failed: Any) -> FeedSource:
        world = self._feeds
        return FeedSource(
            world.cluster,
            world.network,
            FakeGroupSettings(
                self.name,
                session_s=world.session_s,
                heartbeat_s=world.session_s / 3,
                transactional_id=self.disk.transactional_id,
                max_poll_records=world.max_poll_records,
            ),
            actors=world.topics,
            on_disk=dict,
            events=SourceEvents(
                joining=worker.joining,
                revoked=worker.revoked,
                assigned=worker.assigned,
                handed_over=worker.handed_over,
                dropped=worker.dropped,
                room=worker.room,
                lost=worker.lost,
                failed=failed,
            ),
            leaving=lambda: worker.leaving,
        )

    def _end(self, process: Process) -> None:
        async def end() -> None:
            if self.process is not process:
                self.forget(process)
                return
            await self.stop()
            await asyncio.sleep(SUPERVISED_S)
            if not self.is_up:
                self.start()

        self._feeds.audit.note(f"ends {process.name}")
        self._feeds.loop.create_task(end(), context=Context())
