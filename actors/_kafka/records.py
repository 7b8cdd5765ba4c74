"""Records as aiokafka's parser makes them, a whole batch at a time.

`getmany` copies every record into a `ConsumerRecord`, a frozen dataclass of eleven fields, which takes longer than
parsing it, and hands it through two generators. A consumer made with `key_deserializer=RAW` hands out the parser's own
records: they have `offset`, `timestamp`, `key`, `value` and `headers`; which topic and partition they are of says the
key under which `getmany` gives them. What aiokafka decides, which batches are aborted, damaged or control batches and
where the next fetch begins, stays its decision: its loop over the records of a batch meets `_Chunk`s of many.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from aiokafka.consumer import fetcher

CHUNK_RECORDS = 1_000
"""So many stay in a core's cache between being parsed and being used."""


def RAW(_: Any) -> Any:  # noqa: N802  a marker; it has to be callable to pass for a deserializer
    """Mark a consumer; never called."""
    raise AssertionError("records are handed out as they are")


class _Chunk:
    """Records of a batch in the place of one; its offset is the last one's."""

    __slots__ = ("offset", "records")

    def __init__(self, records: list[Any]) -> None:
        self.records = records
        self.offset = records[-1].offset


class _Batch:
    """A batch that gives `_Chunk`s."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[_Chunk]:
        records = chain(self._batch)
        while chunk := list(islice(records, CHUNK_RECORDS)):
            yield _Chunk(chunk)

    def __next__(self) -> Any:
        return next(self._batch)


class _Batches:
    """What was fetched, as `_Batch`es."""

    __slots__ = ("_batches", "has_next")

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.has_next = batches.has_next

    def next_batch(self) -> _Batch:
        return _Batch(self._batches.next_batch())


class _PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]
    """aiokafka's view of a fetch; for a marked consumer what it yields are lists of records."""

    def __init__(
        self, tp: Any, records: Any, aborted: Any, fetch_offset: int, key_deserializer: Any, *rest: Any
    ) -> None:
        self.is_raw = key_deserializer is RAW
        self._left_over: list[Any] = []
        super().__init__(
            tp, _Batches(records) if self.is_raw else records, aborted, fetch_offset, key_deserializer, *rest
        )

    def _consumer_record(self, tp: Any, record: Any) -> Any:
        if not self.is_raw:
            return super()._consumer_record(tp, record)
        records, begin = record.records, self.next_fetch_offset
        # A fetch may begin in the middle of a batch.
        return records if records[0].offset >= begin else [one for one in records if one.offset >= begin]

    def take(self, limit: float) -> tuple[list[Any], bool]:
        """Give up to `limit` records, and whether there may be more."""
        taken, self._left_over = self._left_over, []
        while len(taken) < limit:
            batch = next(self, None)
            if batch is None:
                return taken, False
            if taken:
                taken.extend(batch)
            else:
                taken = batch
        if len(taken) > limit:
            end = int(limit)
            self._left_over = taken[end:]
            del taken[end:]
        self.next_fetch_offset = taken[-1].offset + 1
        return taken, True


class _FetchResult(fetcher.FetchResult):  # type: ignore[misc]
    """aiokafka's fetch of a partition, which hands lists on as they are."""

    _partition_records: Any

    def getall(self, max_records: int | None = None) -> list[Any]:
        partition = self._partition_records
        if partition is None or not partition.is_raw:
            return list(super().getall(max_records))
        if not self.check_assignment(self._topic_partition):
            return []
        taken: list[Any]
        taken, has_more = partition.take(math.inf if max_records is None else max_records)
        self._update_position()
        if not has_more:
            self._partition_records = None
        return taken


fetcher.PartitionRecords = _PartitionRecords
fetcher.FetchResult = _FetchResult
