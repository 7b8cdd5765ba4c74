"""Runs the actors of an app inside a Faust worker: checks everything, joins the group, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from faust.utils.terminal import SpinnerHandler
from mode import Service

from actors._core.logs import escaping
from actors._faust.extensions import StartingWorker
from actors._faust.inputs import check_parked, ensure_repartitions, purge
from actors._faust.setup import Setup
from actors._faust.standbys import ask_if_unheard, lags, make_standbys, on_disk
from actors._faust.startup.needs import check_needs, topic_needs
from actors._faust.startup.open_commands import warn_open_commands
from actors._faust.startup.open_files import require_open_files, warn_open_files
from actors._faust.startup.progress import Announcer, reminding
from actors._faust.startup.refusal import refuse
from actors._faust.startup.registry import StoreRegistry
from actors._faust.startup.topic_settings import check_topic_settings
from actors._faust.views import View
from actors._kafka.admin.broker_time import BROKER_TIME_CONFIG, broker_time_ms, require_broker_time
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.owners import KafkaOwners, encode_owner
from actors._kafka.admin.topics import Topics
from actors._kafka.consume.assignor import ActorAssignor
from actors._kafka.consume.consumer import KafkaSource
from actors._kafka.consume.logs import KafkaLogs
from actors._kafka.consume.silence import Silence
from actors.declare.host import DeclaredApp
from actors.declare.options import milliseconds
from actors.declare.publishing import ensure_published
from actors.errors import ActorsError, ConfigurationError, TaskError
from actors.ports import Identity, SourceEvents, TopicPartition
from actors.runtime.blocking import LoopWatch
from actors.runtime.cancellation import end, is_cancelled
from actors.runtime.clock import compare, watch
from actors.runtime.committer import Committer
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.meters import WorkerMeters
from actors.runtime.observe.late import report_late
from actors.runtime.pauses import follow_pauses
from actors.runtime.replicas.standby_state import StandbyState
from actors.runtime.replicas.standbys import Standbys
from actors.runtime.spec import ActorSpec, TaskServices
from actors.runtime.state.restore import Restorer
from actors.runtime.state.stores import StoreCache
from actors.runtime.task.former_owners import settle_claims
from actors.runtime.task.task import Task
from actors.runtime.worker import LateSource, Worker, WorkerSettings
from stores.errors import ForeignDatabaseError, StoreError, StoreUnavailableError
from stores.folder import DataFolder, if_copied
from stores.ports import PartitionStore
from stores.rocks import RocksStore
from stores.rocks_options import RocksResources

logger = escaping(logging.getLogger(__name__))
for _fausts in ("faust.app.base", "faust.worker", "mode.services", "mode.worker"):
    # They log the error that ends the worker, with all that led to it.
    escaping(logging.getLogger(_fausts))

STOP_S = 4.0
"""With what Faust itself needs, a worker is gone 5 s after SIGTERM, whatever its handlers and brokers do."""
TASKS_STOP_S = 2.0
SETTLE_S = 0.5
EXTENSION_STOP_S = 0.5


class ActorService(Service):  # type: ignore[misc]
    """The service; one per app and process.

    Attributes:
        worker: what runs the tasks, None before it has started.
        setup: the app's settings as this worker has read them, None before it has.
    """

    def __init__(self, app: Any, **options: Any) -> None:
        self.app: DeclaredApp = app
        self.setup: Setup | None = None
        self.worker: Worker | None = None
        self._source: KafkaSource | None = None
        self._late = LateSource()
        self._standbys: Standbys | None = None
        self._control: ControlPlane | None = None
        self._folder: DataFolder | None = None
        self._cache: StoreCache | None = None
        self._committer: Committer | None = None
        self._views: list[View[Any, Any]] = []
        self._opening: asyncio.Task[None] | None = None
        self._dispatcher: asyncio.Task[None] | None = None
        self._loop_watch: LoopWatch | None = None
        self._watches: list[asyncio.Task[None]] = []
        self.meters = WorkerMeters()
        self._announcer: Announcer | None = None
        super().__init__(**options)

    @property
    def tasks(self) -> list[Task]:
        """The tasks that this worker owns now."""
        return (
            [] if self.worker is None else sorted(self.worker.tasks, key=lambda task: (task.spec.name, task.partition))
        )

    @property
    def silence(self) -> Silence | None:
        """Since when brokers haven't answered, None before the worker has asked to join the group."""
        return None if self._source is None else self._source.silence

    @property
    def is_broken(self) -> bool:
        """Whether the dispatcher ended although the worker isn't stopping."""
        return self._dispatcher is not None and self._dispatcher.done() and not self.should_stop

    def end_offset(self, source: TopicPartition) -> int | None:
        """Return the end of an input partition as the last fetch saw it."""
        return self._late.end_offset(source)

    def position(self, source: TopicPartition) -> int | None:
        """Return the offset of an input partition that is fetched next."""
        return self._late.position(source)

    @property
    def copies(self) -> list[StandbyState]:
        """The copies that this worker keeps of partitions that others own."""
        return [] if self._standbys is None else self._standbys.copies

    @property
    def assigned_copies(self) -> dict[str, dict[str, int]]:
        """By actor and role, of how many partitions this worker shall keep copies."""
        return {} if self._standbys is None else self._standbys.assigned()

    def is_leader(self) -> bool:
        """Return whether this worker owns the first actor's first partition."""
        first = min(self.app.actors, default=None)
        return any(task.spec.name == first and task.partition == 0 and task.epoch for task in self.tasks)

    async def connect(self) -> None:
        """Reach the broker, before anything of Faust's tries to."""
        try:
            setup = self.setup = Setup(self.app)
            setup.check_settings()
            require_open_files(max((len(one.stores) for one in self.app.actors.values()), default=0))
            control = self._control = await ControlPlane.open(setup.connection, setup.group)
            await control.require_versions()
            user = setup.connection.principal or "the principal of its certificate"
            logger.info("connected as %s; brokers: %d", user, control.broker_count)
        except ActorsError as error:
            refuse(self.app, error)

    async def on_start(self) -> None:
        """Check settings, folder and topics, and join the group.

        Raises:
            ActorsError: one clear reason why the worker can't run.
        """
        _spare_debug_messages()
        self._opening = asyncio.create_task(self._open(), name="actors start")
        try:
            await self._opening
        except asyncio.CancelledError:
            if not self.should_stop or is_cancelled():
                await end(self._opening)
                await self._close()
                raise
            # A signal came during the start: `on_stop` has ended it, and closes.
        except (ActorsError, StoreError) as error:
            await self._close()
            refuse(self.app, error)
        except BaseException:
            await self._close()
            raise

    async def on_stop(self) -> None:
        """Commit what was handled, leave the group, close the stores."""
        try:
            async with asyncio.timeout(STOP_S):
                # A start that went on would join the group after it was left, and stay in it until its session ends.
                await end(self._opening)
                await self._close()
        except TimeoutError:
            logger.error("stopping took longer than %g s: what isn't committed will be handled again", STOP_S)

    # --- start -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._control is None or self.setup is None:
            await self.connect()
        setup = self.setup
        if self._control is None or setup is None:
            raise AssertionError("connect() gives a connection or ends the worker")
        folder = self._folder = DataFolder.open(setup.folder, app=self.app.conf.id)
        topics = setup.topics(self._control)
        needs = topic_needs(setup)
        async with reminding("waiting for what the brokers say of the app's topics and permissions"):
            await check_needs(setup, self._control, topics, needs)
            await topics.ensure_plain(setup.plain(), setup.changelog_settings.replication_factor)
            made = await ensure_repartitions(self.app, topics, setup.changelog_settings.replication_factor)
            # A broker that is asked next needn't know yet what another worker has just made.
            found = made | await setup.check_topics(topics)
        logs = KafkaLogs(setup.connection, self._control)
        owners = KafkaOwners(setup.owners_topic, logs)
        own_id = setup.transactional_id(folder.id)
        committer = self._committer = Committer(
            setup.writer(own_id, if_copied(setup.folder)),
            self.app.actor_options.commit_max_bytes,
            longest_rest_s=float(self.app.conf.broker_commit_interval),
            knows=self._control.knows,
        )
        # What a killed process of this data folder left open would hold back the registry.
        async with reminding("waiting for the coordinator of this worker's transactions"):
            await committer.fence()
        changelogs = await self._ensure_changelogs(
            setup, topics, found, StoreRegistry(setup, topics, logs, owners, self.app.actor_clock), owners
        )
        await setup.ensure_replies(topics)
        await ensure_published(setup, topics, found)
        outputs = await setup.outputs(topics)
        specs = await setup.specs(found, changelogs, topics)
        await check_topic_settings(setup, topics, needs, broker_count=self._control.broker_count)
        warn_open_commands(specs)
        warn_open_files(specs, self._control.broker_count)
        resources = RocksResources(
            block_cache_bytes=self.app.actor_options.rocksdb_cache_bytes,
            write_buffer_bytes=self.app.actor_options.rocksdb_write_buffer_bytes,
            databases=sum(spec.partition_count * len(spec.stores) for spec in specs),
        )
        cluster = await self._control.cluster_id()
        cache = self._cache = StoreCache(
            _opener(folder, resources, cluster, specs, is_any_cluster=setup.lost_changelog.restores),
            folder.discard,
        )
        async with reminding("waiting for the databases on this disk to be opened"):
            await self._open_stores(folder, cache, specs)
        await self._open_views(setup)
        if not specs:
            return
        self.meters.started_at_ms = self.app.actor_clock.wall_ms()
        self._start_worker(setup, specs, logs, owners, outputs, own_id)
        await self._start_extensions(setup, specs, owners)
        await self._join(setup, specs)
        _collect_seldom()
        self._watch_loop()
        worker = self.worker
        if worker is not None:
            self._dispatcher = asyncio.create_task(worker.run(), name="actors dispatcher")
            self._dispatcher.add_done_callback(self._dispatched)
            pauses = follow_pauses(owners, lambda: worker.tasks, self.app.actor_clock)
            self._watches.append(asyncio.create_task(pauses, name="actors pauses"))
            late = report_late(lambda: worker.tasks, self.app.actor_clock)
            self._watches.append(asyncio.create_task(late, name="actors late records"))
            if made:
                self._watches.append(asyncio.create_task(purge(topics, made, worker.tasks), name="actors purge"))

    async def _ensure_changelogs(
        self,
        setup: Setup,
        topics: Topics,
        inputs: Mapping[str, TopicInfo],
        registry: StoreRegistry,
        owners: KafkaOwners,
    ) -> dict[str, TopicInfo]:
        """Make the changelogs that are missing once it is certain that they are this app's, and check the others."""
        settings = setup.changelog_settings
        await topics.ensure_compacted({setup.owners_topic: 1}, settings, BROKER_TIME_CONFIG)
        require_broker_time(setup.owners_topic, (await topics.configs([setup.owners_topic]))[setup.owners_topic])
        await self._watch_clock(setup)
        if self._control is None or self._committer is None:
            raise AssertionError("the worker connects first")
        async with reminding("waiting for the registry of the app's stores"):
            await settle_claims(self._control, owners, self._committer.new_log(), self.app.actor_clock)
            await registry.claim()
        await check_parked(self.app, topics, inputs)
        changelogs = await topics.ensure_compacted(setup.compacted(inputs), settings, kept_ms=setup.kept_ms())
        await registry.confirm(changelogs)
        return changelogs

    async def _watch_clock(self, setup: Setup) -> None:
        """Compare the clock with the brokers' before anything is decided by its age, and go on in the background."""

        async def ask() -> int | None:
            return await broker_time_ms(setup.connection, setup.owners_topic)

        await compare(self.app.actor_clock, ask)
        self._watches.append(asyncio.create_task(watch(self.app.actor_clock, ask), name="actors clock"))

    async def _open_views(self, setup: Setup) -> None:
        """Open the app's views, so that handlers find them at their topics' ends."""
        for view in self.app.views:
            self._views.append(view)
            async with reminding(f"waiting for the view of topic {view.topic}, which is read to its end"):
                await view.open_in_worker(self.app, setup.views_folder)

    async def _open_stores(self, folder: DataFolder, cache: StoreCache, specs: list[ActorSpec]) -> None:
        """Open what is on disk: the assignment prefers partitions whose state is here."""
        for spec in specs:
            for store in spec.stores:
                for partition in folder.partitions_on_disk(store.name):
                    if partition < spec.partition_count:
                        await _try_open(cache, store.name, partition)

    def _start_worker(
        self,
        setup: Setup,
        specs: list[ActorSpec],
        logs: KafkaLogs,
        owners: KafkaOwners,
        outputs: Callable[[Any], OutputTopic],
        own_id: str | None,
    ) -> None:
        if self._control is None or self._cache is None or self._committer is None:
            raise AssertionError("the worker starts after its parts")
        clock = self.app.actor_clock
        margin_ms = milliseconds(self.app.actor_options.clock_skew_margin)
        services = TaskServices(
            group=self._control,
            logs=logs,
            owners=owners,
            restorer=Restorer(
                logs,
                clock,
                clock_skew_margin_ms=margin_ms,
                snapshots=setup.snapshots,
                lost=setup.lost_changelog,
                are_owners_fenced=setup.exactly_once,
            ),
            stores=self._cache,
            sink=self._late,
            clock=clock,
            resolve_output=outputs,
            encode_owner=lambda record: encode_owner(setup.owners_topic, record),
            asks=self.app.asks if setup.answers else None,
            release=self._release_standby,
            former_id=setup.former_id if setup.exactly_once else None,
        )
        self.worker = Worker(
            specs,
            source=self._late,
            services=services,
            task_settings=setup.task_settings(own_id),
            settings=WorkerSettings(revoke_s=self.app.actor_options.revoke_timeout.total_seconds()),
            member=self._committer.member,
            task_log=self._committer.new_log,
            on_failure=self._fail,
            meters=self.meters,
        )
        self._standbys = make_standbys(
            setup,
            specs,
            worker=self.worker,
            stores=self._cache,
            control=self._control,
            restorer=services.restorer,
            clock=clock,
            ask_for_rebalance=self._ask_for_rebalance,
        )
        outages = setup.connection.outages
        self._announcer = Announcer(self.worker, group=setup.group, away=lambda: outages.away)
        self._announcer.start()

    async def _start_extensions(self, setup: Setup, specs: list[ActorSpec], owners: KafkaOwners) -> None:
        if self._control is None or self.worker is None or self._standbys is None:
            raise AssertionError("extensions start after the worker's parts")
        parts = StartingWorker(
            setup=setup,
            specs=specs,
            worker=self.worker,
            standbys=self._standbys,
            control=self._control,
            owners=owners,
        )
        for extension in self.app.extensions.values():
            await extension.start(parts)

    async def _join(self, setup: Setup, specs: list[ActorSpec]) -> None:
        worker, cache, standbys, folder = self.worker, self._cache, self._standbys, self._folder
        if worker is None or cache is None or standbys is None or folder is None:
            raise AssertionError("the group is joined last")
        assignor = ActorAssignor(
            instance_id=setup.instance_id or "",
            address=setup.address,
            actors={topic: spec.name for spec in specs for topic in spec.topics},
            on_disk=lambda: on_disk(setup, specs, cache, self.app.actor_clock),
            lags=lambda: lags(specs, worker, standbys),
            declared=[spec.declared for spec in specs],
            rules=setup.placement_rules(),
            leaving=lambda: worker.leaving,
            transactional_id=setup.transactional_id(folder.id) or "",
        )

        def assigned(
            identity: Identity, partitions: list[TopicPartition], handed_over: frozenset[TopicPartition]
        ) -> None:
            contested = sorted(assignor.contested & {source.topic for source in partitions})
            if contested:
                self._fail(_contested(contested))
                return
            # Copies of what is assigned are let go before its tasks exist.
            standbys.assign(assignor.copies)
            worker.assigned(identity, partitions, handed_over)

        async def revoked() -> None:
            await worker.revoked()
            await self._settle()

        standbys.start()
        self._late.source = self._source = await KafkaSource.open(
            setup.connection,
            setup.group_settings,
            [topic for spec in specs for topic in spec.topics],
            assignor,
            SourceEvents(
                joining=worker.joining,
                revoked=revoked,
                assigned=assigned,
                handed_over=worker.handed_over,
                dropped=worker.dropped,
                room=worker.room,
                lost=worker.lost,
                failed=self._fail,
                counted=self._counted,
            ),
        )
        ask_if_unheard(specs, assignor, self._ask_for_rebalance)

    def _counted(self, counts: Mapping[str, int]) -> None:
        if self.worker is not None and self.setup is not None:
            self.worker.grown(counts)
            self.setup.grown(counts)

    async def _release_standby(self, actor: str, partition: int) -> None:
        if self._standbys is not None:
            await self._standbys.release(actor, partition)

    def _ask_for_rebalance(self) -> None:
        if self._source is not None:
            self._source.ask_for_rebalance()

    # --- while it runs ---------------------------------------------------------------------------------------------

    def _dispatched(self, dispatcher: asyncio.Task[None]) -> None:
        """Notice the dispatcher's end: a loop that ended in silence would leave an idle worker."""
        if dispatcher.cancelled() or self.worker is None:
            return
        error = dispatcher.exception()
        if error is not None:
            self._fail(error)
        elif not self.should_stop:
            self._fail(RuntimeError("the dispatcher ended although the worker runs"))

    def _watch_loop(self) -> None:
        session_s = float(self.app.conf.broker_session_timeout)
        held_up = {} if self.worker is None else {"on_overlong": self.worker.held_up}
        self._loop_watch = LoopWatch(warn_after_s=min(2.0, session_s / 4), session_timeout_s=session_s, **held_up)
        self._loop_watch.start()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, ActorsError):
            logger.critical("%s", error)
        self.add_future(self.crash(error))

    # --- stop ------------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        if self._announcer is not None:
            self._announcer.stop()
        for name, extension in self.app.extensions.items():
            try:
                async with asyncio.timeout(EXTENSION_STOP_S):
                    await extension.stop()
            except Exception:
                # The worker commits in any case.
                logger.exception("extension %s didn't stop", name)
        try:
            if self.worker is not None:
                await self.worker.stop(TASKS_STOP_S)
                await self._settle()
        finally:
            await self._close_parts()

    async def _settle(self) -> None:
        """Leave nothing behind that the next owners would have to wait for."""
        if self._committer is not None:
            with contextlib.suppress(TaskError, TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self._committer.settle()

    async def _close_parts(self) -> None:
        if self._loop_watch is not None:
            self._loop_watch.stop()
        await end(*self._watches)
        if self._source is not None:
            # Before the copies, which may take long to stop: until then nobody else gets this worker's partitions.
            await self._source.close()
        if self._standbys is not None:
            await self._standbys.stop()
        if self._dispatcher is not None:
            await asyncio.wait([self._dispatcher], timeout=0.3)
            self._dispatcher.cancel()
        while self._views:
            await self._views.pop().close()
        await self.app.close_asks()
        for part in (self._committer, self._control):
            if part is not None:
                await part.close()
        if self._cache is not None:
            self._cache.close()
        if self._folder is not None:
            self._folder.close()


def _contested(topics: list[str]) -> ConfigurationError:
    """Return why a worker ends that gets partitions which another program had: only its start reads the registry."""
    return ConfigurationError(
        f"topic {', '.join(topics)}: another program under this app's id had its partitions, and this worker would "
        "take them over now that the other's workers have gone. The worker ends instead: start it again, and its "
        "program is compared with the leader registry"
    )


async def _try_open(cache: StoreCache, store: str, partition: int) -> None:
    """Open a store; one that can't be used is no reason not to start: its owner tries again, or stops."""
    try:
        await cache.open(store, partition)
    except (StoreUnavailableError, ForeignDatabaseError) as error:
        logger.warning("store %s, partition %d isn't counted as being on this disk: %s", store, partition, error)


def _collect_seldom() -> None:
    """Let the garbage collector look seldom: a fetch makes thousands of objects, none of them in a cycle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _opener(
    folder: DataFolder, resources: RocksResources, cluster: str, specs: Iterable[ActorSpec], *, is_any_cluster: bool
) -> Callable[[str, int], PartitionStore]:
    changelog_ids = {name: changelog.topic_id for spec in specs for name, changelog in spec.changelogs.items()}

    def open_store(store: str, partition: int) -> PartitionStore:
        return RocksStore.open(
            folder.store_path(store, partition),
            resources=resources,
            identity=folder.identity(store, partition, cluster),
            changelog_id=changelog_ids.get(store),
            is_any_cluster=is_any_cluster,
        )

    return open_store


def _spare_debug_messages() -> None:
    """Disable the Kafka client's debug messages, several for each request, unless a handler logs them.

    Faust sets the root logger to DEBUG, so that its spinner turns with each message, and never back: a quarter of what
    a lone commit costs the worker.
    """
    read = [handler.level for handler in logging.root.handlers if not isinstance(handler, SpinnerHandler)]
    client = logging.getLogger("aiokafka")
    if read and client.level == logging.NOTSET:
        client.setLevel(min(read))
