"""The simulated cluster of the product's test driver, with a group of members, compaction and what operators do."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable

from actors.ports import TopicPartition
from actors.testing.fakes.cluster import MemoryKafka, Produced, Topic
from actors.testing.fakes.errors import RefusedError
from actors.testing.fakes.log import PartitionLog, StoredRecord, Transaction, offset_of
from actors.testing.fakes.transactions import TransactionCoordinator
from tests.sim.fakes.group import CoordinatorMovedError, Group


class CompactedLog(PartitionLog):
    """A partition's log that can be compacted."""

    def compact(self, now_ms: int, before: int) -> int:
        """Keep the last committed record of each key below `before`, and give how many went.

        Aborted records go at once. Tombstones, and markers whose transaction has no record left here, stay for
        `delete.retention.ms` from the first pass that sees them so (KIP-534). The log's last record always stays, and
        offsets never change.
        """
        before = min(before, self.last_stable, self.end - 1)
        cleanable = bisect.bisect_left(self._records, before, key=offset_of)
        last = {record.key: record for record in self._records[:cleanable] if record.is_committed}
        in_use = {
            record.transaction
            for index, record in enumerate(self._records)
            if not record.is_marker and (index >= cleanable or last.get(record.key) is record)
        }
        kept = [
            record
            for record in self._records[:cleanable]
            if (record.is_marker or last.get(record.key) is record) and not self._is_over(record, in_use, now_ms)
        ]
        removed = cleanable - len(kept)
        self._records[:cleanable] = kept
        return removed

    def _is_over(self, record: StoredRecord, in_use: set[Transaction | None], now_ms: int) -> bool:
        """Return whether a tombstone or marker was kept long enough; begins to count when it is first asked."""
        if (record.transaction in in_use) if record.is_marker else (record.value is not None):
            return False
        if record.removable_ms is None:
            record.removable_ms = now_ms + self.delete_retention_ms
            return False
        return now_ms >= record.removable_ms


class MovingCoordinator(TransactionCoordinator):
    """A transaction coordinator that refuses everything while `is_moving` is true."""

    is_moving = False

    def _check_available(self) -> None:
        if self.is_moving:
            raise CoordinatorMovedError("the transaction coordinator is loading")


class OutOfOrderSequenceError(RefusedError):
    """An idempotent producer's batch came before the one in front of it."""


class SimKafka(MemoryKafka):
    """The cluster; `Network` delays requests to it.

    Attributes:
        on_append: called with the log and the first offset of each batch.
    """

    log_type = CompactedLog
    coordinator_type = MovingCoordinator
    transactions: MovingCoordinator
    group: Group

    def __init__(self, group: str, *, rebalance_s: float = 10.0, marker_s: Callable[[], float] = lambda: 0.001) -> None:
        super().__init__(group, marker_s=marker_s)
        self.group = Group(group, rebalance_s=rebalance_s, appended=self.appended)
        self.on_append: list[Callable[[PartitionLog, int], None]] = []
        self._idempotent: dict[tuple[int, TopicPartition], tuple[int, int]] = {}

    def _append(self, log: PartitionLog, records: Produced, transaction: Transaction | None) -> int:
        base = super()._append(log, records, transaction)
        for observe in self.on_append:
            observe(log, base)
        return base

    def produce_idempotent(self, producer_id: int, sequence: int, partition: TopicPartition, records: Produced) -> int:
        """Append a batch outside of any transaction, and give the first one's offset; a repeat appends nothing.

        Raises:
            OutOfOrderSequenceError: the batch before it is missing.
        """
        last, base = self._idempotent.get((producer_id, partition), (-1, -1))
        if sequence <= last:
            return base if sequence == last else -1
        if sequence > last + 1:
            raise OutOfOrderSequenceError(f"{partition}: {sequence} after {last} of producer {producer_id}")
        base = self.produce(partition, records)
        self._idempotent[producer_id, partition] = (sequence, base)
        return base

    def grow_topic(self, name: str, partitions: int) -> Topic:
        """Return a topic more partitions, as an operator does."""
        topic = self._topics[name]
        first = topic.partitions[0]
        more = tuple(
            self.log_type(
                TopicPartition(name, number),
                is_compacted=first.is_compacted,
                delete_retention_ms=first.delete_retention_ms,
            )
            for number in range(len(topic.partitions), partitions)
        )
        grown = self._topics[name] = Topic(name, topic.topic_id, topic.partitions + more)
        return grown

    def recreate_topic(self, name: str) -> Topic:
        """Delete a topic, and make one of the same name and settings."""
        logs = self._topics[name].partitions
        self.delete_topic(name)
        return self.make_topic(
            name, len(logs), is_compacted=logs[0].is_compacted, delete_retention_ms=logs[0].delete_retention_ms
        )

    def logs(self) -> list[PartitionLog]:
        """Return every partition of every topic."""
        return [log for topic in self._topics.values() for log in topic.partitions]


def fold(records: Iterable[StoredRecord], end: int | None = None) -> dict[bytes, StoredRecord]:
    """Return the last committed record of each key below `end`, deleted keys left out."""
    state: dict[bytes, StoredRecord] = {}
    for record in records:
        if end is not None and record.offset >= end:
            break
        if record.key is None or not record.is_committed:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record
    return state
