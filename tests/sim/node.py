"""A machine of the simulation: a disk and a clock that stay, and processes that run the real worker and die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from actors._core.commit import Backoff, CommitPolicy
from actors._core.takeover import ResetPolicy, StartRules
from actors.ports import Identity, TopicPartition
from actors.runtime.context import OutputTopic
from actors.runtime.restore import Changelog, Restorer
from actors.runtime.spec import ActorSpec, TaskServices, TaskSettings
from actors.runtime.worker import Worker, WorkerSettings
from actors.testing import (
    Disk,
    FakeClock,
    FakeGroupSettings,
    FakeGroupView,
    FakeLogs,
    FakeOwners,
    FakeSource,
    FakeTaskLog,
    Network,
    Process,
    SimKafka,
    VirtualLoop,
    encode_owner,
)
from tests.sim import app
from tests.sim.audit import Audit, WatchedGroup, WatchedLog

DELETE_RETENTION_MS = 60_000
SKEW_MARGIN_MS = 10_000
REVOKE_S = 3.0
STOP_S = 5.0


@dataclass
class World:
    """What all nodes share."""

    loop: VirtualLoop
    cluster: SimKafka
    network: Network
    audit: Audit
    random: Random
    partitions: int
    chunk_records: int
    max_poll_records: int
    queue_records: int
    commit_interval_s: float
    commit_max_bytes: int
    commit_deadline_s: float
    session_s: float
    delete_keys: Callable[[], None] = lambda: None


class Node:
    """One machine."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.disk = Disk()
        self.disk.on_write = world.audit.written
        self.clock = FakeClock()
        self.blocking_s = (0.0002, 0.003)
        self.process: Process | None = None
        self.dead: list[Process] = []
        self.worker: Worker | None = None
        self.source: FakeSource | None = None
        self._world = world
        self._lives = 0

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        """Start a process; what the disk holds is there."""
        self._lives += 1
        process = self.process = Process(self._world.loop, f"{self.name}.{self._lives}")
        process.blocking_s = lambda: self._world.random.uniform(*self.blocking_s)
        self._world.audit.note(f"starts {process.name}")
        process.spawn(self._main(process), name="main").add_done_callback(self._ended)

    def kill(self, *, finishes: bool, tears: bool) -> None:
        """Kill the process; a blocking write that is under way `finishes` or doesn't, a load may be torn."""
        process, self.process = self.process, None
        self.worker = self.source = None
        if process is None:
            return
        self._world.audit.note(f"kills {process.name}")
        self.disk.tears = tears
        process.kill(lambda: finishes)
        self.disk.tears = False
        self.dead.append(process)

    async def stop(self) -> None:
        """End the process as SIGTERM does."""
        process = self.process
        if process is None or self.worker is None:
            return
        self._world.audit.note(f"stops {process.name}")
        stopping = process.spawn(self._stop(), name="stop")
        await asyncio.wait([stopping])
        if self.process is process:
            self.kill(finishes=True, tears=False)

    async def _stop(self) -> None:
        worker, source = self.worker, self.source
        if worker is not None:
            await worker.stop(STOP_S)
        if source is not None:
            await source.close()

    def _ended(self, main: asyncio.Task[None]) -> None:
        if not main.cancelled() and main.exception() is not None:
            self._world.audit.violated(f"progress: a worker ended: {main.exception()!r}")

    async def _main(self, process: Process) -> None:
        world = self._world
        stores = self.disk.cache(process)
        for files in self.disk.files():
            await stores.open(files.store, files.partition)
        logs = FakeLogs(world.cluster, world.network, chunk_records=world.chunk_records)

        def on_disk() -> dict[TopicPartition, int]:
            found: dict[TopicPartition, int] = {}
            for _, partition, held in stores.opened():
                position = held.position()
                if position is not None:
                    source = TopicPartition(app.INPUT, partition)
                    found[source] = found.get(source, 0) + position.changelog_offset
            return found

        def failed(error: BaseException) -> None:
            world.audit.violated(f"a task of {process.name} failed: {error!r}")

        sink = _LateSink()
        self.worker = worker = Worker(
            [_spec(world)],
            source=sink,
            services=TaskServices(
                group=WatchedGroup(FakeGroupView(world.cluster, world.network), world.audit),
                logs=logs,
                owners=FakeOwners(app.OWNERS, logs),
                restorer=Restorer(logs, self.clock, clock_skew_margin_ms=SKEW_MARGIN_MS),
                stores=stores,
                sink=sink,
                clock=self.clock,
                resolve_output=lambda topic: OutputTopic(topic, str.encode, str.encode, 1_000_000),
                encode_owner=lambda record: encode_owner(app.OWNERS, record),
            ),
            task_settings=_task_settings(world, process.name),
            settings=WorkerSettings(revoke_s=REVOKE_S),
            task_log=lambda spec, partition, identity: self._task_log(partition, identity),
            on_failure=failed,
        )
        self.source = sink.source = FakeSource(
            world.cluster,
            world.network,
            FakeGroupSettings(
                self.name,
                session_s=world.session_s,
                heartbeat_s=world.session_s / 3,
                max_poll_records=world.max_poll_records,
            ),
            [app.INPUT],
            on_disk=on_disk,
            assigned=worker.assigned,
            revoked=worker.revoked,
            room=worker.room,
            lost=worker.lost,
            failed=failed,
        )
        self.source.open()
        await worker.run()

    def _task_log(self, partition: int, identity: Identity) -> WatchedLog:
        world = self._world
        log = FakeTaskLog(
            world.cluster,
            world.network,
            transactional_id=app.transactional_id(partition),
            transaction_timeout_s=world.commit_deadline_s + 7.0,
            commit_deadline_s=world.commit_deadline_s,
        )
        return WatchedLog(log, world.audit, identity)


class _LateSink:
    """The source, for a worker that is made before it."""

    source: FakeSource

    def start_from(self, source: TopicPartition, offset: int) -> None:
        self.source.start_from(source, offset)

    def stop_delivery(self, source: TopicPartition) -> None:
        self.source.stop_delivery(source)

    def has_room(self) -> None:
        self.source.has_room()

    def position(self, source: TopicPartition) -> int | None:
        return self.source.position(source)

    def check(self) -> None:
        self.source.check()

    async def poll(self, wanted: Any, timeout_s: float) -> Any:
        return await self.source.poll(wanted, timeout_s)


def _spec(world: World) -> ActorSpec:
    stores, handler = app.make_handler()
    changelogs = {}
    for store in app.STORES:
        topic = world.cluster.topic(app.changelog(store))
        changelogs[store] = Changelog(store, topic.name, topic.topic_id, DELETE_RETENTION_MS, 1_000_000)
    return ActorSpec(
        name=app.ACTOR,
        topic=app.INPUT,
        partition_count=world.partitions,
        handler=handler,
        decode_key=bytes.decode,
        decode_value=bytes.decode,
        stores=stores,
        changelogs=changelogs,
    )


def _task_settings(world: World, worker: str) -> TaskSettings:
    return TaskSettings(
        worker=worker,
        address=f"http://{worker}",
        policy=CommitPolicy(interval_s=world.commit_interval_s, max_bytes=world.commit_max_bytes),
        rules=StartRules(ResetPolicy.EARLIEST, exactly_once=True, allow_reprocessing=False, allow_lost_input=False),
        backoff=Backoff(),
        queue_records=world.queue_records,
        checkpoint_refresh_s=10.0,
        exactly_once=True,
    )
