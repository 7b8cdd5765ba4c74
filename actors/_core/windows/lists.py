"""Lists in rows that grow at their end: what is there already is neither decoded nor encoded for one more.

letter number list        the number is 4 bytes, big-endian: what a reader needs before it decodes the list, which is
                          MessagePack with a header of 5 bytes, whatever its length
"""

from __future__ import annotations

import struct

from stores._core.windows import LIST_AT

LIST_HEAD_BYTES = LIST_AT + 5
"""Where the first element begins."""
_ARRAY_32 = b"\xdd"
_ARRAY_16_FROM, _ARRAY_32_FROM = 1 << 4, 1 << 16
"""From how many elements on a header has 3 bytes, and 5."""
_pack_head = struct.Struct(">cIcI").pack


def list_head(letter: bytes, number: int, count: int) -> bytes:
    """Return what stands before so many elements."""
    return _pack_head(letter, number, _ARRAY_32, count)


def without_header(encoded: bytes, count: int) -> bytes:
    """Return the elements of an encoded list of so many, whose header is as short as MessagePack allows."""
    return encoded[1 if count < _ARRAY_16_FROM else 3 if count < _ARRAY_32_FROM else 5 :]


def number_of(raw: bytes) -> int:
    """Return the number of a list."""
    return int.from_bytes(raw[1:LIST_AT])


def count_of(raw: bytes) -> int:
    """Return how many elements a list has."""
    return int.from_bytes(raw[LIST_AT + 1 : LIST_HEAD_BYTES])


def appended(raw: bytes | None, element: bytes, letter: bytes, number: int) -> bytes:
    """Return a list, None if there is none, with one more encoded element and with that number."""
    if raw is None:
        return _pack_head(letter, number, _ARRAY_32, 1) + element
    return _pack_head(letter, number, _ARRAY_32, count_of(raw) + 1) + raw[LIST_HEAD_BYTES:] + element
