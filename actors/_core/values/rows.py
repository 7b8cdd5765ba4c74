"""Rows below a key: how they lie in a store, so that those of one key are a range in the key's partition.

    length key "n"        where the rows of the key begin and end: two numbers, whose difference is how many there are
    length key "r" row    a row: its value

The length of the key has 4 bytes, as in `stores._core.layouts` "sized". A row is the encoded key of a map's or a set's
row, or the place of a list's: 8 bytes, big-endian. Places are never given twice while the list isn't empty.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from actors._core.windows.foreign_keys import within

SPAN, ROW = b"n", b"r"
_LENGTH_BYTES = 4
_span = Struct(">QQ")
encode_span = _span.pack


def rows_prefix(raw_key: bytes) -> bytes:
    """Return the bytes with which all rows of a key begin."""
    return within(raw_key, ROW)


def span_key(raw_key: bytes) -> bytes:
    """Return the key under which the span of a key's rows is kept."""
    return within(raw_key, SPAN)


def row_parts(raw: bytes) -> tuple[bytes, bytes | None]:
    """Return the message key that a stored key is of, and the row; None where it is the span.

    Raises:
        ValueError: it is something else.
    """
    at = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES])
    letter = raw[at : at + 1]
    if letter == ROW:
        return raw[_LENGTH_BYTES:at], raw[at + 1 :]
    if letter != SPAN or len(raw) != at + 1:
        raise ValueError(f"not a row below a key: {raw[:50]!r}")
    return raw[_LENGTH_BYTES:at], None


def decode_span(raw: bytes | None) -> tuple[int, int]:
    """Return where the rows of a key begin and end; no span is one without rows.

    Raises:
        ValueError: it is something else.
    """
    if raw is None:
        return 0, 0
    if len(raw) != _span.size:
        raise ValueError(f"not the span of a key's rows: {raw[:50]!r}")
    first, end = _span.unpack(raw)
    return first, end


def place_row(place: int) -> bytes:
    """Return the row of a place in a list."""
    return place.to_bytes(8)


place_of: Callable[[bytes], int] = int.from_bytes
