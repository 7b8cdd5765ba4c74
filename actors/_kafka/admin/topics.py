"""Creates the app's own topics, and checks all topics that it uses, before the worker joins the group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidConfigurationError,
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.client import Admin
from actors._kafka.connection import Connection, broker_errors, words_of
from actors.errors import BrokerUnavailableError, ConfigurationError
from actors.ports import TopicPartition
from stores._core.printable import counted

VISIBLE_S = 30.0
ADMIN_S = 60.0
ADMIN_MS = 8_000
"""How long one admin request may take: the client asks a random broker, which may hang; the next try asks another."""
DEFAULT_MAX_RECORD_BYTES = 1_048_588
WINDOWED = "compact,delete"
ANY_TIME = dict.fromkeys(("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"), str(2**63 - 1))
"""Settings of a topic that takes records of all times. Brokers from 4.0 refuse by default what is an hour ahead; those
before 3.6 don't have the settings, and refuse nothing by default."""
_DENIED = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)


@dataclass(frozen=True, slots=True)
class ChangelogSettings:
    """Settings of new changelogs. `replication_factor` -1 and `min_insync_replicas` None are the broker's defaults."""

    replication_factor: int
    min_insync_replicas: int | None
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    segment_ms: int
    compression: str | None

    def topic_config(self, kept_ms: int | None = None) -> dict[str, str]:
        """Return the topic's settings; with `kept_ms`, records of windows are deleted when they are older."""
        config = {
            "cleanup.policy": "compact" if kept_ms is None else WINDOWED,
            "delete.retention.ms": str(self.delete_retention_ms),
            "min.compaction.lag.ms": str(self.min_compaction_lag_ms),
            "max.compaction.lag.ms": str(self.max_compaction_lag_ms),
            "segment.ms": str(self.segment_ms),
        }
        if kept_ms is not None:
            config["retention.ms"] = str(kept_ms)
            config["segment.ms"] = str(min(self.segment_ms, kept_ms))
        if self.min_insync_replicas is not None:
            config["min.insync.replicas"] = str(self.min_insync_replicas)
        return config


class Topics:
    """Describes and creates topics. Admin calls of aiokafka return error codes and don't raise: each code is checked.

    With `may_create=False` a topic that is missing is an error.
    """

    def __init__(self, connection: Connection, control: ControlPlane, *, may_create: bool = True) -> None:
        self._connection = connection
        self._control = control
        self._may_create = may_create

    async def existing(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        return await self._control.topics(names)

    async def ensure_compacted(
        self,
        wanted: Mapping[str, int],
        settings: ChangelogSettings,
        config: Mapping[str, str] | None = None,
        *,
        kept_ms: Mapping[str, int] | None = None,
    ) -> dict[str, TopicInfo]:
        """Create the missing ones of `wanted`, {name: partitions}, and check the others.

        New topics get the settings of `config` too. Those of `kept_ms` hold windows, whose records are deleted when
        they are older than so many milliseconds.

        Raises:
            ConfigurationError: one exists with another cleanup policy, retention or partition count.
        """
        found, windowed = await self.existing(wanted), kept_ms or {}
        missing = {name: count for name, count in wanted.items() if name not in found}
        for kept in {windowed.get(name) for name in missing}:
            alike = {name: count for name, count in missing.items() if windowed.get(name) == kept}
            await self._create(alike, settings.replication_factor, {**settings.topic_config(kept), **(config or {})})
        if missing:
            found = await self._visible(wanted)
        configs = await self.configs(wanted)
        for name, partitions in wanted.items():
            check_policy(name, configs[name], windowed.get(name))
            _check_partitions(found[name], partitions)
        return found

    async def ensure_plain(
        self, wanted: Mapping[str, int], replication_factor: int, config: Mapping[str, str] | None = None
    ) -> dict[str, TopicInfo]:
        """Create the missing ones of `wanted`, {name: partitions}, with these settings; don't check the others."""
        found = await self.existing(wanted)
        missing = {name: count for name, count in wanted.items() if name not in found}
        if missing:
            await self._create(missing, replication_factor, config or {})
            found = await self._visible(wanted)
        return found

    async def create(self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]) -> None:
        """Create a topic unless it is there; `replication_factor` -1 is the brokers' default.

        Raises:
            ConfigurationError: a broker refuses.
            BrokerUnavailableError: no broker answers.
        """
        await self._create({name: partitions}, replication_factor, config)
        await self._visible({name: partitions})

    async def recreate(
        self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> TopicInfo:
        """Delete a topic if it is there, create it, and wait until all brokers have the new one; else as `create`."""
        former = (await self.existing([name])).get(name)
        if former is not None:
            await self._delete(name)
        deadline_s = asyncio.get_running_loop().time() + VISIBLE_S
        while True:
            # While the former one is being deleted, this changes nothing.
            await self.create(name, partitions=partitions, replication_factor=replication_factor, config=config)
            made = (await self.existing([name])).get(name)
            if made is not None and (former is None or made.topic_id != former.topic_id):
                break
            if asyncio.get_running_loop().time() > deadline_s:
                raise BrokerUnavailableError(f"topic {name} was deleted, and is still there after {VISIBLE_S:g} s")
            await asyncio.sleep(0.05)
        await self._agreed(name, deadline_s)
        return made

    async def _agreed(self, name: str, deadline_s: float) -> None:
        while True:
            try:
                return await self._control.require_agreement([name])
            except BrokerUnavailableError:
                if asyncio.get_running_loop().time() > deadline_s:
                    raise
            await asyncio.sleep(0.05)

    async def _delete(self, name: str) -> None:
        response = await self._administer(f"deleting topic {name}", lambda admin: admin.delete_topics([name]))
        for _, code, *_ in response.topic_error_codes:
            error = for_code(code)
            if code and error is not UnknownTopicOrPartitionError:
                raise ConfigurationError(
                    f"topic {name} can't be deleted: {error.__name__}. The user of this command needs Delete and "
                    "Create on the changelogs (kafka-acls.sh), and delete.topic.enable=true on the brokers"
                )

    async def configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the effective settings of existing topics. Asks again while the broker doesn't know a topic yet."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in wanted]
        deadline_s = asyncio.get_running_loop().time() + VISIBLE_S
        while True:
            responses = await self._administer(
                "asking for topic settings", lambda admin: admin.describe_configs(resources)
            )
            answers = [answer for response in responses for answer in response.resources]
            failed = [(for_code(code), message, name) for code, message, _, name, _ in answers if code]
            if not failed:
                return {name: {entry[0]: entry[1] for entry in entries} for *_, name, entries in answers}
            lasting = [one for one in failed if one[0] is not UnknownTopicOrPartitionError]
            if lasting or asyncio.get_running_loop().time() >= deadline_s:
                error, message, name = (lasting or failed)[0]
                raise BrokerUnavailableError(
                    f"settings of topic {name}: {error.__name__}: {message or 'no reason is given'}"
                )
            await asyncio.sleep(0.05)

    async def broker_settings(self) -> dict[str, str]:
        """Return the settings of one of the brokers; {} where this user may not look at them."""

        async def ask(admin: Admin) -> Any:
            node = admin.client.get_random_node()
            return await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, str(node))])

        found: dict[str, str] = {}
        for response in await self._administer("asking for a broker's settings", ask):
            for code, _, _, _, entries in response.resources:
                found |= {} if code else {entry[0]: entry[1] for entry in entries}
        return found

    async def denied(self, names: Iterable[str]) -> list[str]:
        """Return the topics that this user may not create; creates none."""
        topics = [NewTopic(name, 1, 1) for name in sorted(names)]
        response = await self._administer(
            "asking which topics may be made", lambda admin: admin.create_topics(topics, validate_only=True)
        )
        return [name for name, code, *_ in response.topic_errors if for_code(code) in _DENIED]

    async def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the records in front of an offset of each partition.

        Raises:
            ConfigurationError: a broker refuses.
            BrokerUnavailableError: no broker answers.
        """
        wanted = {KafkaPartition(*source): RecordsToDelete(offset) for source, offset in offsets.items()}

        async def delete(admin: Admin) -> None:
            try:
                await admin.delete_records(wanted)
            except KafkaError as error:
                if error.retriable:
                    raise
                raise ConfigurationError(words_of(error)) from error

        await self._administer("deleting records", delete)

    async def _create(self, missing: Mapping[str, int], replication_factor: int, config: Mapping[str, str]) -> None:
        if not self._may_create:
            raise ConfigurationError(
                f"topics {', '.join(missing)} aren't on the broker, and create_topics=False: make them (`faust -A APP "
                "topics` prints how)"
            )
        topics = [NewTopic(name, count, 1, topic_configs=dict(config)) for name, count in missing.items()]
        for topic in topics:
            # Its constructor refuses -1, the broker's default.
            topic.replication_factor = replication_factor
        response = await self._administer(
            f"making topics {', '.join(missing)}", lambda admin: admin.create_topics(topics)
        )
        former = {key: value for key, value in config.items() if key not in ANY_TIME}
        for name, code, *message in response.topic_errors:
            error = for_code(code)
            if error is InvalidConfigurationError and former != dict(config):
                await self._create({name: missing[name]}, replication_factor, former)
            elif code and error is not TopicAlreadyExistsError:
                raise ConfigurationError(f"topic {name} can't be made: {error.__name__}: {' '.join(map(str, message))}")

    async def _administer(self, what: str, call: Callable[[Admin], Awaitable[Any]]) -> Any:
        """Make an admin call, again on a new connection while a broker is away: other brokers may answer."""
        deadline_s = asyncio.get_running_loop().time() + ADMIN_S
        while True:
            try:
                with broker_errors(what, self._connection):
                    admin = Admin(self._connection, "admin", request_timeout_ms=ADMIN_MS)
                    try:
                        await admin.start()
                        return await call(admin)
                    finally:
                        await admin.close()
            except BrokerUnavailableError:
                if asyncio.get_running_loop().time() > deadline_s:
                    raise
            await asyncio.sleep(0.2)

    async def _visible(self, wanted: Mapping[str, int]) -> dict[str, TopicInfo]:
        """Wait until the broker that is asked knows the new topics."""
        deadline_s = asyncio.get_running_loop().time() + VISIBLE_S
        while True:
            found = await self.existing(wanted)
            if len(found) == len(wanted) and all(info.partitions for info in found.values()):
                return found
            if asyncio.get_running_loop().time() > deadline_s:
                raise BrokerUnavailableError(f"topics {sorted(set(wanted) - set(found))} were made and don't show up")
            await asyncio.sleep(0.05)


def check_policy(name: str, config: Mapping[str, str], kept_ms: int | None) -> None:
    """Refuse a compacted topic whose settings would delete state; `kept_ms` as in `Topics.ensure_compacted`.

    Raises:
        ConfigurationError: with the command that repairs it.
    """
    trouble = why_unfit(name, config, kept_ms)
    if trouble is not None:
        what, change = trouble
        raise ConfigurationError(
            f"{what}. Mend it with: kafka-configs.sh --bootstrap-server BROKER --alter --topic {name} --add-config "
            f"{change}"
        )


def why_unfit(name: str, config: Mapping[str, str], kept_ms: int | None) -> tuple[str, str] | None:
    """Return why a compacted topic's settings would delete state, and the setting that repairs it; else None."""
    policy, wanted = config.get("cleanup.policy", ""), "compact" if kept_ms is None else WINDOWED
    if sorted(policy.split(",")) != sorted(wanted.split(",")):
        shown = wanted if kept_ms is None else f"[{wanted}]"
        why = "state would be deleted" if kept_ms is None else "it has windows, which expire"
        return f"topic {name} has cleanup.policy={policy}: {why}", f"cleanup.policy={shown}"
    retention_ms = int(config.get("retention.ms", -1))
    if kept_ms is not None and 0 <= retention_ms < kept_ms:
        what = (
            f"topic {name} has retention.ms={retention_ms}, and windows of its store are kept for longer: their "
            "records would be deleted before"
        )
        return what, f"retention.ms={kept_ms}"
    return None


def _check_partitions(info: TopicInfo, partitions: int) -> None:
    if info.partitions != partitions:
        raise ConfigurationError(
            f"topic {info.name} has {counted(info.partitions, 'partition')}, its actor's input has {partitions}: keys "
            "would be looked for in the wrong partition. Stop all workers, then carry the state over to the new number "
            f"of partitions (the documentation's page 'Snapshots'), create the input again with {info.partitions} "
            f"partitions, or delete {info.name} (kafka-topics.sh --bootstrap-server BROKER --delete --topic "
            f"{info.name}) and start once with LOST_CHANGELOG=rebuild: its state is lost. Only if the input has "
            "always had as many partitions, and the changelog was created again with another number, start with "
            "LOST_CHANGELOG=restore in place of that: workers' disks have the state"
        )
