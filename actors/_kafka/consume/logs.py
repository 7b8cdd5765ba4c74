"""Reads committed records of a partition, from an offset up to a high watermark."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.logs import escaping
from actors._core.task.takeover import LogBounds
from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import Connection, broker_errors, committed_reader, let_go
from actors._kafka.consume.fetching import LogsById
from actors._kafka.consume.records import CHUNK_RECORDS, fetched, readable
from actors._kafka.permissions import READ
from actors.errors import BrokerUnavailableError, RestoreError
from actors.ports import LogRecord, TopicPartition

logger = escaping(logging.getLogger(__name__))

POLL_S = 0.2
REMIND_S = 10.0
"""How often it is said that an open transaction holds a restore back."""
GIVE_UP_S = 60.0
"""After so long without any progress the task looks again: the broker may have forgotten the fetch."""
FETCH_BYTES = 4 * 1024 * 1024


class KafkaLogs:
    """`actors.ports.Logs` over a broker."""

    def __init__(self, connection: Connection, control: ControlPlane) -> None:
        self._connection = connection
        self._control = control

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        """Give the partition's start and its high watermark."""
        return await self._control.bounds(partition)

    async def read(
        self, partition: TopicPartition, start: int, end: int, topic_id: str = ""
    ) -> AsyncIterator[tuple[Sequence[LogRecord], int]]:
        """Give chunks of committed records with the next offset to read, until that reaches `end`.

        Raises:
            RestoreError: the log doesn't have `start` any more.
            ReplacedLogError: the broker knows no topic with this id.
            UnreadableLogError: records can't be read.
            BrokerUnavailableError: there was no progress for `GIVE_UP_S`.
        """
        if start >= end:
            return
        consumer = committed_reader(self._connection, "restore", FETCH_BYTES)
        try:
            with broker_errors(f"reading {partition}", self._connection):
                await consumer.start()
            fetches = LogsById(consumer)
            fetches.set_id(KafkaPartition(*partition), topic_id)
            consumer.assign([KafkaPartition(*partition)])
            consumer.seek(KafkaPartition(*partition), start)
            async for chunk in _follow(consumer, fetches, self._connection, partition, start, end):
                yield chunk
        finally:
            await let_go(consumer)


async def _follow(
    consumer: AIOKafkaConsumer,
    fetches: LogsById,
    connection: Connection,
    partition: TopicPartition,
    start: int,
    end: int,
) -> AsyncIterator[tuple[Sequence[LogRecord], int]]:
    loop = asyncio.get_running_loop()
    source = KafkaPartition(*partition)
    position, moved_s, said_s = start, loop.time(), loop.time()
    while position < end:
        try:
            with broker_errors(f"reading {partition}", connection, READ):
                found = await fetched(consumer, source, timeout_s=POLL_S, max_records=CHUNK_RECORDS)
                reached = await consumer.position(source)
        except BrokerUnavailableError as error:
            if isinstance(error.__cause__, OffsetOutOfRangeError | NoOffsetForPartitionError):
                raise RestoreError(f"{partition} doesn't have offset {position} any more: {error}") from error
            raise
        fetches.check()
        now_s = loop.time()
        if reached > position:
            position, moved_s = reached, now_s
            records = readable(partition, found.get(source, ()))
            if records and records[-1].offset >= end:
                records = [record for record in records if record.offset < end]
            yield records, min(position, end)
        elif now_s - moved_s > GIVE_UP_S:
            raise BrokerUnavailableError(f"reading {partition}: nothing came behind offset {position} of {end}")
        elif now_s - said_s > REMIND_S:
            said_s = now_s
            logger.info("%s: waiting at offset %d of %d for an open transaction to end", partition, position, end)
