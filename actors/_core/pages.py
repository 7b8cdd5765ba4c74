"""Pages of a range that lies in several partitions, each of them in byte order of its keys.

The owner of some of the partitions returns a part: rows from a place on, and how far it looked. Parts are merged up to
the nearest of these places, so that no row is missing between two pages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

Row = TypeVar("Row")
Place: TypeAlias = tuple[bytes, int]
"""(key, partition): where a row is in the order of a range."""

_PARTITION_BYTES = 4
_TO_PLAIN = bytes.maketrans(b"-_", b"+/")
_first = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Part(Generic[Row]):
    """Rows in order with their places. All rows up to `through` are there; None: to the end of the range."""

    rows: Sequence[tuple[Place, Row]]
    through: Place | None


def merge_parts(parts: Iterable[Part[Row]], limit: int) -> Part[Row]:
    """Return the first `limit` rows of all parts together, fewer where a part didn't look further."""
    parts = list(parts)
    ends = [part.through for part in parts if part.through is not None]
    through = min(ends, default=None)
    rows = sorted((row for part in parts for row in part.rows), key=_first)
    if through is not None:
        rows = [row for row in rows if row[0] <= through]
    if len(rows) > limit:
        rows = rows[:limit]
        through = rows[-1][0]
    return Part(rows, through)


def cut(part: Part[Row], max_bytes: int, size_of: Callable[[Row], int]) -> Part[Row]:
    """Return a part up to the row before the one that exceeds `max_bytes`, and its first row in any case."""
    size = 0
    for number, (_, row) in enumerate(part.rows):
        size += size_of(row)
        if number and size > max_bytes:
            return Part(part.rows[:number], part.rows[number - 1][0])
    return part


def resume_at(start: bytes | None, after: Place | None, partition: int) -> bytes | None:
    """Return the first key to look at in a partition, for rows behind `after` and not before `start`."""
    if after is None:
        return start
    key, last_partition = after
    first = key if partition > last_partition else key + b"\x00"
    return first if start is None else max(start, first)


def encode_place(place: Place) -> str:
    key, partition = place
    return base64.urlsafe_b64encode(partition.to_bytes(_PARTITION_BYTES, "big") + key).rstrip(b"=").decode()


def decode_place(cursor: str) -> Place:
    """Read what `encode_place` wrote.

    Raises:
        ValueError: it isn't a cursor.
    """
    raw = decode_base64(cursor)
    if len(raw) < _PARTITION_BYTES:
        raise ValueError("too short")
    return raw[_PARTITION_BYTES:], int.from_bytes(raw[:_PARTITION_BYTES], "big")


def decode_base64(text: Any) -> bytes:
    """Read base64 of either alphabet, with or without padding, from text or its bytes.

    Raises:
        ValueError: it isn't base64.
    """
    if not isinstance(text, str | bytes):
        raise ValueError(f"{type(text).__name__} instead of text")  # noqa: TRY004
    try:
        raw = text.encode() if isinstance(text, str) else text
        plain = raw.rstrip(b"=").translate(_TO_PLAIN)
        return binascii.a2b_base64(plain + b"=" * (-len(plain) % 4), strict_mode=True)
    except ValueError as error:
        raise ValueError(str(error)) from error
