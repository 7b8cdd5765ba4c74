"""Reads a topic as a member of a consumer group of its own: how a part beside the actors consumes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from aiokafka import ConsumerRebalanceListener
from aiokafka.errors import OffsetOutOfRangeError
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.client import Consumer, release
from actors._kafka.connection import Connection, broker_errors
from actors._kafka.consume.fetching import FetchesById
from actors._kafka.consume.membership import GroupSettings
from actors._kafka.permissions import READ
from actors.errors import RestoreError
from actors.ports import LogRecord, TopicPartition

COMMIT_S = 10.0

Assigned = Callable[["GroupReader", list[TopicPartition], int], None]
Revoked = Callable[[], Awaitable[None]]


class GroupReader(ConsumerRebalanceListener):  # type: ignore[misc]
    """A member of a group, which reads committed records of its partitions; made by `open`.

    `assigned` gets the reader, its partitions and the group's generation: none is read before `start_from`. `revoked`
    is awaited before the group rebalances, and ends all reads.
    """

    def __init__(self, consumer: Consumer, connection: Connection, assigned: Assigned, revoked: Revoked) -> None:
        self._consumer = consumer
        self._connection = connection
        self._assigned = assigned
        self._revoked = revoked
        self._replaced: set[KafkaPartition] = set()
        self._fetches = FetchesById(self._note_replaced)
        consumer.client.hooks = (self._fetches,)

    @classmethod
    async def open(
        cls, connection: Connection, settings: GroupSettings, topic: str, *, assigned: Assigned, revoked: Revoked
    ) -> GroupReader:
        """Join the group.

        Raises:
            BrokerUnavailableError: no broker answers, or a permission is missing.
        """
        consumer = Consumer(connection, settings.group, **settings.options())
        reader = cls(consumer, connection, assigned, revoked)
        consumer.subscribe(topics=[topic], listener=reader)
        try:
            with broker_errors(f"joining group {settings.group}", connection, READ):
                await consumer.start()
        except BaseException:
            await reader.close()
            raise
        return reader

    def check(self) -> None:
        """Check that the member is still in the group, or joins it again by itself.

        Raises:
            BrokerUnavailableError: it can't go on.
        """
        with broker_errors("consuming", self._connection, READ):
            self._consumer.coordinator.check_errors()

    async def committed(self, source: TopicPartition) -> int | None:
        """Return the group's committed offset of a partition, None if there is none.

        Raises:
            BrokerUnavailableError: the coordinator doesn't answer.
        """
        with broker_errors(f"the committed offset of {source}", self._connection, READ):
            offset: int | None = await self._consumer.committed(KafkaPartition(*source))
        return offset

    def start_from(self, source: TopicPartition, offset: int, topic_id: str) -> None:
        """Read an assigned partition from `offset` on, of the topic with this id only; empty means any."""
        partition = KafkaPartition(*source)
        self._replaced.discard(partition)
        if partition in self._consumer.assignment():
            is_other_topic = self._fetches.set_id(partition, topic_id)
            self._consumer.start_from(partition, offset, is_other_topic=is_other_topic)

    async def fetch(self, source: TopicPartition, *, most: int, timeout_s: float) -> Sequence[LogRecord]:
        """Return up to `most` next records of a partition, none after `timeout_s`.

        A record that can't be read is an `actors.ports.RefusedRecord`.

        Raises:
            RestoreError: the log doesn't have the next offset any more, or the topic was created again.
            BrokerUnavailableError: no broker answers, or a permission is missing.
        """
        partition = KafkaPartition(*source)
        with broker_errors(f"reading {source}", self._connection, READ):
            try:
                fetched = await self._consumer.fetched(partition, timeout_s=timeout_s, max_records=most)
            except OffsetOutOfRangeError as error:
                raise RestoreError(
                    f"{source}: the log doesn't have offset {error.args[0].get(partition)}, which comes next: its "
                    "records were deleted. To go on without them, raise the next offset where it is kept"
                ) from error
        if partition in self._replaced:
            raise RestoreError(f"{source}: the topic was deleted and created again")
        return fetched.get(partition, ())

    async def commit(self, source: TopicPartition, offset: int) -> None:
        """Commit the next offset of a partition for the group.

        Raises:
            BrokerUnavailableError: the coordinator doesn't answer, or the partition is another member's now.
        """
        with broker_errors(f"committing {source} at {offset}", self._connection, READ):
            async with asyncio.timeout(COMMIT_S):
                await self._consumer.commit({KafkaPartition(*source): offset})

    async def close(self) -> None:
        """Leave the group. May be called twice."""
        await release(self._consumer)

    async def on_partitions_revoked(self, revoked: Iterable[KafkaPartition]) -> None:
        """Have all reads end; aiokafka calls it before the group rebalances."""
        await self._revoked()

    async def on_partitions_assigned(self, assigned: Iterable[KafkaPartition]) -> None:
        """Hand the new partitions out; aiokafka calls it after the group has rebalanced."""
        partitions = list(assigned)
        # A fetch before the first `start_from` would begin at the group's offset.
        self._consumer.pause(*partitions)
        sources = sorted(TopicPartition(*partition) for partition in partitions)
        self._assigned(self, sources, int(self._consumer.coordinator.generation))

    def _note_replaced(self, partition: Any, topic_id: uuid.UUID) -> None:
        self._replaced.add(partition)
