"""A machine of the simulation: a disk and a clock that stay, and processes that run the real worker and die."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random

from actors._core.backoff import Backoff
from actors._core.group.placement import PlacementRules
from actors._core.task.commit import CommitPolicy
from actors._core.task.policy import STOP_ON_ERROR
from actors._core.task.takeover import ResetPolicy, StartRules
from actors._kafka.admin.owners import KafkaOwners, encode_owner
from actors.errors import BrokerUnavailableError, ConfigurationError, LostChangelogError, RestoreError
from actors.ports import Identity, SourceEvents, TopicPartition, Writer
from actors.runtime.clock import compare
from actors.runtime.committer import Committer
from actors.runtime.message.context import Context as ActorContext
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.pauses import follow_pauses
from actors.runtime.spec import ActorSpec, InputSpec, TaskServices, TaskSettings
from actors.runtime.state.restore import Changelog, Restorer
from actors.runtime.state.stores import StoreCache
from actors.runtime.worker import LateSource, Worker
from actors.testing.fakes.log import PartitionLog
from actors.testing.fakes.ports import FakeGroupView, FakeLogs, FakeWriter
from stores.errors import ForeignDatabaseError
from tests.sim import app
from tests.sim.asks import AsksPart
from tests.sim.audit import Audit
from tests.sim.copies import NodeCopies, writes_copy
from tests.sim.fakes.clock import MachineClock
from tests.sim.fakes.cluster import SimKafka
from tests.sim.fakes.disk import Disk, Files
from tests.sim.fakes.group import LostMembershipError
from tests.sim.fakes.loop import Process, VirtualLoop, current_process
from tests.sim.fakes.network import Network
from tests.sim.fakes.source import FakeGroupSettings, FakeSource
from tests.sim.merging import InputOrder
from tests.sim.methods import methods_of
from tests.sim.model import Model
from tests.sim.park import ParkPart
from tests.sim.part import Handler, Host
from tests.sim.pauses import Pausing
from tests.sim.starts import SimRegistry, answered, setup_of, start
from tests.sim.watched import WatchedGroup, WatchedLog, WatchedWriter

DELETE_RETENTION_MS = 60_000
SKEW_MARGIN_MS = 10_000
REVOKE_S = 3.0
STOP_S = 5.0
FOLDED = "~log"
"""Ends the name of a store that has a log's content while it is compared with a store."""
SUPERVISED_S = 1.0
"""How long after its end a process is started again by what supervises it."""


@dataclass
class World:
    """What all nodes share. `features` are what is in this run beside faults (see `tests.sim.simulation.FEATURES`).

    `appended_s` says when each record of a log came there. `clock_ahead_ms` is the most that any worker's time may have
    been ahead so far: processes know the brokers' time, and go by no clock that is ahead of it by more than the margin.
    """

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
    features: frozenset[str]
    deployment: app.Deployment
    model: Model
    concurrency: int = 1
    placement: PlacementRules = field(default_factory=PlacementRules)
    clock_ahead_ms: int = 0
    pausing: Pausing | None = None
    max_task_idle_s: float = 0.0
    attempts: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    delete_keys: Callable[[], None] = lambda: None
    appended_s: defaultdict[PartitionLog, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def note_append(self, log: PartitionLog, base: int) -> None:
        """Note when records came to a log."""
        self.appended_s[log].update(dict.fromkeys(range(base, log.end), self.loop.time()))

    @property
    def stores(self) -> tuple[str, ...]:
        """The names of all stores."""
        return app.STORES + self.model.stores

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the actor's inputs."""
        return app.INPUTS if "inputs" in self.features else app.INPUTS[:1]

    @property
    def sources(self) -> list[TopicPartition]:
        """All partitions of all inputs."""
        return [TopicPartition(topic, partition) for topic in self.inputs for partition in range(self.partitions)]

    def is_given_up(self, source: TopicPartition) -> bool:
        """Whether no copy has all that was committed: what is left is an operator's choice of what to lose."""
        error = self.audit.stops.get(source)
        is_behind = "restore_older" in str(error) or "has no copy" in str(error)
        return isinstance(error, LostChangelogError) and is_behind and self.deployment.lost_changelog.restores

    def set_clock(self, clock: MachineClock, offset_ms: int) -> None:
        """Set a machine's clock, and note how far any has ever been ahead."""
        clock.wall_offset_ms = offset_ms
        self.clock_ahead_ms = max(self.clock_ahead_ms, min(offset_ms, SKEW_MARGIN_MS))

    def control(self, partition: int, key: bytes, what: str) -> None:
        """Have what is parked of a key tried again."""
        told = json.dumps({"actor": app.ACTOR, "what": what, "command": "retry"}).encode()
        self.audit.note(f"CONTROL {key!r} of partition {partition}: {told!r}")
        source = TopicPartition(app.INPUT, partition)
        self.cluster.produce(source, [(key, told, [(app.CONTROL_HEADER, told)])])


class Node:
    """One machine."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._machines = 0
        self.disk = self._machine(world)
        self._copies: dict[Process | None, NodeCopies] = {}
        self.clock = MachineClock()
        self.blocking_s = (0.0002, 0.003)
        self.process: Process | None = None
        self.keeps = True
        self.dead: list[Process] = []
        self.left_behind: list[Process] = []
        self.worker: Worker | None = None
        self.source: FakeSource | None = None
        self._world = world
        self._lives = 0
        self.refusals = 0
        self.lacks_changelog = False

    def _machine(self, world: World) -> Disk:
        disk = Disk()
        self._machines += 1
        disk.transactional_id = f"app:worker:{self.name}.{self._machines}"
        disk.on_write, disk.on_delete = self._written, self._deleted
        return disk

    def _deleted(self, files: Files) -> None:
        if not (files.is_damaged or files.store.endswith(FOLDED)):
            where = f"{self.name} {files.store}[{files.partition}]"
            self._world.audit.violated(f"kept: {where} is deleted, and there was nothing wrong with it")

    def _written(self, kind: str, files: Files) -> None:
        """Have a write looked at. A copy on its way is like a restore: compaction took what came in between."""
        if files.store.endswith(FOLDED):
            return
        if writes_copy():
            process = current_process()
            if process in self._copies:
                self._copies[process].check_write(files.partition)
            self._world.audit.written("load" if kind == "apply" else kind, files, is_copy=True)
        else:
            self._world.audit.written(kind, files)

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        """Start a process; what the disk holds is there."""
        self._lives += 1
        if "earlier" in self._world.features:
            self.keeps = self._world.random.random() < 0.5
        process = self.process = Process(self._world.loop, f"{self.name}.{self._lives}")
        before, self.clock = self.clock, MachineClock()
        self.clock.wall_offset_ms = before.wall_offset_ms
        process.blocking_s = lambda: self._world.random.uniform(*self.blocking_s)
        self._world.audit.note(f"starts {process.name}")
        self.lacks_changelog = False
        process.spawn(self._main(process, self.clock), name="main").add_done_callback(self._ended)

    def kill(self, *, finishes: bool, loses_loads: Callable[[int], int] = lambda _: 0) -> None:
        """Kill the process; a blocking write that is under way `finishes` or doesn't. See `Disk.lose_loads`."""
        process, self.process = self.process, None
        self.worker = self.source = None
        if process is None:
            return
        self._world.audit.note(f"kills {process.name}")
        process.kill(lambda: finishes)
        self.disk.lose_loads(loses_loads)
        self.dead.append(process)

    def move(self) -> Process | None:
        """Start the next process on an empty machine, although the last one, which is given, may still be there."""
        process, self.process = self.process, None
        if process is not None:
            self._world.audit.note(f"leaves {process.name} behind")
            self.left_behind.append(process)
        self.worker = self.source = None
        self.disk = self._machine(self._world)
        self.start()
        return process

    def forget(self, process: Process) -> None:
        """Kill a process that was left behind."""
        if process in self.left_behind:
            self.left_behind.remove(process)
            process.kill(lambda: True)
            self.dead.append(process)

    async def stop(self) -> None:
        """End the process as SIGTERM does."""
        process, worker, source = self.process, self.worker, self.source
        if process is None or worker is None or source is None:
            return
        self._world.audit.note(f"stops {process.name}")
        stopping = process.spawn(self._stop(worker, source), name="stop")
        await asyncio.wait([stopping])
        if self.process is process:
            self.kill(finishes=True)

    async def _stop(self, worker: Worker, source: FakeSource) -> None:
        await worker.stop(STOP_S)
        await self._copies[current_process()].stop()
        await source.close()

    def _ended(self, main: asyncio.Task[None]) -> None:
        if not main.cancelled() and main.exception() is not None:
            self._world.audit.violated(f"progress: a worker ended: {main.exception()!r}")

    async def _main(self, process: Process, clock: MachineClock) -> None:
        world, disk = self._world, self.disk
        if not await self._may_start(process, clock):
            return
        stores = disk.cache(process)
        await _open_all(disk, stores)
        await world.model.open(self, process)
        logs = FakeLogs(world.cluster, world.network, chunk_records=world.chunk_records)

        def failed(error: BaseException) -> None:
            if isinstance(error, LostMembershipError):
                self._end(process)
                return
            world.audit.violated(f"a task of {process.name} failed: {error!r}")

        sink = LateSource()
        restorer = _restorer(world, logs, clock)
        order = InputOrder(world)
        spec = _spec(world, Host(process.name, clock), order)
        writer = WatchedWriter(self._writer(), world.audit)
        knows = FakeGroupView(world.cluster, world.network).knows
        committer = Committer(writer, world.commit_max_bytes, longest_rest_s=world.commit_interval_s, knows=knows)
        copies = self._copies[process] = NodeCopies(
            world,
            spec,
            stores=stores,
            restorer=restorer,
            clock=clock,
            margin_ms=SKEW_MARGIN_MS,
            sink=sink,
        )
        services = self._services(logs, restorer, stores, sink, copies, clock)
        worker = copies.worker = Worker(
            [spec],
            source=sink,
            services=services,
            task_settings=_task_settings(world, process.name, disk.transactional_id),
            revoke_s=REVOKE_S,
            member=committer.member,
            task_log=lambda: WatchedLog(committer.new_log(), world.audit),
            on_failure=failed,
        )
        keeps = "standbys" in world.features
        sink.source = self._source_of(worker, copies if keeps else None, lambda: _on_disk(stores), failed)
        order.watch(sink.source)
        world.audit.members[worker] = sink.source
        if self.process is process:
            self.worker, self.source = worker, sink.source
        if keeps:
            copies.start()
        sink.source.open()
        if world.pausing is not None:
            process.spawn(follow_pauses(services.owners, lambda: worker.tasks, clock), name="pauses")
        await worker.run()

    def _source_of(
        self,
        worker: Worker,
        copies: NodeCopies | None,
        on_disk: Callable[[], dict[TopicPartition, int]],
        failed: Callable[[BaseException], None],
    ) -> FakeSource:
        world, audit = self._world, self._world.audit

        def assigned(
            identity: Identity, partitions: list[TopicPartition], handed_over: frozenset[TopicPartition]
        ) -> None:
            audit.assigned(self.name, identity, partitions)
            if "earlier" not in world.features:
                audit.check_given(identity, partitions, worker)
            audit.counted["handed over"] += len(handed_over)
            running = {task.sources[0]: task for task in worker.tasks if not task.has_ended}
            for source in partitions:
                if world.pausing is not None and source not in running:
                    world.pausing.assigned(source.partition)
            worker.assigned(identity, partitions, handed_over)
            if "grow" not in world.features:
                audit.check_kept(running, partitions, worker)

        return FakeSource(
            world.cluster,
            world.network,
            FakeGroupSettings(
                self.name,
                instance_id=self.name if "static" in world.features else None,
                session_s=world.session_s,
                heartbeat_s=world.session_s / 3,
                keeps=self.keeps,
                transactional_id=self.disk.transactional_id,
                max_poll_records=world.max_poll_records,
            ),
            world.inputs,
            on_disk=on_disk,
            events=SourceEvents(
                joining=worker.joining,
                revoked=worker.revoked,
                assigned=assigned,
                handed_over=worker.handed_over,
                dropped=worker.dropped,
                room=worker.room,
                lost=worker.lost,
                failed=failed,
            ),
            leaving=lambda: worker.leaving,
            rules=world.placement,
            lags=None if copies is None else copies.lags,
            copies=None if copies is None else copies.assign,
        )

    async def _check_clock(self, process: Process, clock: MachineClock) -> None:
        """Have the product notice steps of the clock, from before the process looks at anything."""
        world = self._world
        clock.begin_to_check(SKEW_MARGIN_MS)
        checked = clock.checked
        if checked is None:
            return

        async def ask() -> int:
            return int(await answered("the time", lambda: world.network.ask("Produce", world.cluster.wall_ms)))

        async def watch() -> None:
            while True:
                await asyncio.sleep(2.0)
                if checked.off_ms:
                    await compare(checked, ask)

        # An answer that comes late says nothing.
        while not checked.has_heard:
            await compare(checked, ask)
        process.spawn(watch(), name="clock")

    async def _may_start(self, process: Process, clock: MachineClock) -> bool:
        """Check clock and stores as a worker does that starts; one that is refused is started again."""
        if "steps" in self._world.features:
            await self._check_clock(process, clock)
        if "unparking" not in self._world.features or await self._is_let_start(process, clock):
            return True
        self._start_again(process)
        return False

    async def _is_let_start(self, process: Process, clock: MachineClock) -> bool:
        world = self._world
        stores = tuple(store for store in world.stores if store != app.PARKED)
        setup = setup_of(
            stores,
            parks=app.PARKED in world.stores and world.deployment.parks,
            lost_changelog=world.deployment.lost_changelog,
        )
        registry = SimRegistry(setup, world.cluster, world.network, clock, chunk_records=world.chunk_records)
        unparking = world.model.part(ParkPart) if "unparking" in world.features else None
        try:
            await start(registry, world.partitions, DELETE_RETENTION_MS)
        except (ConfigurationError, LostChangelogError) as error:
            world.audit.note(f"{process.name} is refused: {error}")
            world.audit.counted["start refused"] += 1
            self.refusals += 1
            self.lacks_changelog = isinstance(error, LostChangelogError)
            if unparking is not None:
                unparking.refused(str(error))
            return False
        except (BrokerUnavailableError, RestoreError) as error:
            world.audit.note(f"{process.name} can't start: {error}")
            return False
        if unparking is not None:
            unparking.started()
        return True

    def _start_again(self, process: Process) -> None:
        """End a process whose start was refused, and have it started again."""

        async def again() -> None:
            await asyncio.sleep(SUPERVISED_S)
            if not self.is_up:
                self.start()

        if self.process is process:
            self.kill(finishes=True)
            self._world.loop.create_task(again(), context=Context())
        else:
            self.forget(process)

    def _services(
        self,
        logs: FakeLogs,
        restorer: Restorer,
        stores: StoreCache,
        sink: LateSource,
        copies: NodeCopies,
        clock: MachineClock,
    ) -> TaskServices:
        world, asks = self._world, self._world.model.part(AsksPart)
        return TaskServices(
            group=WatchedGroup(FakeGroupView(world.cluster, world.network), world.audit),
            logs=logs,
            owners=KafkaOwners(app.OWNERS, logs),
            restorer=restorer,
            stores=stores,
            sink=sink,
            clock=clock,
            resolve_output=_plain_topic if asks is None else asks.resolve,
            encode_owner=lambda record: encode_owner(app.OWNERS, record),
            asks=None if asks is None else asks.carrier(),
            release=copies.release,
        )

    def _end(self, process: Process) -> None:
        """End a process that can't go on, as it would itself; it is started again."""

        async def end() -> None:
            if self.process is not process:
                self.forget(process)
                return
            await self.stop()
            await asyncio.sleep(SUPERVISED_S)
            if not self.is_up:
                self.start()

        self._world.audit.note(f"ends {process.name}")
        self._world.audit.counted["lost membership"] += 1
        self._world.loop.create_task(end(), context=Context())

    def _writer(self) -> Writer:
        world = self._world
        return FakeWriter(
            world.cluster,
            world.network,
            transactional_id=self.disk.transactional_id,
            transaction_timeout_s=world.commit_deadline_s + 7.0,
            commit_deadline_s=world.commit_deadline_s,
        )


def _plain_topic(topic: str | OutputTopic) -> OutputTopic:
    if isinstance(topic, OutputTopic):
        return topic
    return OutputTopic(topic, str.encode, str.encode, 1_000_000)


async def _open_all(disk: Disk, stores: StoreCache) -> None:
    for place in disk.places():
        with contextlib.suppress(ForeignDatabaseError):
            await stores.open(*place)


def _on_disk(stores: StoreCache) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for _, partition, held in stores.opened():
        position = held.position()
        if position is not None:
            source = TopicPartition(app.INPUT, partition)
            found[source] = found.get(source, 0) + position.changelog_offset
    return found


def _restorer(world: World, logs: FakeLogs, clock: MachineClock) -> Restorer:
    """Make what restores stores: where no changelog loses anything, none may look like it."""
    return Restorer(
        logs,
        clock,
        clock_skew_margin_ms=SKEW_MARGIN_MS,
        lost=world.deployment.lost_changelog,
    )


def _spec(world: World, host: Host, order: InputOrder) -> ActorSpec:
    stores, handler = app.make_handler(is_mended=world.deployment.is_mended, attempts=world.attempts)
    stores, handler, declared = world.model.extended(host, stores, world.audit.around(handler))
    handler = order.around(handler)
    if world.pausing is not None:
        handler = _watched(handler, world.pausing)
    on_error = declared.pop("on_error", STOP_ON_ERROR)
    changelogs = {}
    declared_stores = {store.name for store in stores}
    for store in world.stores:
        if store not in declared_stores:
            continue
        topic = world.cluster.topic(app.changelog(store))
        changelogs[store] = Changelog(
            store, topic.name, topic.topic_id, DELETE_RETENTION_MS, 1_000_000, world.partitions
        )
    return ActorSpec(
        name=app.ACTOR,
        inputs=(
            InputSpec(app.INPUT, handler, bytes.decode, bytes.decode),
            *(_more_input(topic, handler) for topic in world.inputs[1:]),
        ),
        partition_count=world.partitions,
        stores=stores,
        changelogs=changelogs,
        concurrency=world.concurrency,
        misplaced="stop" if "grow" in world.features else None,
        on_error=replace(on_error, then="skip") if world.deployment.skips else on_error,
        max_task_idle=timedelta(seconds=world.max_task_idle_s),
        methods=methods_of(handler),
        **declared,
    )


def _watched(handler: Handler, pausing: Pausing) -> Handler:
    async def handle(ctx: ActorContext, value: str) -> None:
        pausing.handles(ctx.partition)
        await handler(ctx, value)

    return handle


def _more_input(topic: str, handler: Handler) -> InputSpec:
    async def handle(ctx: ActorContext, value: str | None) -> None:
        await handler(ctx, app.GONE if value is None else value)

    return InputSpec(topic, handle, bytes.decode, bytes.decode, tombstones=True)


def _task_settings(world: World, worker: str, transactional_id: str) -> TaskSettings:
    missing = world.deployment.missing_offset
    return TaskSettings(
        worker=worker,
        address=f"http://{worker}",
        policy=CommitPolicy(interval_s=world.commit_interval_s, max_bytes=world.commit_max_bytes),
        rules=StartRules(
            ResetPolicy.EARLIEST,
            allow_reprocessing=world.deployment.allow_reprocessing,
            allow_lost_input=world.deployment.allow_lost_input,
            missing_offset=None if missing is None else ResetPolicy(missing),
            accept_moved=world.deployment.accept_moved,
        ),
        backoff=Backoff(),
        queue_records=world.queue_records,
        checkpoint_refresh_s=10.0,
        transactional_id=transactional_id,
    )
