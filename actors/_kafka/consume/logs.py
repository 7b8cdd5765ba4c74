"""Reads committed records of partitions, up to a high watermark or without an end, and looks at topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence

from actors._core.logs import Reminders, escaping
from actors._core.task.takeover import LogBounds
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.topics import Topics
from actors._kafka.connection import Connection
from actors._kafka.consume.following import KafkaFollowing
from actors.errors import BrokerUnavailableError
from actors.ports import LogRecord, TopicFacts, TopicPartition

logger = escaping(logging.getLogger(__name__))

POLL_S = 0.2
REMIND_S = 10.0
"""How often an open transaction that delays a restore is logged."""
GIVE_UP_S = 60.0
"""How long a read may make no progress: the broker may have forgotten the fetch."""
FETCH_BYTES = 4 * 1024 * 1024
FOLLOW_BYTES = 1024 * 1024


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
