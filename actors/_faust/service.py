"""Runs the actors of an app inside a Faust worker: checks everything, joins the group, and stops in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth, server_list
from faust.types import ProcessingGuarantee
from mode import Service

from actors._core.assign import Task as TaskId
from actors._core.commit import Backoff, CommitPolicy
from actors._core.takeover import ResetPolicy, StartRules
from actors._faust.codecs import Codec, key_codec, resolve, value_codec
from actors._faust.options import milliseconds
from actors._kafka.assignor import ActorAssignor
from actors._kafka.connection import Connection
from actors._kafka.consumer import GroupSettings, KafkaSource, check_timeouts
from actors._kafka.control import ControlPlane, TopicInfo
from actors._kafka.logs import KafkaLogs
from actors._kafka.owners import KafkaOwners, encode_owner
from actors._kafka.producer import OrderedLog, TransactionLog
from actors._kafka.topics import DEFAULT_MAX_RECORD_BYTES, ChangelogSettings, Topics
from actors.errors import ActorsError, ConfigurationError, UnknownTopicError
from actors.ports import Identity, TaskLog, TopicPartition
from actors.runtime.clock import SystemClock
from actors.runtime.context import OutputTopic
from actors.runtime.restore import Changelog, Restorer
from actors.runtime.spec import ActorSpec, TaskServices, TaskSettings
from actors.runtime.stores import StoreCache
from actors.runtime.task import Task
from actors.runtime.worker import Worker, WorkerSettings
from stores.errors import StoreError
from stores.folder import DataFolder
from stores.ports import PartitionStore
from stores.rocks import RocksResources, RocksStore

if TYPE_CHECKING:
    from actors._faust.app import ActorDefinition, App

logger = logging.getLogger(__name__)

STOP_S = 20.0
TASKS_STOP_S = 5.0
BROKER_DEFAULT = -1
FETCH_BYTES = 1024 * 1024


class ActorService(Service):  # type: ignore[misc]
    """The service; one per app and process."""

    def __init__(self, app: App, **options: Any) -> None:
        self.app = app
        self._worker: Worker | None = None
        self._source: KafkaSource | None = None
        self._control: ControlPlane | None = None
        self._folder: DataFolder | None = None
        self._cache: StoreCache | None = None
        self._dispatcher: asyncio.Task[None] | None = None
        super().__init__(**options)

    @property
    def tasks(self) -> list[Task]:
        """The tasks that this worker owns now."""
        return (
            []
            if self._worker is None
            else sorted(self._worker.tasks, key=lambda task: (task.spec.name, task.partition))
        )

    def is_leader(self) -> bool:
        """Tell whether this worker owns the first actor's first partition."""
        first = min(self.app.actors, default=None)
        return any(task.spec.name == first and task.partition == 0 and task.epoch for task in self.tasks)

    async def connect(self) -> None:
        """Reach the broker, before anything of Faust's tries to."""
        try:
            setup = Setup(self.app)
            setup.check_settings()
            self._control = await ControlPlane.open(setup.connection, setup.group)
        except ActorsError as error:
            refuse(self.app, error)

    async def on_start(self) -> None:
        """Check settings, folder and topics, and join the group.

        Raises:
            ActorsError: one clear reason why the worker can't run.
        """
        try:
            await self._open()
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
                await self._close()
        except TimeoutError:
            logger.error("stopping took longer than %g s: what isn't committed will be handled again", STOP_S)

    # --- start -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._control is None:
            await self.connect()
        setup = Setup(self.app)
        self._folder = DataFolder.open(setup.folder, app=self.app.conf.id)
        if self._control is None:
            raise AssertionError("connect() gives a connection or ends the worker")
        topics = Topics(setup.connection, self._control)
        found = await setup.check_topics(topics)
        changelogs = await topics.ensure_compacted(setup.compacted(found), setup.changelog_settings)
        outputs = await setup.outputs(topics)
        specs = await setup.specs(found, changelogs, topics)
        resources = RocksResources(
            block_cache_bytes=self.app.actor_options.rocksdb_cache_bytes,
            write_buffer_bytes=self.app.actor_options.rocksdb_write_buffer_bytes,
        )
        self._cache = StoreCache(_opener(self._folder, resources), self._folder.discard)
        await self._open_stores(specs)
        logs = KafkaLogs(setup.connection, self._control)
        owners = KafkaOwners(setup.owners_topic, logs)
        self._start_worker(setup, specs, logs, owners, outputs)
        await self._join(setup, specs)
        _collect_seldom()
        worker = self._worker
        if worker is not None:
            self._dispatcher = asyncio.create_task(worker.run(), name="actors dispatcher")
            self._dispatcher.add_done_callback(self._dispatched)

    async def _open_stores(self, specs: list[ActorSpec]) -> None:
        """Open what is on disk: the assignment prefers partitions whose state is here."""
        if self._folder is None or self._cache is None:
            return
        for spec in specs:
            for store in spec.stores:
                for partition in self._folder.partitions_on_disk(store.name):
                    if partition < spec.partition_count:
                        await self._cache.open(store.name, partition)

    def _start_worker(
        self,
        setup: Setup,
        specs: list[ActorSpec],
        logs: KafkaLogs,
        owners: KafkaOwners,
        outputs: Callable[[Any], OutputTopic],
    ) -> None:
        if self._control is None or self._cache is None:
            raise AssertionError("the worker starts after its parts")
        clock = SystemClock()
        margin_ms = milliseconds(self.app.actor_options.clock_skew_margin)
        services = TaskServices(
            group=self._control,
            logs=logs,
            owners=owners,
            restorer=Restorer(logs, clock, clock_skew_margin_ms=margin_ms),
            stores=self._cache,
            sink=_Sink(self),
            clock=clock,
            resolve_output=outputs,
            encode_owner=lambda record: encode_owner(setup.owners_topic, record),
        )
        self._worker = Worker(
            specs,
            source=_Sink(self),
            services=services,
            task_settings=setup.task_settings(),
            settings=WorkerSettings(revoke_s=self.app.actor_options.revoke_timeout.total_seconds()),
            task_log=lambda spec, partition, identity: setup.task_log(spec, partition, identity, self._control),
            on_failure=self._fail,
        )

    async def _join(self, setup: Setup, specs: list[ActorSpec]) -> None:
        worker, cache = self._worker, self._cache
        if worker is None or cache is None:
            raise AssertionError("the group is joined last")
        actors = {store.name: spec.name for spec in specs for store in spec.stores}

        def on_disk() -> dict[TaskId, int]:
            found: dict[TaskId, int] = {}
            for store, partition, held in cache.opened():
                try:
                    position = held.position()
                except StoreError:
                    # It is being built anew: nothing that counts is on disk.
                    continue
                if position is not None and store in actors:
                    task = TaskId(actors[store], partition)
                    found[task] = found.get(task, 0) + position.changelog_offset
            return found

        assignor = ActorAssignor(
            instance_id=setup.instance_id or "",
            address=setup.address,
            actors={spec.topic: spec.name for spec in specs},
            on_disk=on_disk,
        )
        self._source = await KafkaSource.open(
            setup.connection,
            setup.group_settings,
            [spec.topic for spec in specs],
            assignor,
            assigned=worker.assigned,
            revoked=worker.revoked,
            room=worker.room,
            lost=worker.lost,
            failed=self._fail,
        )

    # --- while it runs ---------------------------------------------------------------------------------------------

    def _dispatched(self, dispatcher: asyncio.Task[None]) -> None:
        """Notice the dispatcher's end: a loop that ended in silence would leave an idle worker."""
        if dispatcher.cancelled() or self._worker is None:
            return
        error = dispatcher.exception()
        if error is not None:
            self._fail(error)
        elif not self.should_stop:
            self._fail(RuntimeError("the dispatcher ended although the worker runs"))

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, ActorsError):
            logger.critical("%s", error)
        self.add_future(self.crash(error))

    # --- stop ------------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        try:
            if self._worker is not None:
                await self._worker.stop(TASKS_STOP_S)
        finally:
            await self._close_parts()

    async def _close_parts(self) -> None:
        if self._source is not None:
            await self._source.close()
        if self._dispatcher is not None:
            await asyncio.wait([self._dispatcher], timeout=1.0)
            self._dispatcher.cancel()
        if self._cache is not None:
            self._cache.close()
        if self._control is not None:
            await self._control.close()
        if self._folder is not None:
            self._folder.close()


class _Sink:
    """The consumer, for a worker that is made before it."""

    def __init__(self, service: ActorService) -> None:
        self._service = service

    def start_from(self, source: TopicPartition, offset: int) -> None:
        if self._service._source is not None:
            self._service._source.start_from(source, offset)

    def stop_delivery(self, source: TopicPartition) -> None:
        if self._service._source is not None:
            self._service._source.stop_delivery(source)

    def has_room(self) -> None:
        if self._service._source is not None:
            self._service._source.has_room()

    def position(self, source: TopicPartition) -> int | None:
        return None if self._service._source is None else self._service._source.position(source)

    def check(self) -> None:
        if self._service._source is not None:
            self._service._source.check()

    async def poll(self, wanted: Any, timeout_s: float) -> Mapping[Any, Any]:
        if self._service._source is None:
            await asyncio.sleep(timeout_s)
            return {}
        return await self._service._source.poll(wanted, timeout_s)


def refuse(app: Any, error: Exception) -> None:
    """End the worker with one line that says why."""
    logger.critical("%s can't start: %s", app.conf.id, error)
    raise SystemExit(1) from None


def _collect_seldom() -> None:
    """Let the garbage collector look seldom: a fetch makes thousands of objects, none of them in a cycle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _opener(folder: DataFolder, resources: RocksResources) -> Callable[[str, int], PartitionStore]:
    def open_store(store: str, partition: int) -> PartitionStore:
        return RocksStore.open(folder.store_path(store, partition), resources=resources)

    return open_store


class Setup:
    """Turns the app's settings into what the runtime and the clients need."""

    def __init__(self, app: App) -> None:
        self.app = app
        conf, options = app.conf, app.actor_options
        self._max_record_bytes: dict[str, int] = {}
        self.group = f"{conf.id}-actors"
        self.owners_topic = f"{conf.id}-actors-owners"
        self.folder = Path(conf.appdir) / "actors"
        self.exactly_once = conf.processing_guarantee == ProcessingGuarantee.EXACTLY_ONCE
        self.instance_id: str | None = conf.consumer_group_instance_id or None
        self.worker = self.instance_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self.address = str(conf.canonical_url) if conf.web_enabled else ""
        self.connection = connection(app)
        self.changelog_settings = ChangelogSettings(
            replication_factor=_replication_factor(app),
            min_insync_replicas=options.changelog_min_insync_replicas,
            delete_retention_ms=milliseconds(options.changelog_delete_retention),
            min_compaction_lag_ms=milliseconds(options.changelog_min_compaction_lag),
            max_compaction_lag_ms=milliseconds(options.changelog_max_compaction_lag),
            segment_ms=milliseconds(options.changelog_segment),
            compression=conf.producer_compression_type,
        )
        self.group_settings = GroupSettings(
            group=self.group,
            instance_id=self.instance_id,
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            isolation_level="read_committed" if self.exactly_once else "read_uncommitted",
            fetch_bytes=conf.consumer_max_fetch_size or FETCH_BYTES,
            max_poll_records=conf.broker_max_poll_records,
        )

    def check_settings(self) -> None:
        """Refuse settings that can't work.

        Raises:
            ConfigurationError: naming them.
        """
        check_timeouts(self.group_settings, self.app.actor_options.revoke_timeout.total_seconds())
        if self.app.conf.blocking_timeout:
            raise ConfigurationError(
                "blocking_timeout (--blocking-timeout) raises inside whatever code runs, a commit as well: leave it out"
            )
        if self.app.conf.web_in_thread:
            raise ConfigurationError("web_in_thread=True isn't supported: actors and web server share one event loop")
        if self.app.conf.consumer_auto_offset_reset not in ("earliest", "latest"):
            raise ConfigurationError(
                f"consumer_auto_offset_reset={self.app.conf.consumer_auto_offset_reset!r}: use 'earliest' or 'latest'"
            )

    async def check_topics(self, topics: Topics) -> dict[str, TopicInfo]:
        """Give the input topics.

        Raises:
            ConfigurationError: one is missing.
        """
        wanted = {definition.topic_name: definition for definition in self.app.actors.values()}
        found = await topics.existing(wanted)
        for name, definition in wanted.items():
            if name not in found:
                raise ConfigurationError(
                    f"topic {name}, the input of actor {definition.name}, isn't on the broker. Make it, with as many "
                    "partitions as it shall ever have (its state is partitioned alike): kafka-topics.sh "
                    f"--bootstrap-server BROKER --create --topic {name} --partitions 8"
                )
        return found

    def changelog_topic(self, store: str) -> str:
        """Give the changelog's name."""
        return changelog_topic(self.app, store)

    def compacted(self, inputs: Mapping[str, TopicInfo]) -> dict[str, int]:
        """Give our compacted topics with the partitions they must have."""
        wanted = {self.owners_topic: 1}
        for definition in self.app.actors.values():
            for store in definition.stores:
                wanted[self.changelog_topic(store.name)] = inputs[definition.topic_name].partitions
        return wanted

    async def specs(
        self, inputs: Mapping[str, TopicInfo], changelogs: Mapping[str, TopicInfo], topics: Topics
    ) -> list[ActorSpec]:
        """Give the actors as the runtime needs them."""
        configs = await topics.configs(changelogs)
        for name, config in configs.items():
            self._max_record_bytes[name] = int(config["max.message.bytes"])
            if name != self.owners_topic:
                self._check_retention(name, int(config["delete.retention.ms"]))
        return [self._spec(definition, inputs, changelogs, configs) for definition in self.app.actors.values()]

    def _check_retention(self, topic: str, delete_retention_ms: int) -> None:
        margin_ms = milliseconds(self.app.actor_options.clock_skew_margin)
        if delete_retention_ms <= 2 * margin_ms:
            raise ConfigurationError(
                f"topic {topic} has delete.retention.ms={delete_retention_ms}, not more than twice the "
                "clock_skew_margin of "
                f"{margin_ms} ms: every restart would build the state anew. Raise the topic's setting "
                "(kafka-configs.sh "
                f"--alter --topic {topic} --add-config delete.retention.ms=86400000), or lower clock_skew_margin"
            )

    def _spec(
        self,
        definition: ActorDefinition,
        inputs: Mapping[str, TopicInfo],
        changelogs: Mapping[str, TopicInfo],
        configs: Mapping[str, Mapping[str, str]],
    ) -> ActorSpec:
        key, value = topic_codecs(definition.topic)
        logs = {}
        for store in definition.stores:
            name = self.changelog_topic(store.name)
            logs[store.name] = Changelog(
                store=store.name,
                topic=name,
                topic_id=str(changelogs[name].topic_id),
                delete_retention_ms=int(configs[name]["delete.retention.ms"]),
                max_record_bytes=int(configs[name]["max.message.bytes"]),
            )
        return ActorSpec(
            name=definition.name,
            topic=definition.topic_name,
            partition_count=inputs[definition.topic_name].partitions,
            handler=definition.handler,
            decode_key=key.decode,
            decode_value=value.decode,
            stores=definition.stores,
            changelogs=logs,
        )

    async def outputs(self, topics: Topics) -> Callable[[Any], OutputTopic]:
        """Give the function that finds the topic of a `ctx.send`: by a topic object or a declared one's name."""
        names = {topic.get_topic_name() for topic in self.app.declared_topics if topic.topics}
        existing = await topics.existing(names)
        for name in sorted(names - existing.keys()):
            logger.warning("topic %s isn't on the broker: a ctx.send to it would stop the partition that sends", name)
        configs = await topics.configs(existing)
        for name, config in configs.items():
            self._max_record_bytes[name] = int(config["max.message.bytes"])
        known: dict[Any, OutputTopic] = {}
        anything = resolve(None, None)

        def find(topic: Any) -> OutputTopic:
            output = known.get(topic)
            if output is None:
                name = topic if isinstance(topic, str) else str(topic.get_topic_name())
                if name not in existing:
                    raise UnknownTopicError(
                        f"topic {name} wasn't on the broker when the worker started, or isn't declared with "
                        "app.topic(...): "
                        f"make it (kafka-topics.sh --bootstrap-server BROKER --create --topic {name} --partitions 8) "
                        "and restart the worker"
                    )
                key, value = (
                    (_by_value(anything), _by_value(anything)) if isinstance(topic, str) else topic_codecs(topic)
                )
                output = known[topic] = OutputTopic(
                    name,
                    key.encode,
                    value.encode,
                    self.batch_bytes(name),
                    partition_count=existing[name].partitions,
                    is_compacted="compact" in configs[name]["cleanup.policy"],
                )
            return output

        return find

    def batch_bytes(self, topic: str) -> int:
        """Give the size of the largest batch that a topic takes."""
        return self._max_record_bytes.get(topic, DEFAULT_MAX_RECORD_BYTES)

    def task_settings(self) -> TaskSettings:
        """Give what all tasks share."""
        conf, options = self.app.conf, self.app.actor_options
        return TaskSettings(
            worker=self.worker,
            address=self.address,
            policy=CommitPolicy(interval_s=conf.broker_commit_interval, max_bytes=options.commit_max_bytes),
            rules=StartRules(
                reset=ResetPolicy(conf.consumer_auto_offset_reset),
                exactly_once=self.exactly_once,
                allow_reprocessing=options.allow_reprocessing,
                allow_lost_input=options.allow_lost_input,
            ),
            backoff=Backoff(),
            queue_records=options.queue_records,
            checkpoint_refresh_s=options.checkpoint_refresh.total_seconds(),
            exactly_once=self.exactly_once,
        )

    def task_log(self, spec: ActorSpec, partition: int, identity: Identity, control: ControlPlane | None) -> TaskLog:
        """Give the writing side of a task."""
        options = self.app.actor_options
        # Names can't contain colons, so that no two apps' tasks share an id and fence each other.
        name = f"{self.app.conf.id}:{spec.name}:{partition}"
        deadline_s = options.commit_deadline.total_seconds()
        if not self.exactly_once:
            return OrderedLog(
                self.connection,
                name=name,
                group=self.group,
                identity=identity,
                control=control,
                batch_bytes=self.batch_bytes,
                compression=self.app.conf.producer_compression_type,
                commit_deadline_s=deadline_s,
            )
        return TransactionLog(
            self.connection,
            transactional_id=name,
            group=self.group,
            batch_bytes=self.batch_bytes,
            compression=self.app.conf.producer_compression_type,
            transaction_timeout_ms=int(deadline_s * 1000) + 10_000,
            commit_deadline_s=deadline_s,
        )


def connection(app: Any) -> Connection:
    """Give how the app's brokers are reached."""
    conf = app.conf
    return Connection(
        bootstrap=tuple(server_list(conf.broker_consumer, 9092)),
        security=dict(credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context)),
        client_id=conf.broker_client_id,
    )


def changelog_topic(app: Any, store: str) -> str:
    """Give the name of a store's changelog."""
    return f"{app.conf.id}-{store}-changelog"


def topic_codecs(topic: Any) -> tuple[Codec, Codec]:
    """Give the codecs of a topic's keys and values."""
    return key_codec(topic.app, topic.schema), value_codec(topic.app, topic.schema)


def _replication_factor(app: App) -> int:
    """Give the setting where it was set, else the broker's default: Faust's own default of 1 would lose state."""
    given = "topic_replication_factor" in app._default_options[1] or "TOPIC_REPLICATION_FACTOR" in os.environ
    return int(app.conf.topic_replication_factor) if given else BROKER_DEFAULT


def _by_value(anything: Codec) -> Codec:
    """Give the codec for topics sent to by name: bytes and str as they are, everything else as JSON."""

    def encode(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else anything.encode(value)

    return Codec(decode=anything.decode, encode=encode, name="by value")
