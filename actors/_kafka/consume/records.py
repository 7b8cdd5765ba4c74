"""Records as aiokafka's parser makes them, a whole batch at a time.

`getmany` copies every record into a `ConsumerRecord`, a frozen dataclass of eleven fields, which takes longer than
parsing it, and passes it through two generators. A `Consumer` of ours is marked with `RAW` and returns the parser's own
records, with `offset`, `timestamp`, `key`, `value` and `headers`; topic and partition are the key under which `getmany`
returns them. aiokafka still decides which batches are aborted or control batches and where the next fetch begins: its
loop over the records of a batch gets `_Chunk`s of many records instead.

Where a record or batch can't be read, a marked consumer returns a `RefusedRecord` in a list that is `Flawed`. The
readers of the partition decide what to do with it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record import default_records
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch

from actors._kafka.client import RAW, FetchResult, PartitionRecords
from actors._kafka.consume.damaged import FetchedBytes, Flawed, damage, dated, extent, gunzip, salvaged, uncompressible
from actors.errors import UnreadableLogError
from actors.ports import LogRecord, RefusedRecord, TopicPartition

CHUNK_RECORDS = 1_000
"""So many records stay in a core's cache between being parsed and being used."""
FETCHES = 3
"""How often a damaged batch is fetched before it counts as damaged in the log, and not by the network."""


class _Chunk:
    """Records of a batch in the place of one; its offset is the last one's."""

    __slots__ = ("offset", "records")

    def __init__(self, records: list[Any]) -> None:
        self.records = records
        self.offset = records[-1].offset


def readable(source: TopicPartition, records: Sequence[LogRecord]) -> Sequence[LogRecord]:
    """Return the records of a log of which only keys and values matter; costs nothing where none is `RefusedRecord`.

    Raises:
        UnreadableLogError: some can't be read at all.
    """
    if type(records) is not Flawed:
        return records
    found: list[LogRecord] = []
    for record in records:
        one = record.original if isinstance(record, RefusedRecord) else record
        if one is None:
            why = f"{TopicPartition(*source)}: {record.error.reason}. {record.error.remedy}"
            raise UnreadableLogError(why, source=source, next_offset=record.offset + 1)
        found.append(one)
    return found


class _Batch:
    """A batch that yields `_Chunk`s."""

    __slots__ = ("_batch", "_raw")

    def __init__(self, batch: Any, raw: Callable[[], tuple[bytes, int | None]]) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[_Chunk]:
        try:
            records = map(dated, self._batch) if type(self._batch) is LegacyRecordBatch else chain(self._batch)
            while chunk := list(islice(records, CHUNK_RECORDS)):
                yield _Chunk(chunk)
        except UnsupportedCodecError:
            yield _Chunk(Flawed([uncompressible(self._batch)]))
        except Exception:
            # Again from its start: aiokafka skips by their offsets those that it has already.
            yield _Chunk(salvaged(self._raw()[0], self._batch.next_offset))

    def __next__(self) -> Any:
        return next(self._batch)


class _DamagedBatch:
    """Takes the place of a batch whose bytes can't be trusted; has one `RefusedRecord`."""

    __slots__ = ("_record", "base_offset", "next_offset")
    producer_id: None = None
    is_control_batch = is_transactional = False

    def __init__(self, first: int, last: int, why: str) -> None:
        self.base_offset = first
        self.next_offset = last + 1
        self._record = damage(first, last, why, is_checksum=True)

    def __iter__(self) -> Iterator[_Chunk]:
        yield _Chunk(Flawed([self._record]))


class _Batches:
    """Fetched records, as `_Batch`es.

    A damaged batch is the last one: it may have ended an aborted transaction, and then it is unknown which records
    behind it are committed. The next fetch begins behind it, and brings that knowledge.
    """

    __slots__ = ("_begin", "_checks", "_fetched", "_is_cut", "_last", "_number")

    def __init__(self, fetched: Any, *, checks: bool, begin: int) -> None:
        self._fetched = fetched
        self._checks = checks
        self._begin = begin
        self._last: Any = None
        self._number = 0
        self._is_cut = False

    def has_next(self) -> bool:
        return not self._is_cut and self._fetched.has_next()

    def next_batch(self) -> _Batch | _DamagedBatch:
        number, self._number = self._number, self._number + 1
        try:
            batch = self._fetched.next_batch()
            if not self._checks or batch.validate_crc():
                self._last = batch
                return _Batch(batch, partial(self._fetched.raw, number))
            why = "the checksum is wrong"
        except CorruptRecordException as error:
            why = str(error)
        self._is_cut = True
        raw, following = self._fetched.raw(number)
        first = self._begin if self._last is None else max(self._begin, self._last.next_offset)
        return _DamagedBatch(*extent(raw, following, first), why)


class _PartitionRecords(PartitionRecords):
    """For a marked consumer it yields lists of records."""

    def __init__(
        self,
        tp: Any,
        records: Any,
        aborted: Any,
        fetch_offset: int,
        key_deserializer: Any,
        value_deserializer: Any,
        check_crcs: bool,
        isolation_level: int,
    ) -> None:
        self.is_raw = key_deserializer is RAW
        self._left_over: list[Any] = []
        if self.is_raw:
            records = _Batches(records, checks=check_crcs, begin=fetch_offset)
        rest = key_deserializer, value_deserializer, check_crcs and not self.is_raw, isolation_level
        super().__init__(tp, records, aborted, fetch_offset, *rest)

    def shown(self, partition: Any, record: Any) -> Any:
        if not self.is_raw:
            return super().shown(partition, record)
        records, begin = record.records, self.next_fetch_offset
        # A fetch may begin in the middle of a batch.
        if records[0].offset >= begin:
            return records
        return type(records)(record for record in records if record.offset >= begin)

    def take(self, limit: float) -> tuple[list[Any], bool]:
        """Return up to `limit` records, and whether there may be more."""
        taken, self._left_over = self._left_over, []
        while len(taken) < limit:
            batch = next(self, None)
            if batch is None:
                return taken, False
            if not taken:
                taken = batch
            elif type(batch) is Flawed:
                taken = Flawed(taken + batch)
            else:
                taken.extend(batch)
        if len(taken) > limit:
            end = int(limit)
            self._left_over = type(taken)(taken[end:])
            del taken[end:]
        self.next_fetch_offset = taken[-1].offset + 1
        return taken, True


class _FetchResult(FetchResult):
    """A fetch of a partition that returns lists as they are."""

    def getall(self, max_records: int | None = None) -> list[Any]:
        records = self.records
        if records is None or not records.is_raw:
            return list(super().getall(max_records))
        if not self.is_wanted():
            return []
        taken: list[Any]
        taken, has_more = records.take(math.inf if max_records is None else max_records)
        if type(taken) is Flawed and self._is_fetched_again(taken[-1]):
            last = taken.pop()
            records.next_fetch_offset = taken[-1].offset + 1 if taken else last.first_offset
            has_more = False
        self.moved(has_more=has_more)
        return taken

    def _is_fetched_again(self, last: Any) -> bool:
        """Return whether this is a damaged batch that may be whole when it is fetched the next time."""
        if not isinstance(last, RefusedRecord) or not last.may_be_transient:
            return False
        state = self.state
        offset, times = getattr(state, "damaged", (None, 0))
        state.damaged = last.offset, times + 1 if offset == last.offset else 1
        return bool(state.damaged[1] < FETCHES)


# The compiled parser has names of its own, unless aiokafka runs without it.
for _module in (default_records, sys.modules[DefaultRecordBatch.__module__]):
    vars(_module)["gzip_decode"] = gunzip
fetcher.MemoryRecords = FetchedBytes
fetcher.PartitionRecords = _PartitionRecords
fetcher.FetchResult = _FetchResult
