"""A Kafka cluster in memory: topics, a transaction coordinator, one consumer group."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass

from actors._core.task.takeover import LogBounds
from actors.ports import Committed, TopicPartition
from actors.testing.fakes.errors import (
    OffsetOutOfRangeError,
    RecordRefusedError,
    UnknownTopicIdError,
    UnstableOffsetsError,
)
from actors.testing.fakes.log import PartitionLog, StoredRecord, Transaction
from actors.testing.fakes.transactions import TransactionCoordinator

EPOCH_MS = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000

_Record = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]
_StampedRecord = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]], int | None]
Produced = Sequence[_Record] | Sequence[_StampedRecord]
"""Records as they are produced: (key, value, headers), or with the timestamp in Unix milliseconds, None for now."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the simulated cluster."""

    name: str
    topic_id: str
    partitions: tuple[PartitionLog, ...]


class GroupOffsets:
    """The committed offsets of a group with one member that never leaves. `tests/sim` has a group with members.

    Of several commits of one offset the one that was written last counts, a transactional one from when it was written,
    not from when its transaction ended.

    Attributes:
        offsets: the committed offsets, pending ones not.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.offsets: dict[TopicPartition, Committed] = {}
        self._appended: dict[TopicPartition, int] = {}

    def heartbeat(self, member_id: str, generation: int) -> None:
        """Keep the session alive."""

    def check_member(self, member_id: str, generation: int) -> None:
        """Refuse a member that isn't one, or is of another generation: this one always is."""

    def knows(self, member_id: str) -> bool:
        """Return whether this is a member, in whatever generation."""
        return True

    def transactional_ids(self) -> set[str | None]:
        """Return those of the members; None is in it for one that doesn't say so, or while the group rebalances."""
        return {None}

    def committed(self, source: TopicPartition) -> Committed | None:
        """Return the committed offset; one of a transaction without its marker is not."""
        return self.offsets.get(source)

    def complete(self, source: TopicPartition, committed: Committed, appended: int) -> None:
        """Let an offset of a committed transaction count, unless a later one was written meanwhile."""
        if appended > self._appended.get(source, 0):
            self._appended[source] = appended
            self.offsets[source] = committed


class MemoryKafka:
    """The cluster. Its methods are what its brokers do at the moment a request arrives.

    Attributes:
        transactions: the coordinator of all transactional ids.
        group: the one consumer group.
        appended: gives the number of each write into the log of offsets.
        log_type: the class of partitions.
    """

    log_type = PartitionLog
    coordinator_type = TransactionCoordinator

    def __init__(self, group: str, *, marker_s: Callable[[], float] = lambda: 0.0, epoch_ms: int = EPOCH_MS) -> None:
        self._epoch_ms = epoch_ms
        appends = itertools.count(1)
        self.appended = lambda: next(appends)
        self.transactions = self.coordinator_type(
            complete=self._commit_offsets, appended=self.appended, marker_s=marker_s, wall_ms=self.wall_ms
        )
        self.group = GroupOffsets(group)
        self._topics: dict[str, Topic] = {}
        self._max_record_bytes: dict[str, int | None] = {}
        self._numbers = itertools.count(1)
        self._context = Context()

    def wall_ms(self) -> int:
        """Return the brokers' Unix milliseconds: those at which the loop's time is 0, and the loop's time."""
        return self._epoch_ms + int(asyncio.get_running_loop().time() * 1000)

    def make_topic(
        self, name: str, partitions: int, *, is_compacted: bool = False, delete_retention_ms: int = DAY_MS
    ) -> Topic:
        logs = tuple(
            self.log_type(
                TopicPartition(name, number), is_compacted=is_compacted, delete_retention_ms=delete_retention_ms
            )
            for number in range(partitions)
        )
        topic = self._topics[name] = Topic(name, str(uuid.UUID(int=next(self._numbers))), logs)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and the group's offsets of it; one whose transaction is still open may come behind that."""
        for log in self._topics.pop(name).partitions:
            self.group.offsets.pop(log.name, None)

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic, None if there is none."""
        return self._topics.get(name)

    def topic(self, name: str) -> Topic:
        """Return a topic that exists."""
        return self._topics[name]

    def log(self, partition: TopicPartition) -> PartitionLog:
        """Return one partition."""
        return self._topics[partition.topic].partitions[partition.partition]

    def limit_records(self, topic: str, max_record_bytes: int | None) -> None:
        """Set the topic's `max.message.bytes`; here it is about the key and value of one record."""
        self._max_record_bytes[topic] = max_record_bytes

    def produce(self, partition: TopicPartition, records: Produced) -> int:
        """Append records outside of any transaction; return the first one's offset."""
        return self._append(self.log(partition), records, None)

    def produce_in_transaction(
        self, transactional_id: str, epoch: int, partition: TopicPartition, records: Produced
    ) -> int:
        """Append records to the id's open transaction; return the first one's offset."""
        log = self.log(partition)
        return self._append(log, records, self.transactions.writing(transactional_id, epoch, log))

    def new_producer_id(self) -> int:
        """Return a new producer id; no producer is fenced."""
        return next(self._numbers)

    def _append(self, log: PartitionLog, records: Produced, transaction: Transaction | None) -> int:
        limit = self._max_record_bytes.get(log.name.topic)
        if limit is not None:
            for record in records:
                if len(record[0] or b"") + len(record[1] or b"") > limit:
                    raise RecordRefusedError(f"{log.name} takes records of {limit} bytes")
        base = log.end
        now_ms = self.wall_ms()
        for record in records:
            sent_ms = record[3] if len(record) > 3 else None
            timestamp_ms = now_ms if sent_ms is None else sent_ms
            log.append(record[0], record[1], timestamp_ms=timestamp_ms, headers=record[2], transaction=transaction)
        return base

    def commit_offsets_in_transaction(
        self,
        transactional_id: str,
        epoch: int,
        member: tuple[str, int],
        offsets: Mapping[TopicPartition, tuple[int, str]],
    ) -> None:
        """Add offsets to the id's transaction, as a member in its generation (KIP-447)."""
        self.group.check_member(*member)
        self.transactions.commit_offsets(transactional_id, epoch, self.group.name, offsets)

    def stable_offset(self, source: TopicPartition) -> Committed | None:
        """Return the committed offset.

        Raises:
            UnstableOffsetsError: an open transaction may change it.
        """
        found = self.group.committed(source)
        if self.transactions.is_pending(self.group.name, source):
            raise UnstableOffsetsError(str(source))
        return found

    def _commit_offsets(self, transaction: Transaction) -> None:
        for (group, source), (offset, metadata) in transaction.offsets.items():
            if group == self.group.name:
                self.group.complete(source, Committed(offset, metadata), transaction.appended[group, source])

    def start_of(self, partition: TopicPartition) -> int:
        """Return the partition's first offset."""
        return self.log(partition).start

    def end_of(self, partition: TopicPartition) -> int:
        """Return the partition's high watermark."""
        return self.log(partition).end

    def bounds(self, partition: TopicPartition) -> LogBounds:
        """Return both."""
        log = self.log(partition)
        return LogBounds(log.start, log.end)

    def open_records(self, partition: TopicPartition) -> list[StoredRecord] | None:
        """Return the records from the oldest open transaction on, None where none is open."""
        log = self.log(partition)
        if log.last_stable >= log.end:
            return None
        return log.read(log.last_stable, max_records=log.end, committed=False)[0]

    def fetch(
        self, partition: TopicPartition, start: int, max_records: int, topic_id: str = ""
    ) -> tuple[list[StoredRecord], int]:
        """Return committed records, and the offset to go on at.

        Raises:
            OffsetOutOfRangeError: the log doesn't have `start`.
            UnknownTopicIdError: the topic has another id than `topic_id`.
        """
        self._check_id(partition, topic_id)
        return self.log(partition).read(start, max_records=max_records)

    def poll(
        self,
        positions: Mapping[TopicPartition, int],
        max_records: int,
        timeout_s: float,
        *,
        ids: Mapping[TopicPartition, str] | None = None,
    ) -> asyncio.Future[dict[TopicPartition, tuple[list[StoredRecord], int]]]:
        """Return the records behind `positions` as soon as there are any; none after `timeout_s`.

        Of the topics with these `ids` only, if they are given; an empty one is any. The future raises
        `UnknownTopicIdError` where a topic has another.
        """
        answer: asyncio.Future[dict[TopicPartition, tuple[list[StoredRecord], int]]]
        answer = asyncio.get_running_loop().create_future()
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        self._try_poll(answer, positions, max_records, deadline_s, ids or {})
        return answer

    def _try_poll(
        self,
        answer: asyncio.Future[dict[TopicPartition, tuple[list[StoredRecord], int]]],
        positions: Mapping[TopicPartition, int],
        max_records: int,
        deadline_s: float,
        ids: Mapping[TopicPartition, str],
    ) -> None:
        if answer.done():
            return
        found = {}
        for partition, start in positions.items():
            try:
                records, reached = self.fetch(partition, start, max_records, ids.get(partition, ""))
            except (OffsetOutOfRangeError, UnknownTopicIdError) as error:
                answer.set_exception(error)
                # The caller may be dead or have given up: nobody may be left to take it.
                answer.exception()
                return
            if reached > start:
                found[partition] = (records, reached)
        loop = asyncio.get_running_loop()
        if found or loop.time() >= deadline_s:
            answer.set_result(found)
            return
        woken: asyncio.Future[None] = loop.create_future()
        undo = [self.log(partition).wait(woken) for partition in positions]
        timer = loop.call_at(deadline_s, _wake, woken, context=self._context)

        def again(_: object) -> None:
            timer.cancel()
            for take_back in undo:
                take_back()
            self._try_poll(answer, positions, max_records, deadline_s, ids)

        woken.add_done_callback(again, context=self._context)

    def _check_id(self, partition: TopicPartition, topic_id: str) -> None:
        topic = self._topics.get(partition.topic)
        if topic_id and (topic is None or topic_id != topic.topic_id):
            raise UnknownTopicIdError(partition)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
