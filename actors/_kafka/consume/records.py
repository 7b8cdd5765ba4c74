"""Records as aiokafka's parser makes them, a whole batch at a time.

`getmany` copies every record into a `ConsumerRecord`, a frozen dataclass of eleven fields, which takes longer than
parsing it, and hands it through two generators. A consumer made with `key_deserializer=RAW` hands out the parser's own
records: they have `offset`, `timestamp`, `key`, `value` and `headers`; which topic and partition they are of says the
key under which `getmany` gives them. What aiokafka decides, which batches are aborted, damaged or control batches and
where the next fetch begins, stays its decision: its loop over the records of a batch meets `_Chunk`s of many.

A record or batch that can't be read raises in aiokafka, out of the fetch of all partitions. For a marked consumer an
`Unreadable` takes its place, in a list that is `Flawed`; what becomes of it is for those who read the partition.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record import default_records
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy, _DefaultRecordPy
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint
from aiokafka.structs import TopicPartition as KafkaPartition

from actors.errors import UnreadableLogError
from actors.ports import LogRecord, TopicPartition, Unreadable

CHUNK_RECORDS = 1_000
"""So many stay in a core's cache between being parsed and being used."""
FETCHES = 3
"""How often a damaged batch is fetched before it counts as damaged in the log, not on the way."""
UNPACKED_BYTES = 128 * 1024 * 1024
"""What a batch in gzip may unpack to: a producer can send 1 MB that unpacks to 1 GB."""
CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_FRAME = struct.Struct(">qi")
_DELTA_AND_COUNT = struct.Struct(">i30xi")
_DELTA_PLACE = 23
_HEADER_BYTES = 61


def RAW(_: Any) -> Any:  # noqa: N802  a marker; it has to be callable to pass for a deserializer
    """Mark a consumer; never called."""
    raise AssertionError("records are handed out as they are")


async def fetched(
    consumer: AIOKafkaConsumer, *partitions: KafkaPartition, timeout_s: float, max_records: int | None = None
) -> Mapping[KafkaPartition, Sequence[Any]]:
    """Give what `getmany` gives, and raise what ended the consumer's fetches, which it would wait for in vain.

    Raises:
        KafkaError: a fetch failed, or a broker's answer made no sense, as one of a partition that wasn't asked for.
    """
    found: Mapping[KafkaPartition, Sequence[Any]] = await consumer.getmany(
        *partitions, timeout_ms=int(timeout_s * 1000), max_records=max_records
    )
    if not found and (ended := consumer._fetcher.error_future).done() and not ended.cancelled():
        ended.result()
    return found


class _Chunk:
    """Records of a batch in the place of one; its offset is the last one's."""

    __slots__ = ("offset", "records")

    def __init__(self, records: list[Any]) -> None:
        self.records = records
        self.offset = records[-1].offset


class Flawed(list[Any]):
    """Records with at least one `Unreadable` among them."""


def readable(source: TopicPartition, records: Sequence[LogRecord]) -> Sequence[LogRecord]:
    """Give the records of a log whose keys and values are all that matters; costs nothing where none is `Unreadable`.

    Raises:
        UnreadableLogError: some can't be read at all.
    """
    if type(records) is not Flawed:
        return records
    found: list[LogRecord] = []
    for record in records:
        one = record.original if isinstance(record, Unreadable) else record
        if one is None:
            why = f"{TopicPartition(*source)}: {record.reason}. {record.remedy}"
            raise UnreadableLogError(why, source=source, next_offset=record.offset + 1)
        found.append(one)
    return found


class _Fetched:
    """What a broker sent of a partition. Its bytes are kept for batches that aiokafka can't read.

    Brokers send the first batch whole. aiokafka passes over a record where one didn't; here it counts as damaged.
    """

    __slots__ = ("_is_cut", "data", "has_next", "next_batch", "size_in_bytes")

    def __init__(self, data: bytes) -> None:
        records = MemoryRecords(data)
        self.data = data
        self.has_next = records.has_next
        self.next_batch = records.next_batch
        self.size_in_bytes = records.size_in_bytes
        self._is_cut = bool(data) and not records.has_next()
        if self._is_cut:
            self.has_next, self.next_batch = self._has_part, self._refuse_part

    def _has_part(self) -> bool:
        return self._is_cut

    def _refuse_part(self) -> None:
        self._is_cut = False
        raise CorruptRecordException(f"only {len(self.data)} bytes of it came")

    def raw(self, number: int) -> tuple[bytes, int | None]:
        """Give the bytes of a batch, and the first offset of the next one, None if there is none."""
        data, at = self.data, 0
        if len(data) < _FRAME.size:
            return data, None
        for _ in range(number):
            at += _FRAME.size + max(0, _FRAME.unpack_from(data, at)[1])
        end = at + _FRAME.size + max(0, _FRAME.unpack_from(data, at)[1])
        return data[at:end], _FRAME.unpack_from(data, end)[0] if end + _FRAME.size <= len(data) else None


class _Batch:
    """A batch that gives `_Chunk`s."""

    __slots__ = ("_batch", "_raw")

    def __init__(self, batch: Any, raw: Callable[[], tuple[bytes, int | None]]) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[_Chunk]:
        try:
            records = chain(self._batch)
            while chunk := list(islice(records, CHUNK_RECORDS)):
                yield _Chunk(chunk)
        except UnsupportedCodecError:
            yield _Chunk(Flawed([self._uncompressible()]))
        except Exception:
            # Again from its start: those that were given already are passed over by their offsets.
            yield _Chunk(_salvaged(self._raw()[0], self._batch.next_offset))

    def __next__(self) -> Any:
        return next(self._batch)

    def _uncompressible(self) -> Unreadable:
        batch = self._batch
        codec = CODECS.get(batch.compression_type, f"codec {batch.compression_type}")
        return Unreadable(
            first_offset=batch.base_offset,
            offset=batch.next_offset - 1,
            reason=f"{_offsets(batch.base_offset, batch.next_offset - 1)} compressed with {codec}, which this "
            "process can't read",
            remedy="Install the extra that has the codec (pip install 'faust-actors[compression]') and restart",
            lacks_codec=True,
        )


class _DamagedBatch:
    """In the place of a batch whose bytes can't be trusted; one `Unreadable` is all that it has."""

    __slots__ = ("_record", "base_offset", "next_offset")
    producer_id: None = None
    is_control_batch = is_transactional = False

    def __init__(self, first: int, last: int, why: str) -> None:
        self.base_offset = first
        self.next_offset = last + 1
        self._record = _damage(first, last, why, is_checksum=True)

    def __iter__(self) -> Iterator[_Chunk]:
        yield _Chunk(Flawed([self._record]))


class _Batches:
    """What was fetched, as `_Batch`es.

    A damaged batch is the last one: if it was the end of an aborted transaction, whose records behind it are committed
    isn't known. The next fetch begins behind it, and knows.
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
        return _DamagedBatch(*self._extent(number), why)

    def _extent(self, number: int) -> tuple[int, int]:
        """Give the first and the last offset of a damaged batch, as far as that can be told: never too many."""
        raw, following = self._fetched.raw(number)
        first = self._begin if self._last is None else max(self._begin, self._last.next_offset)
        if len(raw) < _HEADER_BYTES:
            return first, first
        base, _ = _FRAME.unpack_from(raw)
        delta, count = _DELTA_AND_COUNT.unpack_from(raw, _DELTA_PLACE)
        is_likely = base <= first <= base + delta and delta + 1 >= count
        # Its header may be what is damaged, or its length, which leads to what is taken for the next one.
        if following is not None and following > first:
            return first, min(following - 1, base + delta) if is_likely else following - 1
        return first, base + delta if is_likely and delta + 1 == count else first


def _salvaged(raw: bytes, end: int) -> Flawed:
    """Give the records of a batch up to one whose structure is broken; all before offset `end` are accounted for."""
    records, batch = Flawed(), _DefaultRecordBatchPy(raw)
    try:
        iter(batch)
        buffer, at = batch._buffer, batch._pos
        for _ in range(batch._num_records):
            record, at = _read(batch, buffer, at)
            records.append(record)
    except Exception as error:
        first = records[-1].offset + 1 if records else batch.base_offset
        records.append(_damage(first, max(first, end - 1), f"{type(error).__name__}: {error}"))
    return records or Flawed([_damage(batch.base_offset, end - 1, "it has no records")])


def _read(batch: Any, buffer: bytearray, at: int) -> tuple[_DefaultRecordPy | Unreadable, int]:
    """Read a record whose header names may be anything, and where the next one begins."""
    length, at = decode_varint(buffer, at)
    end = at + length
    _, at = decode_varint(buffer, at)
    after_ms, at = decode_varint(buffer, at)
    delta, at = decode_varint(buffer, at)
    key, at = _read_bytes(buffer, at)
    value, at = _read_bytes(buffer, at)
    count, at = decode_varint(buffer, at)
    headers, broken = [], None
    for _ in range(count):
        name, at = _read_bytes(buffer, at)
        data, at = _read_bytes(buffer, at)
        text = (name or b"").decode(errors="backslashreplace")
        broken = name if text.encode() != name and broken is None else broken
        headers.append((text, data))
    if at != end:
        raise CorruptRecordException(f"a record of {length} bytes ends after {at - end + length}")
    offset, is_appended = batch.base_offset + delta, batch.timestamp_type
    timestamp = batch.max_timestamp if is_appended else batch.first_timestamp + after_ms
    record = _DefaultRecordPy(offset, timestamp, batch.timestamp_type, key, value, headers)
    if broken is None:
        return record, at
    return Unreadable(
        first_offset=offset,
        offset=offset,
        timestamp=timestamp,
        reason=f"the name of the header {broken!r} isn't UTF-8",
        remedy="Have its producer name the header in UTF-8 and send the record again",
        original=record,
    ), at


def _read_bytes(buffer: bytearray, at: int) -> tuple[bytes | None, int]:
    length, at = decode_varint(buffer, at)
    return (None, at) if length < 0 else (bytes(buffer[at : at + length]), at + length)


def _damage(first: int, last: int, why: str, *, is_checksum: bool = False) -> Unreadable:
    return Unreadable(
        first_offset=first,
        offset=last,
        reason=f"{_offsets(first, last)} damaged in the log, or aren't what Kafka's format says ({why})",
        remedy="Look at the partition's log segment on the brokers (kafka-dump-log.sh), and restart when it is mended",
        may_be_transient=is_checksum,
    )


def _offsets(first: int, last: int) -> str:
    return f"the records at offsets {first} to {last} are" if last > first else f"the records at offset {last} are"


class _PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]
    """aiokafka's view of a fetch; for a marked consumer what it yields are lists of records."""

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

    def _consumer_record(self, tp: Any, record: Any) -> Any:
        if not self.is_raw:
            return super()._consumer_record(tp, record)
        records, begin = record.records, self.next_fetch_offset
        # A fetch may begin in the middle of a batch.
        if records[0].offset >= begin:
            return records
        return type(records)(one for one in records if one.offset >= begin)

    def take(self, limit: float) -> tuple[list[Any], bool]:
        """Give up to `limit` records, and whether there may be more."""
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
        if type(taken) is Flawed and self._is_fetched_again(taken[-1]):
            last = taken.pop()
            partition.next_fetch_offset = taken[-1].offset + 1 if taken else last.first_offset
            has_more = False
        self._update_position()
        if not has_more:
            self._partition_records = None
        return taken

    def _is_fetched_again(self, last: Any) -> bool:
        """Whether this is a damaged batch that may be whole when it is fetched the next time."""
        if not isinstance(last, Unreadable) or not last.may_be_transient:
            return False
        state = self._assignment.state_value(self._topic_partition)
        offset, times = getattr(state, "damaged", (None, 0))
        state.damaged = last.offset, times + 1 if offset == last.offset else 1
        return bool(state.damaged[1] < FETCHES)


def _gunzip(payload: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as file:
        content = file.read(UNPACKED_BYTES + 1)
    if len(content) > UNPACKED_BYTES:
        raise CorruptRecordException(f"a batch of {len(payload)} bytes unpacks to more than {UNPACKED_BYTES}")
    return content


# The compiled parser has names of its own, unless aiokafka runs without it.
for _module in (default_records, sys.modules[DefaultRecordBatch.__module__]):
    vars(_module)["gzip_decode"] = _gunzip
fetcher.MemoryRecords = _Fetched
fetcher.PartitionRecords = _PartitionRecords
fetcher.FetchResult = _FetchResult
