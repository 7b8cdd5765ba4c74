"""Reads committed records of partitions, up to a high watermark or without an end, and looks at topics.

The consumers that read have no group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence

from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.logs import Reminders, escaping
from actors._core.task.takeover import LogBounds
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.topics import Topics
from actors._kafka.client import Consumer, release, started
from actors._kafka.connection import Connection, broker_errors
from actors._kafka.consume.fetching import LogsById
from actors._kafka.consume.records import CHUNK_RECORDS, readable
from actors._kafka.permissions import READ
from actors.errors import BrokerUnavailableError, RestoreError
from actors.ports import LogRecord, TopicFacts, TopicPartition

logger = escaping(logging.getLogger(__name__))

POLL_S = 0.2
REMIND_S = 10.0
"""How often an open transaction that delays a restore is logged."""
GIVE_UP_S = 60.0
"""How long a read may make no progress: the broker may have forgotten the fetch."""
FETCH_BYTES = 4 * 1024 * 1024
FOLLOW_BYTES = 1024 * 1024
FETCH_BUDGET_BYTES = 32 * 1024 * 1024
LEAST_FETCH_BYTES = 64 * 1024
"""How much is fetched ahead of all partitions together, and the least for one."""


class KafkaFollowing:
    """`actors.ports.Following` over brokers. Made by `open`."""

    def __init__(self, consumer: Consumer, connection: Connection, positions: Mapping[TopicPartition, int]) -> None:
        self._consumer = consumer
        self._connection = connection
        self._positions = dict(positions)
        self._fetches = LogsById(consumer)
        self._what = f"reading {_names(positions)}"

    @classmethod
    async def open(
        cls,
        connection: Connection,
        positions: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str],
        *,
        role: str,
        fetch_bytes: int,
        isolation_level: str = "read_committed",
    ) -> KafkaFollowing:
        """Begin to read at `positions`, of the topics with these ids; `fetch_bytes` is the most for one partition.

        Raises:
            BrokerUnavailableError: no broker answers.
        """
        share = max(LEAST_FETCH_BYTES, FETCH_BUDGET_BYTES // max(1, len(positions)))
        consumer = Consumer(
            connection,
            role,
            isolation_level=isolation_level,
            auto_offset_reset="none",
            max_partition_fetch_bytes=min(fetch_bytes, share),
        )
        with broker_errors(f"reading {_names(positions)}", connection):
            await started(consumer)
        try:
            following = cls(consumer, connection, positions)
            for source in positions:
                following._fetches.set_id(KafkaPartition(*source), topic_ids.get(source.topic, ""))
            consumer.assign([KafkaPartition(*source) for source in positions])
            for source, offset in positions.items():
                consumer.seek(KafkaPartition(*source), offset)
        except BaseException:
            await release(consumer)
            raise
        return following

    async def poll(self, timeout_s: float) -> Mapping[TopicPartition, tuple[Sequence[LogRecord], int]]:
        self._fetches.check()
        try:
            with broker_errors(self._what, self._connection, READ):
                found = await self._consumer.fetched(timeout_s=timeout_s, max_records=CHUNK_RECORDS)
                return await self._advanced(found)
        except BrokerUnavailableError as error:
            if isinstance(error.__cause__, OffsetOutOfRangeError | NoOffsetForPartitionError):
                raise RestoreError(f"the log doesn't have the next offset to read any more: {error}") from error
            raise

    async def _advanced(
        self, records: Mapping[KafkaPartition, Sequence[LogRecord]]
    ) -> dict[TopicPartition, tuple[Sequence[LogRecord], int]]:
        """Return the partitions with records, and those that passed markers or records of aborted transactions."""
        found = {}
        for source, before in self._positions.items():
            reached = await self._consumer.position(KafkaPartition(*source))
            if reached > before:
                self._positions[source] = reached
                found[source] = (readable(source, records.get(KafkaPartition(*source), ())), reached)
        return found

    async def close(self) -> None:
        await release(self._consumer)


class KafkaLogs:
    """`actors.ports.TopicLogs` over brokers; `role` is in the client id of what follows."""

    def __init__(self, connection: Connection, control: ControlPlane, *, role: str = "view") -> None:
        self._connection = connection
        self._control = control
        self._role = role
        self._facts: TopicFacts | None = None

    @classmethod
    async def open(cls, connection: Connection) -> KafkaLogs:
        """Connect.

        Raises:
            BrokerUnavailableError: no broker of the list answers.
        """
        return cls(connection, await ControlPlane.open(connection, ""))

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        """Return the partition's start and its high watermark."""
        return await self._control.bounds(partition)

    async def read(
        self, partition: TopicPartition, start: int, end: int, topic_id: str = ""
    ) -> AsyncIterator[tuple[Sequence[LogRecord], int]]:
        """Yield chunks of committed records with the next offset to read, until that reaches `end`.

        Raises:
            RestoreError: the log doesn't have `start` any more.
            ReplacedLogError: the broker knows no topic with this id.
            UnreadableLogError: records can't be read.
            BrokerUnavailableError: there was no progress for `GIVE_UP_S`.
        """
        if start >= end:
            return
        topic_ids = {partition.topic: topic_id}
        following = await KafkaFollowing.open(
            self._connection, {partition: start}, topic_ids, role="restore", fetch_bytes=FETCH_BYTES
        )
        try:
            async for chunk in _until(following, partition, start, end):
                yield chunk
        finally:
            await following.close()

    async def open_records(self, partition: TopicPartition) -> Sequence[LogRecord] | None:
        stable = await self._control.last_stable(partition)
        end = (await self._control.bounds(partition)).end
        if stable >= end:
            return None
        following = await KafkaFollowing.open(
            self._connection,
            {partition: stable},
            {},
            role="open",
            fetch_bytes=FETCH_BYTES,
            isolation_level="read_uncommitted",
        )
        try:
            return [record async for records, _ in _until(following, partition, stable, end) for record in records]
        finally:
            await following.close()

    async def facts(self, topic: str) -> TopicFacts | None:
        """Return facts of a topic. The settings are read once for each topic id and partition count."""
        topics = Topics(self._connection, self._control)
        found = (await topics.existing([topic])).get(topic)
        if found is None:
            return None
        known, identity = self._facts, (topic, str(found.topic_id), found.partitions)
        if known is not None and (known.topic, known.topic_id, known.partitions) == identity:
            return known
        config = (await topics.configs([topic]))[topic]
        self._facts = TopicFacts(
            *identity,
            cleanup_policy=config["cleanup.policy"],
            delete_retention_ms=int(config["delete.retention.ms"]),
            max_record_bytes=int(config["max.message.bytes"]),
        )
        return self._facts

    async def follow(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None
    ) -> KafkaFollowing:
        return await KafkaFollowing.open(
            self._connection, positions, topic_ids or {}, role=self._role, fetch_bytes=FOLLOW_BYTES
        )

    async def close(self) -> None:
        """Disconnect what `open` connected."""
        await self._control.close()


async def _until(
    following: KafkaFollowing, partition: TopicPartition, start: int, end: int
) -> AsyncIterator[tuple[Sequence[LogRecord], int]]:
    clock_s = asyncio.get_running_loop().time
    position, moved_s, reminders = start, clock_s(), Reminders(REMIND_S)
    reminders.is_due(moved_s)
    while position < end:
        found = await following.poll(POLL_S)
        now_s = clock_s()
        if partition in found:
            records, position = found[partition]
            moved_s = now_s
            if records and records[-1].offset >= end:
                records = [record for record in records if record.offset < end]
            yield records, min(position, end)
        elif now_s - moved_s > GIVE_UP_S:
            raise BrokerUnavailableError(f"reading {partition}: no record arrived after offset {position} of {end}")
        elif reminders.is_due(now_s):
            logger.info("%s: waiting at offset %d of %d for an open transaction to end", partition, position, end)


def _names(positions: Mapping[TopicPartition, int]) -> str:
    """Return the partition, or the topics of several."""
    if len(positions) == 1:
        return str(next(iter(positions)))
    return ", ".join(sorted({source.topic for source in positions}))
