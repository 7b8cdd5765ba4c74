"""Runs the actors of an app inside a Faust worker: checks everything, joins the group, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faust.utils.terminal import SpinnerHandler
from mode import Service

from actors._core.logs import escaping
from actors._faust.disk import ask_if_unheard, lags, make_cache, on_disk, open_on_disk
from actors._faust.extensions import StartingWorker, WorkerExtension
from actors._faust.inputs import check_parked, purge, send_first
from actors._faust.setup import Setup
from actors._faust.startup.needs import TopicNeed, check_needs, ensure_repartitions, topic_needs
from actors._faust.startup.open_files import require_open_files, warn_open_files
from actors._faust.startup.progress import Announcer, reminding
from actors._faust.startup.refusal import refuse
from actors._faust.startup.registry import StoreRegistry
from actors._faust.startup.topic_settings import check_topic_settings
from actors._kafka.admin.broker_time import BROKER_TIME_CONFIG, broker_time_ms, require_broker_time
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.owners import KafkaOwners, encode_owner
from actors._kafka.admin.topics import Topics
from actors._kafka.consume.assignor import ActorAssignor
from actors._kafka.consume.consumer import KafkaSource
from actors._kafka.consume.logs import KafkaLogs
from actors._kafka.consume.silence import Silence
from actors.declare.host import DeclaredApp
from actors.declare.names import worker_transactional_id
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
from actors.runtime.observe.status import ENGINE
from actors.runtime.pauses import follow_pauses
from actors.runtime.replicas.standbys import Standbys, StandbyState
from actors.runtime.spec import ActorSpec, TaskServices
from actors.runtime.state.restore import Restorer
from actors.runtime.state.stores import StoreCache
from actors.runtime.task.former_owners import settle_claims
from actors.runtime.task.lost_changelog import StandbyChecks
from actors.runtime.task.task import Task
from actors.runtime.worker import LateSource, Worker
from stores.errors import StoreError
from stores.folder import DataFolder, if_copied

logger = escaping(logging.getLogger(__name__))
for _fausts in ("faust.app.base", "faust.worker", "mode.services", "mode.worker"):
    # They log the error that ends the worker, with all that led to it.
    escaping(logging.getLogger(_fausts))

STOP_S = 7.0
"""With what Faust itself needs, a worker is gone 8 s after SIGTERM, whatever its handlers and brokers do."""
TASKS_STOP_S = 5.0
"""A busy machine needs more than 2 s for last commits; what is cut off there repeats calls that had ended."""
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
        self._connected: tuple[Setup, ControlPlane] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._dispatcher: asyncio.Task[None] | None = None
        self._exits = contextlib.AsyncExitStack()
        self._disk = contextlib.ExitStack()
        self._is_late = False
        self.meters = WorkerMeters()
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
    def is_open(self) -> bool:
        """Return whether all that runs here has started, the worker's place in the group excepted."""
        return self._opening is not None and self._opening.done()

    @property
    def is_broken(self) -> bool:
        """Return whether the dispatcher ended although the worker isn't stopping."""
        return self._dispatcher is not None and self._dispatcher.done() and not self.should_stop

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

    async def connect(self) -> tuple[Setup, ControlPlane]:
        """Reach the broker, before anything of Faust's tries to."""
        try:
            setup = self.setup = Setup(self.app)
            setup.check_settings()
            require_open_files(max((len(one.stores) for one in self.app.actors.values()), default=0))
            control = await ControlPlane.open(setup.connection, setup.group)
            self._connected = setup, control
            # Last: neither the group nor the clients wait for databases.
            self._at_end(self._disk.close)
            self._at_end(control.close)
            await control.require_versions()
            user = setup.connection.principal or "the principal of its certificate"
            logger.info("connected as %s; brokers: %d; the engine is %s", user, control.broker_count, ENGINE)
        except ActorsError as error:
            refuse(self.app, error)
        return setup, control

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
                await self._exits.aclose()
                raise
            # A signal came during the start: `on_stop` has ended it, and closes.
        except (ActorsError, StoreError) as error:
            await self._exits.aclose()
            refuse(self.app, error)
        except BaseException:
            await self._exits.aclose()
            raise

    async def on_stop(self) -> None:
        """Commit what was handled, leave the group, close the stores."""
        try:
            async with asyncio.timeout(STOP_S):
                # A start that went on would join the group after it was left, and stay in it until its session ends.
                await end(self._opening)
                await self._exits.aclose()
        except TimeoutError:
            logger.error("stopping took longer than %g s: what isn't committed will be handled again", STOP_S)

    async def _open(self) -> None:
        setup, control = self._connected or await self.connect()
        folder = DataFolder.open(setup.folder, app=self.app.conf.id)
        self._disk.callback(folder.close)
        checked = await self._check_topics(setup, control)
        clients = await self._open_clients(setup, control, checked.topics, folder)
        specs, outputs = await self._specify(clients, checked)
        cache = make_cache(setup, folder, specs, cluster=await control.cluster_id())
        self._disk.callback(cache.close)
        async with reminding("waiting for the databases on this disk to be opened"):
            await open_on_disk(cache, folder, specs)
        await self._open_views(setup)
        if not specs:
            # Of an app without actors only extensions have something to do.
            if any(extension.reads for extension in self.app.extensions.values()):
                await self._start_extensions(self._make_worker(clients, [], cache, outputs))
            return
        self.meters.started_at_ms = self.app.actor_clock.wall_ms()
        parts = self._make_worker(clients, specs, cache, outputs)
        session_s = float(self.app.conf.broker_session_timeout)
        loop_watch = LoopWatch(
            warn_after_s=min(2.0, session_s / 4), session_timeout_s=session_s, on_overlong=parts.worker.held_up
        )
        self._note_end(parts, clients.committer, loop_watch)
        await self._start_extensions(parts)
        await self._join(parts, clients, cache)
        _collect_seldom()
        loop_watch.start()
        self._follow(parts, checked)

    async def _check_topics(self, setup: Setup, control: ControlPlane) -> _Checked:
        topics = setup.topics(control)
        needs = topic_needs(setup)
        async with reminding("waiting for what the brokers say of the app's topics and permissions"):
            await check_needs(setup, control, topics, needs)
            await topics.ensure_plain(setup.plain(), setup.changelog_settings.replication_factor)
            made = await ensure_repartitions(topics, needs, setup.changelog_settings.replication_factor)
            # A broker that is asked next needn't know yet what another worker has just made.
            inputs = made | await setup.check_topics(topics)
        return _Checked(topics, needs, inputs, made)

    async def _open_clients(self, setup: Setup, control: ControlPlane, topics: Topics, folder: DataFolder) -> _Clients:
        logs = KafkaLogs(setup.connection, control)
        owners = KafkaOwners(setup.owners_topic, logs)
        own_id = worker_transactional_id(self.app.conf.id, folder.id)
        committer = Committer(
            setup.writer(own_id, if_copied(setup.folder)),
            self.app.actor_options.commit_max_bytes,
            longest_rest_s=float(self.app.conf.broker_commit_interval),
            knows=control.knows,
        )
        self._at_end(committer.close)
        self._at_end(self.app.close_asks)
        # What a killed process of this data folder left open would hold back the registry.
        async with reminding("waiting for the coordinator of this worker's transactions"):
            await committer.fence()
        return _Clients(setup, control, topics, folder, logs, owners, committer, own_id)

    async def _specify(
        self, clients: _Clients, checked: _Checked
    ) -> tuple[list[ActorSpec], Callable[[Any], OutputTopic]]:
        """Make the topics that are missing, and return the actors and what finds their outputs."""
        setup, topics, inputs = clients.setup, clients.topics, checked.inputs
        registry = StoreRegistry(setup, topics, clients.logs, clients.owners, self.app.actor_clock)
        changelogs = await self._ensure_changelogs(clients, inputs, registry)
        await setup.ensure_replies(topics)
        await ensure_published(self.app, setup.changelog_settings, topics, inputs)
        outputs = await setup.outputs(topics)
        specs = await setup.specs(inputs, changelogs, topics)
        broker_count = clients.control.broker_count
        await check_topic_settings(setup, topics, checked.needs, broker_count=broker_count)
        _warn_open_commands(specs)
        warn_open_files(specs, broker_count)
        return specs, outputs

    async def _ensure_changelogs(
        self, clients: _Clients, inputs: Mapping[str, TopicInfo], registry: StoreRegistry
    ) -> dict[str, TopicInfo]:
        """Compare the program with what is recorded, make the changelogs that are missing, and record them."""
        setup, topics = clients.setup, clients.topics
        settings = setup.changelog_settings
        await topics.ensure_compacted({setup.owners_topic: 1}, settings, BROKER_TIME_CONFIG)
        require_broker_time(setup.owners_topic, (await topics.configs([setup.owners_topic]))[setup.owners_topic])
        await self._watch_clock(setup)
        async with reminding("waiting for the registry of the app's stores"):
            log = clients.committer.new_log()
            await settle_claims(clients.control, clients.owners, log, self.app.actor_clock)
            await registry.check()
        await check_parked(self.app, topics, inputs)
        changelogs = await topics.ensure_compacted(setup.compacted(inputs), settings, kept_ms=setup.kept_ms())
        await registry.confirm(changelogs)
        return changelogs

    async def _watch_clock(self, setup: Setup) -> None:
        """Compare the clock with the brokers' before anything is decided by its age, and go on in the background."""

        async def ask() -> int | None:
            return await broker_time_ms(setup.connection, setup.owners_topic)

        await compare(self.app.actor_clock, ask)
        self._run(watch(self.app.actor_clock, ask), "clock")

    async def _open_views(self, setup: Setup) -> None:
        """Open the app's views, so that handlers find them at their topics' ends."""
        for view in self.app.views:
            self._at_end(view.close)
            async with reminding(f"waiting for the view of topic {view.topic}, which is read to its end"):
                await view.open_in_worker(self.app, setup.views_folder)

    def _make_worker(
        self, clients: _Clients, specs: list[ActorSpec], cache: StoreCache, outputs: Callable[[Any], OutputTopic]
    ) -> StartingWorker:
        setup, logs, owners = clients.setup, clients.logs, clients.owners
        clock = self.app.actor_clock
        margin_ms = milliseconds(self.app.actor_options.clock_skew_margin)
        services = TaskServices(
            group=clients.control,
            logs=logs,
            owners=owners,
            restorer=Restorer(
                logs,
                clock,
                clock_skew_margin_ms=margin_ms,
                snapshots=setup.snapshots,
                lost=setup.lost_changelog,
            ),
            stores=cache,
            sink=self._late,
            clock=clock,
            resolve_output=outputs,
            encode_owner=lambda record: encode_owner(setup.owners_topic, record),
            asks=self.app.asks if setup.answers else None,
            release=self._release_standby,
            command_id=setup.command_id,
        )
        worker = self.worker = Worker(
            specs,
            source=self._late,
            services=services,
            task_settings=setup.task_settings(clients.own_id),
            revoke_s=self.app.actor_options.revoke_timeout.total_seconds(),
            member=clients.committer.member,
            task_log=clients.committer.new_log,
            on_failure=self._fail,
            meters=self.meters,
        )
        standbys = self._standbys = Standbys(
            specs,
            logs=KafkaLogs(setup.connection, clients.control, role="standby"),
            stores=cache,
            clock=clock,
            clock_skew_margin_ms=margin_ms,
            acceptable_lag=self.app.actor_options.acceptable_recovery_lag,
            task_is_free=worker.is_free,
            is_working=lambda: bool(worker.tasks),
            ask_for_rebalance=self._ask_for_rebalance,
            checks=StandbyChecks(clients.control, services.restorer),
        )
        return StartingWorker(
            setup=setup, specs=specs, worker=worker, standbys=standbys, control=clients.control, owners=owners
        )

    async def _start_extensions(self, parts: StartingWorker) -> None:
        for name, extension in self.app.extensions.items():
            self._at_end(functools.partial(_stop, name, extension))
            await extension.start(parts)

    async def _join(self, parts: StartingWorker, clients: _Clients, cache: StoreCache) -> None:
        setup, specs, worker, standbys = parts.setup, parts.specs, parts.worker, parts.standbys
        assignor = ActorAssignor(
            instance_id=setup.instance_id or "",
            address=setup.address,
            actors={topic: spec.name for spec in specs for topic in spec.topics},
            on_disk=lambda: on_disk(setup, specs, cache, self.app.actor_clock),
            lags=lambda: lags(specs, worker, standbys),
            declared=[spec.declared for spec in specs],
            rules=setup.placement_rules(),
            leaving=lambda: worker.leaving,
            transactional_id=clients.own_id,
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
            await _settle(clients.committer)

        def counted(counts: Mapping[str, int]) -> None:
            worker.grown(counts)
            setup.grown(counts)

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
                counted=counted,
            ),
        )
        ask_if_unheard(specs, assignor, self._ask_for_rebalance)

    async def _release_standby(self, actor: str, partition: int) -> None:
        if self._standbys is not None:
            await self._standbys.release(actor, partition)

    def _ask_for_rebalance(self) -> None:
        if self._source is not None:
            self._source.ask_for_rebalance()

    def _dispatched(self, dispatcher: asyncio.Task[None]) -> None:
        """Notice the dispatcher's end: a loop that ended in silence would leave an idle worker."""
        if dispatcher.cancelled():
            return
        error = dispatcher.exception()
        if error is not None:
            self._fail(error)
        elif not self.should_stop:
            self._fail(RuntimeError("the dispatcher ended although the worker runs"))

    def _follow(self, parts: StartingWorker, checked: _Checked) -> None:
        """Run what the worker does beside its tasks."""
        worker, clock = parts.worker, self.app.actor_clock
        self._dispatcher = asyncio.create_task(worker.run(), name="actors dispatcher")
        self._dispatcher.add_done_callback(self._dispatched)
        self._run(follow_pauses(parts.owners, lambda: worker.tasks, clock), "pauses")
        if self.app.first_messages:
            self._run(send_first(self.app, lambda: worker.tasks), "first messages")
        self._run(report_late(lambda: worker.tasks, clock), "late records")
        if checked.made:
            self._run(purge(checked.topics, checked.made, worker.tasks), "purge")

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something until the worker ends."""
        self._at_end(functools.partial(end, asyncio.create_task(work, name=f"actors {name}")))

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, ActorsError):
            logger.critical("%s", error)
        self.add_future(self.crash(error))

    def _at_end(self, close: Callable[[], Awaitable[object] | None]) -> None:
        """Have something closed at the end, before what was opened earlier; left out once the time for it is over."""

        async def close_in_time() -> None:
            if not self._is_late:
                try:
                    closing = close()
                    if closing is not None:
                        await closing
                except asyncio.CancelledError:
                    self._is_late = True
                    raise

        self._exits.push_async_callback(close_in_time)

    def _note_end(self, parts: StartingWorker, committer: Committer, loop_watch: LoopWatch) -> None:
        """Register the steps of the end, in reverse order."""

        async def end_dispatcher() -> None:
            if self._dispatcher is not None:
                await asyncio.wait([self._dispatcher], timeout=0.3)
                self._dispatcher.cancel()

        async def leave() -> None:
            if self._source is not None:
                await self._source.close()

        async def end_tasks() -> None:
            await parts.worker.stop(TASKS_STOP_S)
            await _settle(committer)

        outages = parts.setup.connection.outages
        announcer = Announcer(parts.worker, group=parts.setup.group, away=lambda: outages.away)
        announcer.start()
        self._at_end(end_dispatcher)
        # After the group was left: copies may take long to stop, and until then nobody else gets the partitions.
        self._at_end(parts.standbys.stop)
        self._at_end(leave)
        self._at_end(loop_watch.stop)
        self._at_end(end_tasks)
        self._at_end(announcer.stop)


@dataclass(frozen=True, slots=True)
class _Checked:
    """The app's topics as a start has found them; `made` are those of `inputs` that it made."""

    topics: Topics
    needs: Sequence[TopicNeed]
    inputs: Mapping[str, TopicInfo]
    made: Mapping[str, TopicInfo]


@dataclass(frozen=True, slots=True)
class _Clients:
    """A worker's clients and databases."""

    setup: Setup
    control: ControlPlane
    topics: Topics
    folder: DataFolder
    logs: KafkaLogs
    owners: KafkaOwners
    committer: Committer
    own_id: str


def _warn_open_commands(specs: Sequence[ActorSpec]) -> None:
    """Say which actors obey commands of every producer of their input."""
    names = [
        spec.name for spec in specs if (spec.parked or spec.effects or spec.timers) and not spec.commands.secrets()
    ]
    if names:
        logger.warning(
            "admin commands aren't signed, since neither worker_secret nor tokens are set: all who may write to the "
            "input of %s may retry and drop what is parked there (the documentation's page 'Security')",
            ", ".join(names),
        )


async def _stop(name: str, extension: WorkerExtension) -> None:
    try:
        async with asyncio.timeout(EXTENSION_STOP_S):
            await extension.stop()
    except Exception:
        # The worker commits in any case.
        logger.exception("extension %s didn't stop", name)


async def _settle(committer: Committer) -> None:
    """Leave nothing behind that the next owners would have to wait for."""
    with contextlib.suppress(TaskError, TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            await committer.settle()


def _contested(topics: list[str]) -> ConfigurationError:
    """Return why a worker ends that gets partitions which another program had: only its start reads the registry."""
    return ConfigurationError(
        f"topic {', '.join(topics)}: another program under this app's id had its partitions, and this worker would "
        "take them over now that the other's workers have gone. The worker ends instead: start it again, and its "
        "program is compared with the leader registry"
    )


def _collect_seldom() -> None:
    """Let the garbage collector look seldom: a fetch makes thousands of objects, none of them in a cycle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _spare_debug_messages() -> None:
    """Disable the Kafka client's debug messages, several for each request, unless a handler logs them.

    Faust sets the root logger to DEBUG, so that its spinner turns with each message, and never back: a quarter of what
    a lone commit costs the worker.
    """
    read = [handler.level for handler in logging.root.handlers if not isinstance(handler, SpinnerHandler)]
    client = logging.getLogger("aiokafka")
    if read and client.level == logging.NOTSET:
        client.setLevel(min(read))
