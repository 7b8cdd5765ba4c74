"""How the records of a join lie in a store, so that a record reads and writes few rows, however many its key has.

    "j" segment side chunk key        up to `CHUNK_BYTES` of a key's records of one input whose times lie in a segment
    "u" end side chunk place key      its headers for the close: that record matched none so far; its window ends then
    "m"                               `stores._core.windows.Progress`

A join of one with many has the same rows for records that wait, all in segment 0, with `Early` as their values. Its "u"
says when a `one` ends, or the latest time at which records of a key that wait can match. And it has

    "o" key                           the key's `One`, behind those that wait for their close

A record is found by its segment of time, the number of its chunk and its place there: chunks only grow. The first chunk
says how many there are, so all of a key's records in a segment are that many gets. Values begin with "o", or with "c"
and that number (`actors._core.windows.lists`). Times and segments are 8 bytes, sides 1, chunks and places 4, all
big-endian. The key is last, so that it needs no length.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from actors._core.outside import MALFORMED
from actors._core.windows.lists import LIST_HEAD_BYTES, appended, count_of, list_head, number_of, without_header
from stores._core.windows import CHUNK_KEY_AT, KEY_AT, LIST_AT, SIDE_AT, UNMATCHED_KEY_AT, WORD, decode_progress

LEFT, RIGHT = 0, 1
CHUNK, UNMATCHED = b"j", b"u"
CONTENT, ONES, HEADERS = b"c", b"o", b"h"
CHUNK_BYTES = 2_048
"""A chunk that a further record would make longer gets none; one record may be longer."""
_SIDE, _NUMBER = 1, 4
T = TypeVar("T")
_pack_chunk = struct.Struct(">cQBI").pack


class Kept(msgspec.Struct, array_like=True, gc=False):
    """A record that later ones of the other input may match: its time, and its value as it came."""

    at_ms: int
    value: bytes


class Early(msgspec.Struct, array_like=True, gc=False):
    """A record that waits for its `one`, as it came; its time is beside it."""

    offset: int
    headers: list[tuple[str, bytes]]
    value: bytes


class One(msgspec.Struct, array_like=True, gc=False):
    """A record that many may match: those before `until_ms`. `is_matched` is kept where it matters."""

    at_ms: int
    until_ms: int
    value: bytes
    is_matched: bool = False

    @property
    def end_ms(self) -> int:
        """The last time at which it is open: no earlier than its own, so that it isn't late when it comes."""
        return max(self.until_ms - 1, self.at_ms)


class Unmatched(NamedTuple):
    """The row of a record without a match."""

    end_ms: int
    side: int
    chunk: int
    place: int
    raw_key: bytes


_HEAD_OF_ONE = list_head(CONTENT, 0, 1)
_encode = msgspec.msgpack.Encoder().encode
_decode_records = msgspec.msgpack.Decoder(list[Kept]).decode
_decode_early = msgspec.msgpack.Decoder(Early).decode
_decode_ones = msgspec.msgpack.Decoder(list[One]).decode
_decode_headers = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


def encode_chunk(records: list[Kept]) -> bytes:
    """Return the value of a chunk's row, the last one of its key and segment."""
    return list_head(CONTENT, 0, len(records)) + without_header(_encode(records), len(records))


def with_record(raw: bytes | None, record: Kept) -> bytes:
    """Return a chunk, None if there is none, with one more record."""
    # Hot: most keys have one record there.
    return _HEAD_OF_ONE + _encode(record) if raw is None else appended(raw, _encode(record), CONTENT, number_of(raw))


def with_last_chunk(raw: bytes, number: int) -> bytes:
    """Return the first chunk with the number of the last one, which is its `number_of`."""
    return list_head(CONTENT, number, count_of(raw)) + raw[LIST_HEAD_BYTES:]


def decode_chunk(raw: bytes) -> list[Kept]:
    """Return a chunk's records, in the order in which they came.

    Raises:
        ValueError: it is something else.
    """
    try:
        return _decode_records(raw[LIST_AT:])
    except MALFORMED as error:
        raise ValueError(f"not records of a join, {error}: {raw[:50]!r}") from error


def encode_early(early: Early) -> bytes:
    """Return the value of a record that waits."""
    return _encode(early)


def decode_early(raw: bytes) -> Early:
    """Return the contents that `encode_early` wrote; errors as of `decode_chunk`."""
    return _decoded(_decode_early, raw, "a record that waits for its match")


def encode_ones(ones: list[One]) -> bytes:
    """Return the value of the row of a key's `one`."""
    return ONES + _encode(ones)


def decode_ones(raw: bytes) -> list[One]:
    """Return the contents that `encode_ones` wrote; errors as of `decode_chunk`."""
    return _decoded(_decode_ones, raw[1:], "a record that many match")


def encode_headers(headers: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the value of a row with headers for a close; b"" for none."""
    return HEADERS + _encode(headers) if headers else b""


def decode_headers(raw: bytes) -> list[tuple[str, bytes]]:
    """Return what `encode_headers` wrote; errors as of `decode_chunk`."""
    return _decoded(_decode_headers, raw[1:], "headers") if raw else []


def shown_rest(raw: bytes) -> Any:
    """Return what all stores of windows have beside their own rows, as people read it: headers, or stream time."""
    if raw[:1] == HEADERS:
        return decode_headers(raw)
    return {"stream_ms": decode_progress(raw).stream_ms} if raw else None


def _decoded(decode: Callable[[bytes], T], raw: bytes, what: str) -> T:
    try:
        return decode(raw)
    except MALFORMED as error:
        raise ValueError(f"not {what}, {error}: {raw[:50]!r}") from error


@functools.lru_cache(maxsize=256)
def chunk_prefix(segment: int, side: int, chunk: int) -> bytes:
    """Return the row of a chunk without its key: kept, as records that are handled together lie in few segments."""
    return _pack_chunk(CHUNK, segment, side, chunk)


def chunk_key(segment: int, side: int, chunk: int, raw_key: bytes) -> bytes:
    """Return the row of a chunk."""
    return chunk_prefix(segment, side, chunk) + raw_key


def segment_row(segment: int) -> bytes:
    """Return the bound between a segment's chunks and those of earlier segments."""
    return CHUNK + segment.to_bytes(WORD)


def segment_of(row: bytes) -> int:
    """Return the segment of a row that begins with `segment_row`."""
    return int.from_bytes(row[1:KEY_AT])


def chunk_parts(row: bytes) -> tuple[int, int, bytes]:
    """Return segment, side and message key of a chunk's row."""
    return segment_of(row), row[SIDE_AT], row[CHUNK_KEY_AT:]


def unmatched_key(one: Unmatched) -> bytes:
    """Return the row that says that a record matched none so far."""
    numbers = one.chunk.to_bytes(_NUMBER) + one.place.to_bytes(_NUMBER)
    return UNMATCHED + one.end_ms.to_bytes(WORD) + one.side.to_bytes(_SIDE) + numbers + one.raw_key


def unmatched_parts(row: bytes) -> Unmatched:
    """Return the parts of an `unmatched_key`."""
    numbers_at = SIDE_AT + _SIDE
    return Unmatched(
        int.from_bytes(row[1:KEY_AT]),
        row[SIDE_AT],
        int.from_bytes(row[numbers_at : numbers_at + _NUMBER]),
        int.from_bytes(row[numbers_at + _NUMBER : UNMATCHED_KEY_AT]),
        row[UNMATCHED_KEY_AT:],
    )
