"""What a view needs of real brokers: `actors.ports.TopicLogs`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.task.takeover import LogBounds
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.topics import Topics
from actors._kafka.connection import Connection, broker_errors, committed_reader, let_go
from actors._kafka.consume.fetching import LogsById
from actors._kafka.consume.logs import KafkaLogs
from actors._kafka.consume.records import CHUNK_RECORDS, fetched, readable
from actors._kafka.permissions import READ
from actors.errors import BrokerUnavailableError, RestoreError
from actors.ports import LogRecord, TopicFacts, TopicPartition

FETCH_BYTES = 1024 * 1024
FETCH_BUDGET_BYTES = 32 * 1024 * 1024
LEAST_FETCH_BYTES = 64 * 1024
"""What is fetched ahead of all partitions that are followed together, and the least for one."""


class KafkaTopicLogs:
    """`actors.ports.TopicLogs` over brokers. Made by `open`."""

    def __init__(self, connection: Connection, control: ControlPlane, *, role: str = "view") -> None:
        self._connection = connection
        self._control = control
        self._role = role
        self._logs = KafkaLogs(connection, control)
        self._topics = Topics(connection, control)
        self._facts: TopicFacts | None = None

    @classmethod
    async def open(cls, connection: Connection) -> KafkaTopicLogs:
        """Connect.

        Raises:
            BrokerUnavailableError: no broker of the list answers.
        """
        return cls(connection, await ControlPlane.open(connection, ""))

    async def facts(self, topic: str) -> TopicFacts | None:
        """See `actors.ports.TopicLogs.facts`. The settings are asked for once for each topic id and partition count."""
        found = (await self._topics.existing([topic])).get(topic)
        if found is None:
            return None
        known, identity = self._facts, (topic, str(found.topic_id), found.partitions)
        if known is not None and (known.topic, known.topic_id, known.partitions) == identity:
            return known
        config = (await self._topics.configs([topic]))[topic]
        self._facts = TopicFacts(
            *identity,
            cleanup_policy=config["cleanup.policy"],
            delete_retention_ms=int(config["delete.retention.ms"]),
            max_record_bytes=int(config["max.message.bytes"]),
        )
        return self._facts

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        """See `actors.ports.Logs.bounds`."""
        return await self._logs.bounds(partition)

    def read(
        self, partition: TopicPartition, start: int, end: int, topic_id: str = ""
    ) -> AsyncIterator[tuple[Sequence[LogRecord], int]]:
        """See `actors.ports.Logs.read`."""
        return self._logs.read(partition, start, end, topic_id)

    async def follow(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None
    ) -> KafkaFollowing:
        """See `actors.ports.TopicLogs.follow`."""
        return await KafkaFollowing.open(self._connection, positions, topic_ids or {}, role=self._role)

    async def close(self) -> None:
        """See `actors.ports.TopicLogs.close`."""
        await self._control.close()


class KafkaFollowing:
    """`actors.ports.Following` over a consumer without a group."""

    def __init__(
        self, consumer: AIOKafkaConsumer, connection: Connection, positions: Mapping[TopicPartition, int]
    ) -> None:
        self._consumer = consumer
        self._connection = connection
        self._positions = dict(positions)
        self._fetches = LogsById(consumer)

    @classmethod
    async def open(
        cls,
        connection: Connection,
        positions: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str],
        *,
        role: str = "view",
    ) -> KafkaFollowing:
        """Begin to read.

        Raises:
            BrokerUnavailableError: no broker answers.
        """
        share = max(LEAST_FETCH_BYTES, FETCH_BUDGET_BYTES // max(1, len(positions)))
        consumer = committed_reader(connection, role, min(FETCH_BYTES, share))
        try:
            with broker_errors("following a topic", connection):
                await consumer.start()
            following = cls(consumer, connection, positions)
            for source in positions:
                following._fetches.set_id(KafkaPartition(*source), topic_ids.get(source.topic, ""))
            consumer.assign([KafkaPartition(*source) for source in positions])
            for source, offset in positions.items():
                consumer.seek(KafkaPartition(*source), offset)
        except BaseException:
            await let_go(consumer)
            raise
        return following

    async def poll(self, timeout_s: float) -> Mapping[TopicPartition, tuple[Sequence[LogRecord], int]]:
        """See `actors.ports.Following.poll`."""
        self._fetches.check()
        try:
            with broker_errors("following a topic", self._connection, READ):
                found = await fetched(self._consumer, timeout_s=timeout_s, max_records=CHUNK_RECORDS)
                return await self._advanced(found)
        except BrokerUnavailableError as error:
            if isinstance(error.__cause__, OffsetOutOfRangeError | NoOffsetForPartitionError):
                raise RestoreError(f"the log doesn't have what would be read next any more: {error}") from error
            raise

    async def _advanced(
        self, records: Mapping[KafkaPartition, Sequence[LogRecord]]
    ) -> dict[TopicPartition, tuple[Sequence[LogRecord], int]]:
        """Give what came, and the partitions that went past markers or records of aborted transactions."""
        found = {}
        for source, before in self._positions.items():
            reached = await self._consumer.position(KafkaPartition(*source))
            if reached > before:
                self._positions[source] = reached
                found[source] = (readable(source, records.get(KafkaPartition(*source), ())), reached)
        return found

    async def close(self) -> None:
        """See `actors.ports.Following.close`."""
        await let_go(self._consumer)
