"""Batches that can't be read: what of them can be salvaged, and which offsets the rest takes.

A record or batch that can't be read raises in aiokafka, out of the fetch of all partitions. Here a `RefusedRecord`
takes its place.
"""

from __future__ import annotations

import gzip
import io
import struct
from typing import Any

from aiokafka.codec import lz4_decode, snappy_decode, zstd_decode
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecord
from aiokafka.record.memory_records import MemoryRecords

# The compiled one reads behind the end of a buffer, which can end the process.
from aiokafka.record.util import decode_varint_py as decode_varint

from actors._core.logs import error_text
from actors.errors import UnreadableRecordError
from actors.ports import RefusedRecord

UNPACKED_BYTES = 128 * 1024 * 1024
"""The limit of a batch in gzip, unpacked: a producer can send 1 MB that unpacks to 1 GB."""
CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_FRAME = struct.Struct(">qi")
_DELTA_AND_COUNT = struct.Struct(">i30xi")
_DELTA_PLACE = 23
_HEADER = struct.Struct(">q13xh4xqq14xi")
_CODEC, _LOG_APPEND_TIME = 0b111, 0b1000
NO_TIMESTAMP = -1


class Flawed(list[Any]):
    """Records with at least one `RefusedRecord` among them."""


class FetchedBytes:
    """The bytes that a broker sent of a partition, kept for batches that aiokafka can't read.

    Brokers send the first batch whole. If one doesn't, aiokafka skips a record; here the batch counts as damaged.
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
        """Return the bytes of a batch, and the first offset of the next one, None if there is none."""
        data, at = self.data, 0
        if len(data) < _FRAME.size:
            return data, None
        for _ in range(number):
            at += _FRAME.size + max(0, _FRAME.unpack_from(data, at)[1])
        end = at + _FRAME.size + max(0, _FRAME.unpack_from(data, at)[1])
        return data[at:end], _FRAME.unpack_from(data, end)[0] if end + _FRAME.size <= len(data) else None


def uncompressible(batch: Any) -> RefusedRecord:
    """Return the stand-in for a batch whose codec this process lacks."""
    codec = CODECS.get(batch.compression_type, f"codec {batch.compression_type}")
    first, last = batch.base_offset, batch.next_offset - 1
    error = _error(
        last,
        f"{_offsets_of(first, last)} compressed with {codec}, which this process can't read",
        remedy="Install the extra that has the codec (pip install 'faust-actors[compression]') and restart",
    )
    # Another process may have the codec.
    return RefusedRecord(first_offset=first, offset=last, error=error, stops=True)


def extent(raw: bytes, following: int | None, first: int) -> tuple[int, int]:
    """Return the first and the last offset of a damaged batch: never more offsets than are surely its own.

    `following` is the first offset of the next batch, None if there is none; `first` the first that may be its own.
    """
    if len(raw) < _HEADER.size:
        return first, first
    base, _ = _FRAME.unpack_from(raw)
    delta, count = _DELTA_AND_COUNT.unpack_from(raw, _DELTA_PLACE)
    is_likely = base <= first <= base + delta and delta + 1 >= count
    # The header may be damaged, or the length in it, by which the next batch was found.
    if following is not None and following > first:
        return first, min(following - 1, base + delta) if is_likely else following - 1
    return first, base + delta if is_likely and delta + 1 == count else first


def salvaged(raw: bytes, end: int) -> Flawed:
    """Return a batch's records up to the first broken one, and a `RefusedRecord` for the rest before offset `end`."""
    records, (base, attributes, first_ms, last_ms, count) = Flawed(), _HEADER.unpack_from(raw)
    is_appended = bool(attributes & _LOG_APPEND_TIME)
    try:
        unpack, at = _UNPACK.get(attributes & _CODEC), 0
        buffer = bytearray(raw[_HEADER.size :] if unpack is None else unpack(raw[_HEADER.size :]))
        for _ in range(count):
            record, at = _read(buffer, at, base, first_ms, last_ms if is_appended else None)
            records.append(record)
    except Exception as error:
        first = records[-1].offset + 1 if records else base
        records.append(damage(first, max(first, end - 1), error_text(error)))
    return records or Flawed([damage(base, end - 1, "it has no records")])


def _read(
    buffer: bytearray, at: int, base: int, first_ms: int, appended_ms: int | None
) -> tuple[DefaultRecord | RefusedRecord, int]:
    """Read a record whose header names may be any bytes; return it and where the next one begins."""
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
    offset, timestamp = base + delta, first_ms + after_ms if appended_ms is None else appended_ms
    record = DefaultRecord(offset, timestamp, 0, key, value, headers)
    if broken is None:
        return record, at
    reason, remedy = f"the name of the header {broken!r} isn't UTF-8", "Have its producer name the header in UTF-8"
    error = _error(offset, reason, remedy=f"{remedy} and send the record again", key=key)
    return RefusedRecord(first_offset=offset, offset=offset, error=error, original=record, timestamp=timestamp), at


def _read_bytes(buffer: bytearray, at: int) -> tuple[bytes | None, int]:
    length, at = decode_varint(buffer, at)
    if at + length > len(buffer):
        raise CorruptRecordException(f"{length} bytes are announced where {len(buffer) - at} are left")
    return (None, at) if length < 0 else (bytes(buffer[at : at + length]), at + length)


def dated(record: Any) -> Any:
    """Return a record that has a timestamp: -1 if its format has none, as Kafka's own client does."""
    if record.timestamp is not None:
        return record
    return DefaultRecord(record.offset, NO_TIMESTAMP, 0, record.key, record.value, [])


def damage(first: int, last: int, why: str, *, is_checksum: bool = False) -> RefusedRecord:
    """Return the stand-in for damaged records; another fetch may mend a wrong checksum."""
    error = _error(
        last,
        f"{_offsets_of(first, last)} damaged in the log, or aren't what Kafka's format says ({why})",
        remedy="Look at the partition's log segment on the brokers (kafka-dump-log.sh), and restart when it is mended",
    )
    return RefusedRecord(first_offset=first, offset=last, error=error, may_be_transient=is_checksum)


def _error(offset: int, reason: str, *, remedy: str, key: bytes | None = None) -> UnreadableRecordError:
    error = UnreadableRecordError(reason, topic="", partition=-1, offset=offset, key=key)
    error.remedy = remedy
    return error


def _offsets_of(first: int, last: int) -> str:
    return f"the records at offsets {first} to {last} are" if last > first else f"the records at offset {last} are"


def gunzip(payload: bytes) -> bytes:
    """Unpack a batch in gzip.

    Raises:
        CorruptRecordException: it unpacks to more than `UNPACKED_BYTES`.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as file:
        content = file.read(UNPACKED_BYTES + 1)
    if len(content) > UNPACKED_BYTES:
        raise CorruptRecordException(f"a batch of {len(payload)} bytes unpacks to more than {UNPACKED_BYTES}")
    return content


_UNPACK = {1: gunzip, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
