"""Converts an app's settings into those of the runtime and the clients, and refuses settings that can't work."""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from faust.sensors import Monitor

from actors._core.backoff import Backoff
from actors._core.group.placement import PlacementRules
from actors._core.logs import escaping
from actors._core.partitioner import MURMUR2, Partitioner
from actors._core.task.commit import CommitPolicy
from actors._core.task.takeover import LostChangelog, ResetPolicy, StartRules
from actors._faust.brokers import reached
from actors._faust.inputs import check_alike, declare_readers, input_spec, repartitions
from actors._faust.settings.secrets import worker_keys
from actors._faust.tracing import check_tracing, propagated, traced
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.owners import StoreRecord
from actors._kafka.admin.topics import DEFAULT_MAX_RECORD_BYTES, ChangelogSettings, Topics
from actors._kafka.connection import Connection
from actors._kafka.consume.membership import GroupSettings, check_timeouts
from actors._kafka.produce.writer import STOP_IT, TransactionWriter
from actors._kafka.requests import KafkaRequests
from actors.declare.declared import wrapped
from actors.declare.definition import ActorDefinition
from actors.declare.host import DeclaredApp, changelog_topic
from actors.declare.names import (
    command_transactional_id,
    dead_letter_topic,
    group_of,
    owners_topic,
    reply_topic,
)
from actors.declare.options import ActorOptions, milliseconds
from actors.declare.publishing import by_value, publication, published_stores
from actors.declare.streams.feeds import checked, feeds_of, writers_of
from actors.declare.topic import refuse_changelog
from actors.declare.values.codecs import Codec, resolve
from actors.declare.values.messages import MessageCodec
from actors.declare.values.schemas import key_codec, topic_codecs
from actors.errors import ConfigurationError, UnknownTopicError, UsageError
from actors.ports import Snapshots, TaskLog, Writer
from actors.runtime.commands import KEY_PURPOSE, CommandKey
from actors.runtime.committer import Committer, OnlyLog
from actors.runtime.message.outputs import OutputTopic, Recipient, TypeHeaders
from actors.runtime.message.publishing import Publication, PublishedStore
from actors.runtime.requests.replies import Replies
from actors.runtime.requests.requests import REPLY_CONFIG, REPLY_PARTITIONS
from actors.runtime.spec import WINDOW_MARGIN_MS, ActorParts, ActorSpec, Feeds, TaskSettings, shared
from actors.runtime.state.restore import Changelog
from actors.runtime.windows.joins import OneStore
from stores.snapshot import SnapshotFolder

logger = escaping(logging.getLogger(__name__))

FOR_ONE_START = ("missing_offset", "moved_offset", "lost_changelog", "allow_reprocessing")
FETCH_BYTES = 1024 * 1024
BROKER_DEFAULT = -1
LONGEST_INSTANCE_ID_BYTES = 249
"""The limit of Kafka's own clients."""


class Setup:
    """The app's settings for the runtime and the clients."""

    def __init__(self, app: DeclaredApp) -> None:
        self.app = app
        declare_readers(app)
        conf, options = app.conf, app.actor_options
        self.recorded: Mapping[str, StoreRecord] = {}
        self._max_record_bytes: dict[str, int] = {}
        self._existing: dict[str, TopicInfo] = {}
        self._found: dict[Any, OutputTopic] = {}
        self._opened: Callable[[Any, str], OutputTopic] | None = None
        self._feeds: dict[str, Feeds] = {}
        self._writers: dict[str, tuple[str, ...]] = {}
        self.group = group_of(conf.id)
        self.owners_topic = owners_topic(conf.id)
        self.dead_letter_topic = dead_letter_topic(conf.id)
        self.reply_topic = reply_topic(conf.id)
        self.folder = Path(conf.appdir) / "actors"
        self.views_folder = Path(conf.appdir) / "views"
        snapshot = options.state_snapshot
        self.snapshots: Snapshots | None = None
        """Where snapshots lie; if not in a folder, an extension that reads them sets it in its `check`."""
        if snapshot is not None and "://" not in str(snapshot):
            self.snapshots = SnapshotFolder(snapshot, app=conf.id)
        self.lost_changelog = LostChangelog(options.lost_changelog)
        self.instance_id: str | None = conf.consumer_group_instance_id or None
        self.worker = self.instance_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self.address = ""
        """Where other workers reach this one; an extension that answers them sets it in its `check`."""
        self.is_tracing = options.tracing
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
            fetch_bytes=conf.consumer_max_fetch_size or FETCH_BYTES,
            max_poll_records=conf.broker_max_poll_records,
        )

    def topics(self, control: ControlPlane) -> Topics:
        """Return the client for topics, which creates some only if the settings allow it."""
        return Topics(self.connection, control, may_create=self.app.actor_options.create_topics)

    def placement_rules(self) -> PlacementRules:
        """Return the rules by which the group's leader assigns partitions."""
        options = self.app.actor_options
        return PlacementRules(
            standbys=_standby_replicas(self.app),
            acceptable_lag=options.acceptable_recovery_lag,
            max_warm_ups=options.max_warmup_replicas,
        )

    def check_settings(self) -> None:
        """Refuse settings that can't work.

        Raises:
            ConfigurationError: naming them.
        """
        check_timeouts(self.group_settings, self.app.actor_options.revoke_timeout.total_seconds())
        for extension in self.app.extensions.values():
            extension.check(self)
        if self.app.actor_options.state_snapshot is not None and self.snapshots is None:
            raise ConfigurationError(
                f"state_snapshot={self.app.actor_options.state_snapshot!r}: `extensions` leaves out `snapshots`, which "
                "reads object storage: add it, or name a folder"
            )
        check_tracing(self.app)
        _standby_replicas(self.app)
        for definition in self.app.actors.values():
            definition.check_marks()
        self._check_faust_parts()
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
        instance_id = self.instance_id or ""
        if not instance_id.isprintable() or len(instance_id.encode(errors="replace")) > LONGEST_INSTANCE_ID_BYTES:
            raise ConfigurationError(
                f"consumer_group_instance_id={instance_id!r}: it has up to {LONGEST_INSTANCE_ID_BYTES} bytes, and no "
                "control characters"
            )
        self._warn_choices()

    def _warn_choices(self) -> None:
        """Say which settings of this start decide without asking what happens to state and inputs that are lost."""
        usual = ActorOptions()
        choices = {name: getattr(self.app.actor_options, name) for name in FOR_ONE_START}
        chosen = ", ".join(f"{name}={value!r}" for name, value in choices.items() if value != getattr(usual, name))
        if chosen:
            logger.warning(
                "%s: meant for one start. Restart without it when all partitions run: whatever is deleted, re-created "
                "or moved later is decided by it too, without asking",
                chosen,
            )

    def _check_faust_parts(self) -> None:
        """Refuse parts of Faust's that hide ours, and say which of them see nothing of actors."""
        app: Any = self.app
        if app._web_server_service is not None and app.conf.web_enabled and app.actors and app.actor_options.queries:
            raise ConfigurationError(
                "@app.web_server (serve_asgi) takes the place of Faust's web server, on which queries, the dashboard, "
                "/metrics and /health would be served: set queries=False to run without them"
            )
        # Importing LiveCheck would patch aiohttp.
        blind = [type(one).__name__ for one in app.sensors if type(one).__module__.startswith("faust.livecheck")]
        if type(app.monitor) is not Monitor:
            blind.append(type(app.monitor).__name__)
        if blind and app.actors:
            logger.warning(
                "%s: sees the messages of agents and tables, not those of actors, whose figures are at /metrics",
                ", ".join(blind),
            )

    async def check_topics(self, topics: Topics) -> dict[str, TopicInfo]:
        """Return the input topics.

        Raises:
            ConfigurationError: some are missing; the outputs that are missing too are named with them.
        """
        wanted = {name: definition for definition in self.app.actors.values() for name in definition.topic_names}
        found, made = await topics.existing(wanted), repartitions(self.app)
        missing = {
            name: f"topic {name}, the input of actor {definition.name}, isn't on the broker"
            for name, definition in wanted.items()
            # Workers make repartition topics, as soon as these have what to be like.
            if name not in found and name not in made
        }
        if missing:
            for name in await self._missing_outputs(topics):
                missing.setdefault(name, f"topic {name}, declared with app.topic(...), is missing too")
            raise ConfigurationError(
                f"{'; '.join(missing.values())}. Make them, an input with as many partitions as it will ever have (its "
                f"state is partitioned alike): for t in {' '.join(missing)}; do kafka-topics.sh --bootstrap-server "
                f"{self.connection.bootstrap[0]} --create --topic $t --partitions 8; done"
            )
        for definition in self.app.actors.values():
            counts = {name: found[name].partitions for name in definition.topic_names if name in found}
            check_alike(self.app, definition, counts)
        return found

    async def _missing_outputs(self, topics: Topics) -> list[str]:
        """Return the declared topics that the broker doesn't have and no worker makes."""
        names = {str(topic.get_topic_name()) for topic in self.app.declared_topics if len(topic.topics) == 1}
        stores = self.app.stores.values()
        made = {str(store.publish.get_topic_name()) for store in stores if isinstance(store, PublishedStore)}
        made |= self.plain().keys() | repartitions(self.app).keys()
        return sorted(names - (await topics.existing(names)).keys() - made)

    def changelog_topic(self, store: str) -> str:
        return changelog_topic(self.app, store)

    def compacted(self, inputs: Mapping[str, TopicInfo]) -> dict[str, int]:
        """Return our compacted topics with the partitions they must have."""
        wanted = {self.owners_topic: 1}
        for definition in self.app.actors.values():
            for store in definition.stores:
                wanted[self.changelog_topic(store.name)] = inputs[definition.topic_name].partitions
        return wanted

    def kept_ms(self) -> dict[str, int]:
        """Return how long the changelogs of window stores keep records: a day longer than their windows are kept.

        Those of joins of one with many keep them for any time.
        """
        windows = (store for definition in self.app.actors.values() for store in definition.windows)
        return {
            self.changelog_topic(store.name): store.retention_ms + WINDOW_MARGIN_MS
            for store in windows
            if not isinstance(store, OneStore)
        }

    async def specs(
        self, inputs: Mapping[str, TopicInfo], changelogs: Mapping[str, TopicInfo], topics: Topics
    ) -> list[ActorSpec]:
        """Return the actors as the runtime needs them; `outputs` comes first."""
        configs = await topics.configs(changelogs)
        for name, config in configs.items():
            self._max_record_bytes[name] = int(config["max.message.bytes"])
            if name != self.owners_topic:
                self._check_retention(name, int(config["delete.retention.ms"]))
        self._feeds, self._writers = self.feeds(), writers_of(self.app)
        return [self._spec(definition, inputs, changelogs, configs) for definition in self.app.actors.values()]

    def feeds(self) -> dict[str, Feeds]:
        """Return what the event time of actors follows, by actor."""
        idle_after_s = self.app.actor_options.idle_after.total_seconds()
        return feeds_of(self.app.actors, writers_of(self.app), idle_after_s=idle_after_s)

    def names_of(self, changelog: str) -> tuple[str, ...]:
        """Return the names of the stores that the app has recorded with a changelog; a renamed store has several."""
        return tuple(sorted(record.store for record in self.recorded.values() if record.changelog == changelog))

    def _check_retention(self, topic: str, delete_retention_ms: int) -> None:
        margin_ms = milliseconds(self.app.actor_options.clock_skew_margin)
        if delete_retention_ms <= 2 * margin_ms:
            raise ConfigurationError(
                f"topic {topic} has delete.retention.ms={delete_retention_ms}, not more than twice the "
                f"clock_skew_margin of {margin_ms} ms: every restart would rebuild the state. Raise the topic's "
                f"setting (kafka-configs.sh --alter --topic {topic} --add-config delete.retention.ms=86400000), or "
                "lower clock_skew_margin"
            )

    def _spec(
        self,
        definition: ActorDefinition,
        inputs: Mapping[str, TopicInfo],
        changelogs: Mapping[str, TopicInfo],
        configs: Mapping[str, Mapping[str, str]],
    ) -> ActorSpec:
        definition.check_windows()
        if definition.methods is not None:
            definition.methods.check(definition.effect_functions.values())
        logs = {}
        for store in definition.stores:
            name = self.changelog_topic(store.name)
            logs[store.name] = Changelog(
                store=store.name,
                topic=name,
                topic_id=str(changelogs[name].topic_id),
                delete_retention_ms=int(configs[name]["delete.retention.ms"]),
                max_record_bytes=int(configs[name]["max.message.bytes"]),
                partition_count=changelogs[name].partitions,
                other_names=self.names_of(name),
            )
        answers = self._answers(definition)
        whole = {topic for topic, forwarder in self.app.repartitions.items() if forwarder.is_whole}
        spec = ActorSpec(
            **shared(ActorParts, definition),
            inputs=tuple(input_spec(self.app, definition, topic, answers) for topic in definition.topics),
            partition_count=inputs[definition.topic_name].partitions,
            changelogs=logs,
            encode_message=definition.messages().with_headers,
            seen=tuple(store for store in (definition.ids, definition.answers) if store is not None),
            dead_letters=self._dead_letters if definition.buries else None,
            answers=answers,
            misplaced=definition.misplaced if definition.places_by_key else None,
            forwarded=frozenset(definition.sources) | whole & {*definition.topic_names},
            feeds=self._feeds.get(definition.name),
            foreign={topic: names for topic, names in self._writers.items() if definition.name not in names},
            max_ahead_ms=milliseconds(self.app.actor_options.max_time_ahead),
            commands=self.command_key(definition.topic_name, inputs[definition.topic_name]),
            published={
                store.name: self._publication(store) for store in definition.stores if isinstance(store, PublishedStore)
            },
        )
        spec, methods = checked(spec), spec.methods
        if self.app.wraps and methods is not None:
            spec = replace(spec, methods=replace(methods, handler=wrapped(methods.handler, self.app.wraps)))
        names = self.app.actor_options.propagate_headers
        spec = propagated(spec, names) if names else spec
        return traced(spec, self.group) if self.is_tracing else spec

    def command_key(self, topic: str, info: TopicInfo) -> CommandKey:
        """Return the key that signs and verifies admin commands to an input."""
        return CommandKey(self.app.conf.id, topic, str(info.topic_id), lambda: worker_keys(self.app, KEY_PURPOSE))

    def _publication(self, store: PublishedStore[Any, Any]) -> Publication:
        if self._opened is None:
            raise AssertionError("outputs() finds the topics that specs() needs")
        return publication(store, self._opened(store.publish, str(store.publish.get_topic_name())))

    @property
    def answers(self) -> bool:
        """True if an actor of the app answers questions."""
        return any(definition.answers is not None for definition in self.app.actors.values())

    def _answers(self, definition: ActorDefinition) -> Replies | None:
        if definition.answers is None or definition.answer_types is None:
            return None
        definition.answer_types.check()
        return Replies(definition.answers, definition.answer_types, self.reply_topic)

    async def ensure_replies(self, topics: Topics) -> None:
        """Make the topic of answers, if anybody answers and it is missing."""
        if self.answers:
            replication_factor = self.changelog_settings.replication_factor
            await topics.ensure_plain({self.reply_topic: REPLY_PARTITIONS}, replication_factor, REPLY_CONFIG)

    def make_asks(self) -> KafkaRequests:
        """Return the client that sends requests to the app's actors; it connects with the first request."""
        return KafkaRequests(
            self.connection,
            group=self.group,
            topic=self.reply_topic,
            replication_factor=self.changelog_settings.replication_factor,
            may_create=self.app.actor_options.create_topics,
        )

    @property
    def _dead_letters(self) -> OutputTopic:
        """The topic of messages that are parked or buried: their bytes as they came."""
        return OutputTopic(self.dead_letter_topic, bytes, bytes, self.batch_bytes(self.dead_letter_topic))

    def plain(self) -> dict[str, int]:
        """Return our topics that aren't compacted, with the partitions that they are made with."""
        buries = any(definition.buries for definition in self.app.actors.values())
        return {**self.app.made_topics, **({self.dead_letter_topic: 1} if buries else {})}

    async def outputs(self, topics: Topics) -> Callable[[Any], OutputTopic]:
        """Return the function that finds the topic of a `ctx.send`: by a topic object or a declared one's name."""
        names = {topic.get_topic_name() for topic in self.app.declared_topics if topic.topics}
        names |= {self.reply_topic} if self.answers else set()
        existing = await topics.existing(names)
        for name in sorted(names - existing.keys()):
            logger.warning("topic %s isn't on the broker: a ctx.send to it would stop the partition that sends", name)
        configs = await topics.configs(existing)
        for name, config in configs.items():
            self._max_record_bytes[name] = int(config["max.message.bytes"])
        anything, published = resolve(None, for_others=True), published_stores(self.app)

        def find(topic: Any) -> OutputTopic:
            if isinstance(topic, Recipient):
                definition = self.app.definition_of(topic.actor)
                inbox = find(definition.topic)
                return replace(
                    inbox_of(definition),
                    max_record_bytes=inbox.max_record_bytes,
                    partition_count=inbox.partition_count,
                    is_compacted=inbox.is_compacted,
                )
            name = topic if isinstance(topic, str) else str(topic.get_topic_name())
            if name in published:
                raise UsageError(
                    f"ctx.send(): store {published[name][0].name} is published to topic {name}, and readers take "
                    "every record there for its state: write to the store, or send to another topic"
                )
            refuse_changelog(self.app, name)
            return opened(topic, name)

        def opened(topic: Any, name: str) -> OutputTopic:
            if name not in existing:
                raise UnknownTopicError(
                    f"topic {name} wasn't on the broker when the worker started, or isn't declared with "
                    f"app.topic(...): make it (kafka-topics.sh --bootstrap-server BROKER --create --topic {name} "
                    "--partitions 8) and restart the worker"
                )
            key, value = (by_value(anything), by_value(anything)) if isinstance(topic, str) else topic_codecs(topic)
            return OutputTopic(
                name,
                key.encode,
                value.encode,
                self.batch_bytes(name),
                partition_count=existing[name].partitions,
                is_compacted="compact" in configs[name]["cleanup.policy"],
                type_headers=_headers_of(key, value),
                partitioner=_unless_murmur2(self.app.partitioner_for(name)),
            )

        self._opened, self._existing, self._found = opened, existing, _Found(find)
        return self._found.__getitem__

    def grown(self, counts: Mapping[str, int]) -> None:
        """Note how many partitions topics have, for what is sent and asked from now on."""
        for name, count in counts.items():
            if name in self._existing and count > self._existing[name].partitions:
                self._existing[name] = replace(self._existing[name], partitions=count)
                self._found.clear()

    def batch_bytes(self, topic: str) -> int:
        """Return the size of the largest batch that a topic takes."""
        return self._max_record_bytes.get(topic, DEFAULT_MAX_RECORD_BYTES)

    def command_id(self, actor: str, partition: int) -> str:
        """Return the transactional id with which a command that writes beside no worker writes for a task."""
        return command_transactional_id(self.app.conf.id, actor, partition)

    def task_settings(self, transactional_id: str = "") -> TaskSettings:
        """Return the settings that all tasks of a worker with this transactional id share."""
        conf, options = self.app.conf, self.app.actor_options
        return TaskSettings(
            worker=self.worker,
            address=self.address,
            policy=CommitPolicy(interval_s=conf.broker_commit_interval, max_bytes=options.commit_max_bytes),
            rules=StartRules(
                reset=ResetPolicy(conf.consumer_auto_offset_reset),
                allow_reprocessing=options.allow_reprocessing,
                allow_lost_input=options.allow_lost_input,
                missing_offset=None if options.missing_offset is None else ResetPolicy(options.missing_offset),
                accept_moved=options.moved_offset == "accept",
            ),
            backoff=Backoff(),
            queue_records=options.queue_records,
            checkpoint_refresh_s=options.checkpoint_refresh.total_seconds(),
            group=self.group,
            transactional_id=transactional_id,
            clock_skew_margin_ms=milliseconds(options.clock_skew_margin),
        )

    def writer(self, transactional_id: str, if_shared: str = STOP_IT) -> Writer:
        """Return what commits in transactions with this id; `if_shared` is for its errors."""
        commit_deadline_s = self.app.actor_options.commit_deadline.total_seconds()
        return TransactionWriter(
            connection=self.connection,
            group=self.group,
            transactional_id=transactional_id,
            transaction_timeout_ms=int(commit_deadline_s * 1000) + 10_000,
            batch_bytes=self.batch_bytes,
            compression=self.app.conf.producer_compression_type,
            commit_deadline_s=commit_deadline_s,
            wall_ms=self.app.actor_clock.wall_ms,
            if_shared=if_shared,
        )

    def lone_log(self, actor: str, partition: int) -> TaskLog:
        """Return what a command writes with in transactions, beside no worker. A worker that takes over ends them."""
        writer = self.writer(self.command_id(actor, partition))
        return OnlyLog(Committer(writer, self.app.actor_options.commit_max_bytes))


class _Found(dict[Any, OutputTopic]):
    """The output topics found so far; one that is missing is looked for. A dict, so that a hit runs no Python."""

    def __init__(self, find: Callable[[Any], OutputTopic]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, topic: Any) -> OutputTopic:
        found = self[topic] = self._find(topic)
        return found


def inbox_of(definition: ActorDefinition) -> OutputTopic:
    """Return an actor's input for questions from outside of handlers: the broker says what is too large for it."""
    messages = definition.messages()
    return OutputTopic(
        definition.topic_name,
        key_codec(definition.topic.app, definition.topic.schema).encode,
        messages.encode,
        sys.maxsize,
        type_headers=_headers_of(topic_codecs(definition.topic)[0], messages=messages),
        actor=definition.name,
        answer_decoder=None if definition.answer_types is None else definition.answer_types.decoder_for,
        partitioner=_unless_murmur2(definition.topic.app.partitioner_for(definition.topic_name)),
    )


def _headers_of(*codecs: Codec, messages: MessageCodec | None = None) -> TypeHeaders | None:
    """Return what gives the headers that the types and formats of keys and values need, None if they need none."""
    needed: list[TypeHeaders] = [codec.headers for codec in codecs if codec.headers is not None]
    if messages is not None and messages.type_headers is not None:
        needed.append(messages.type_headers)
    if len(needed) < 2:
        return needed[0] if needed else None
    return lambda value: [pair for headers in needed for pair in headers(value)]


def _unless_murmur2(partitioner: Partitioner) -> Partitioner | None:
    return None if partitioner is MURMUR2 else partitioner


def connection(app: Any) -> Connection:
    """Return how the app's brokers are reached."""
    conf = app.conf
    there = reached(conf.broker_consumer, conf.broker_credentials, conf.ssl_context, client_id=conf.broker_client_id)
    return replace(there, outages=app.outages)


def _replication_factor(app: Any) -> int:
    """Return the setting where it was set, else the broker's default: Faust's own default of 1 would lose state."""
    return int(app.conf.topic_replication_factor) if _is_set(app, "topic_replication_factor") else BROKER_DEFAULT


def _standby_replicas(app: Any) -> int:
    """Return the setting where it was set, else none: Faust's own default of 1 would double everybody's disks.

    Raises:
        ConfigurationError: it is negative.
    """
    count = int(app.conf.table_standby_replicas) if _is_set(app, "table_standby_replicas") else 0
    if count < 0:
        raise ConfigurationError(f"table_standby_replicas={count}: use 0 or more")
    return count


def _is_set(app: Any, name: str) -> bool:
    return name in app._default_options[1] or name.upper() in os.environ
