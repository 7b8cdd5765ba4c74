"""A partition's log as a broker keeps it: offsets, transactions' markers, the last stable offset, compaction."""

from __future__ import annotations

import asyncio
import bisect
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from actors.ports import TopicPartition
from actors.testing.fakes.errors import OffsetOutOfRangeError

offset_of = attrgetter("offset")


class Decision(enum.Enum):
    """How a transaction ends. It holds from the moment the coordinator writes it down; the markers follow."""

    OPEN = "open"
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction.

    Attributes:
        transactional_id: whose it is.
        epoch: the producer epoch it was begun with.
        logs: the partitions it was announced for.
        offsets: by group and partition, the offset and metadata it commits.
        appended: by the same, when that was written into the group's log.
        has_pending_offsets: whether the offsets have no marker yet.
    """

    transactional_id: str
    epoch: int
    decision: Decision = Decision.OPEN
    logs: dict[PartitionLog, None] = field(default_factory=dict)
    offsets: dict[tuple[str, TopicPartition], tuple[int, str]] = field(default_factory=dict)
    appended: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    unmarked: int = 0
    has_pending_offsets: bool = False


@dataclass(slots=True, eq=False)
class StoredRecord:
    """A record in a log; has what `actors.ports.InputRecord` asks for.

    Attributes:
        transaction: None for a record that was written outside of any.
        is_marker: whether it is the marker that ends `transaction` here; readers are never given one.
        removable_ms: when `tests/sim` may compact a tombstone or a marker, None before a pass has seen it.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    transaction: Transaction | None
    is_marker: bool = False
    removable_ms: int | None = None

    @property
    def is_committed(self) -> bool:
        """True if a reader of committed records gets it, once the last stable offset is behind it."""
        return not self.is_marker and (self.transaction is None or self.transaction.decision is Decision.COMMIT)


class PartitionLog:
    """One partition.

    Attributes:
        start, end: the first offset and the high watermark.
        delete_retention_ms: the topic's `delete.retention.ms`.
        history: every record that was ever appended, markers not; compaction leaves it alone. For checks.
    """

    def __init__(self, name: TopicPartition, *, is_compacted: bool, delete_retention_ms: int) -> None:
        self.name = name
        self.is_compacted = is_compacted
        self.start = 0
        self.end = 0
        self.history: list[StoredRecord] = []
        self.delete_retention_ms = delete_retention_ms
        self._records: list[StoredRecord] = []
        self._open: dict[Transaction, int] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}

    def __repr__(self) -> str:
        return f"<PartitionLog {self.name} {self.start}..{self.end}>"

    @property
    def last_stable(self) -> int:
        """The offset before which every transaction has its marker: how far readers of committed records get."""
        return min(self._open.values(), default=self.end)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes]] = (),
        transaction: Transaction | None = None,
    ) -> int:
        """Append a record and give its offset."""
        if transaction is not None:
            self._open.setdefault(transaction, self.end)
        record = StoredRecord(
            self.name.topic, self.name.partition, self.end, timestamp_ms, key, value, headers, transaction
        )
        self.history.append(record)
        self._put(record)
        if transaction is None and not self._open:
            self._notify()
        return record.offset

    def mark(self, transaction: Transaction, timestamp_ms: int) -> None:
        """Write the marker that ends a transaction here."""
        topic, partition = self.name
        self._put(StoredRecord(topic, partition, self.end, timestamp_ms, None, None, (), transaction, is_marker=True))
        self._open.pop(transaction, None)
        self._notify()

    def _put(self, record: StoredRecord) -> None:
        self._records.append(record)
        self.end += 1

    def read(self, start: int, *, max_records: int, committed: bool = True) -> tuple[list[StoredRecord], int]:
        """Return records from `start` on, and the offset to go on at, which may lie behind markers and gaps.

        Raises:
            OffsetOutOfRangeError: the log doesn't have that offset.
        """
        if not self.start <= start <= self.end:
            raise OffsetOutOfRangeError(self.name, start)
        limit = self.last_stable if committed else self.end
        found: list[StoredRecord] = []
        for index in range(bisect.bisect_left(self._records, start, key=offset_of), len(self._records)):
            record = self._records[index]
            if record.offset >= limit:
                break
            if record.is_committed or not (committed or record.is_marker):
                found.append(record)
                if len(found) >= max_records:
                    return found, record.offset + 1
        return found, max(start, limit)

    def delete_before(self, offset: int) -> None:
        """Drop what is older, as retention or an operator's DeleteRecords does."""
        self.start = max(self.start, min(offset, self.end))
        del self._records[: bisect.bisect_left(self._records, self.start, key=offset_of)]

    def wait(self, future: asyncio.Future[None]) -> Callable[[], None]:
        """Have `future` resolved when readers may get further; gives what takes that back."""
        self._waiting[future] = None
        return lambda: self._waiting.pop(future, None) and None

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)
