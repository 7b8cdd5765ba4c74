"""Reads committed records of partitions from given offsets on, with a consumer that has no group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.client import Consumer, release, started
from actors._kafka.connection import Connection, broker_errors
from actors._kafka.consume.fetching import LogsById
from actors._kafka.consume.records import CHUNK_RECORDS, readable
from actors._kafka.permissions import READ
from actors.errors import BrokerUnavailableError, RestoreError
from actors.ports import LogRecord, TopicPartition

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


def _names(positions: Mapping[TopicPartition, int]) -> str:
    """Return the partition, or the topics of several."""
    if len(positions) == 1:
        return str(next(iter(positions)))
    return ", ".join(sorted({source.topic for source in positions}))
