"""Former values of a table's keys by event time, and how they lie in a store beside the table.

    "h" segment key   the versions of a key that ended in a segment of time, in order, as a list
    "d" key           since when a key is deleted; it is here as long as the history has something of the key
    "m"               `Mark`: the time of the table's newest record, and what was removed

The latest value of a key is a row of the table itself, with the time of its record. Its former versions lie by the
time at which they ended, as in KIP-889: what is older than the history is then a range, and what is asked for is in one
of the few segments between the time in question and the latest value. Versions follow each other without a gap, because
deletes are versions too. Segments and times are 8 bytes, big-endian.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

import msgspec

from actors._core.outside import MALFORMED

MARK_KEY = b"m"
SEGMENTS = 16
"""Into how many segments of time a history is divided."""
_WORD = 8
_KEY_AT = 1 + _WORD


class Version(msgspec.Struct, array_like=True, gc=False):
    """A value of a key from one time, included, to another one, not included; `value` is None while it was deleted."""

    start_ms: int
    end_ms: int
    value: bytes | None


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """How far the history of a partition has come.

    Attributes:
        newest_ms: the time of the newest record, -1 before the first.
        cleared: rows of segments before this one are removed.
        segment_ms: how long a segment is.
    """

    newest_ms: int
    cleared: int
    segment_ms: int


class Latest(msgspec.Struct, frozen=True):
    """The latest version of a key, from `start_ms` on; `value` is None if it is deleted."""

    start_ms: int
    value: bytes | None


class Rows(Protocol):
    """The rows of the history, as a handler sees them."""

    def get(self, row: bytes) -> bytes | None:
        """Return the value of a row, None where it is missing."""

    def set(self, row: bytes, value: bytes) -> None:
        """Write a row."""

    def delete(self, row: bytes) -> bool:
        """Remove a row; tell whether it was there."""

    def items(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows from `start`, included, to `end`, not included, in order."""


_encode = msgspec.msgpack.Encoder().encode
_decode_mark = msgspec.msgpack.Decoder(Mark).decode
_decode_versions = msgspec.msgpack.Decoder(list[Version]).decode


def decode_mark(raw: bytes) -> Mark:
    """Read the row `MARK_KEY`.

    Raises:
        ValueError: it is something else.
    """
    try:
        return _decode_mark(raw)
    except MALFORMED as error:
        raise ValueError(f"not the mark of a table's history, {error}: {raw[:50]!r}") from error


def decode_versions(raw: bytes) -> list[Version]:
    """Read the versions of a key that ended in a segment.

    Raises:
        ValueError: it is something else.
    """
    try:
        return _decode_versions(raw)
    except MALFORMED as error:
        raise ValueError(f"not versions of a table's key, {error}: {raw[:50]!r}") from error


def segment_ms(history_ms: int) -> int:
    """Return the length of a history's segments."""
    return max(1, -(-history_ms // SEGMENTS))


def segment_row(segment: int, raw_key: bytes) -> bytes:
    """Return the row of a key's versions in a segment."""
    return b"h" + segment.to_bytes(_WORD) + raw_key


def deleted_row(raw_key: bytes) -> bytes:
    """Return the row that says that a key is deleted."""
    return b"d" + raw_key


class History:
    """The former versions of the keys of a partition, for one message or one question.

    Args:
        rows: the rows.
        history_ms: how far behind the table's newest record values can be asked for.
        mark: the row `MARK_KEY`; None where there is none.
    """

    __slots__ = ("_history_ms", "_rows", "mark")

    def __init__(self, rows: Rows, history_ms: int, mark: Mark | None) -> None:
        self._rows = rows
        self._history_ms = history_ms
        self.mark = Mark(-1, 0, segment_ms(history_ms)) if mark is None else mark

    def is_forgotten(self, at_ms: int) -> bool:
        """Return whether a time is before the history."""
        return at_ms < self.mark.newest_ms - self._history_ms

    def deleted_ms(self, raw_key: bytes) -> int | None:
        """Return since when a key is deleted, None if nothing is known of that."""
        raw = self._rows.get(deleted_row(raw_key))
        return None if raw is None else int.from_bytes(raw)

    def as_of(self, raw_key: bytes, latest: Latest | None, at_ms: int) -> bytes | None:
        """Return the value that a key had at a time, None if it had none, or that time is before the history."""
        if latest is None:
            return None
        if latest.start_ms <= at_ms:
            return latest.value
        if at_ms < 0 or self.is_forgotten(at_ms):
            return None
        found = self._after(raw_key, latest.start_ms, at_ms)
        if found is None:
            return None
        version = found[1][found[2]]
        return version.value if version.start_ms <= at_ms else None

    def put(self, raw_key: bytes, latest: Latest | None, at_ms: int, value: bytes | None) -> bool:
        """Note a value of a key that holds from a time on; tell whether it is the latest, which the caller writes.

        The time isn't before the history. A version of the very same time is replaced.
        """
        if latest is not None and at_ms < latest.start_ms:
            self._put_between(raw_key, latest, at_ms, value)
            return False
        if latest is not None and latest.start_ms < at_ms:
            self._insert(raw_key, Version(latest.start_ms, at_ms, latest.value))
        if value is None:
            self._rows.set(deleted_row(raw_key), at_ms.to_bytes(_WORD))
            row = segment_row(at_ms // self.mark.segment_ms, raw_key)
            if self._rows.get(row) is None:
                # With this row the other one is removed.
                self._rows.set(row, _encode([]))
        elif latest is not None and latest.value is None:
            self._rows.delete(deleted_row(raw_key))
        return True

    def move_on(self, at_ms: int, at_once: int) -> None:
        """Note the time of a record, and remove up to `at_once` rows of what is before the history by then."""
        mark = self.mark
        newest_ms = max(mark.newest_ms, at_ms)
        cleared, oldest = mark.cleared, max(0, newest_ms - self._history_ms) // mark.segment_ms
        if cleared < oldest and self._clear(oldest, at_once):
            cleared = oldest
        if (newest_ms, cleared) != (mark.newest_ms, mark.cleared):
            self.mark = Mark(newest_ms, cleared, mark.segment_ms)
            self._rows.set(MARK_KEY, _encode(self.mark))

    def _clear(self, oldest: int, at_once: int) -> bool:
        """Remove rows of segments before `oldest`; tell whether none is left."""
        rows = self._rows
        found: list[bytes] = []
        for row, _ in rows.items(segment_row(0, b""), segment_row(oldest, b"")):
            if len(found) == at_once:
                break
            found.append(row)
        for row in found:
            rows.delete(row)
            raw_key = row[_KEY_AT:]
            deleted_ms = self.deleted_ms(raw_key)
            if deleted_ms is not None and deleted_ms // self.mark.segment_ms <= int.from_bytes(row[1:_KEY_AT]):
                rows.delete(deleted_row(raw_key))
        return len(found) < at_once

    def _put_between(self, raw_key: bytes, latest: Latest, at_ms: int, value: bytes | None) -> None:
        found = self._after(raw_key, latest.start_ms, at_ms)
        if found is None:
            self._insert(raw_key, Version(at_ms, latest.start_ms, value))
            return
        row, versions, place = found
        version = versions[place]
        if version.start_ms > at_ms:
            self._insert(raw_key, Version(at_ms, version.start_ms, value))
            return
        before = Version(version.start_ms, at_ms, version.value)
        version.start_ms, version.value = at_ms, value
        self._rows.set(row, _encode(versions))
        if before.start_ms < at_ms:
            self._insert(raw_key, before)

    def _after(self, raw_key: bytes, latest_ms: int, at_ms: int) -> tuple[bytes, list[Version], int] | None:
        """Return the row, its versions and the place of the first version that ends behind a time."""
        segment_ms = self.mark.segment_ms
        last, newest = latest_ms // segment_ms, self.mark.newest_ms // segment_ms
        # A row that was there before the history may be of any time: nothing ends between the newest record and it.
        segments = range(at_ms // segment_ms, min(last, newest + 1))
        for segment in (*segments, last):
            row = segment_row(segment, raw_key)
            raw = self._rows.get(row)
            versions = [] if raw is None else decode_versions(raw)
            place = bisect_right(versions, at_ms, key=lambda version: version.end_ms)
            if place < len(versions):
                return row, versions, place
        return None

    def _insert(self, raw_key: bytes, version: Version) -> None:
        row = segment_row(version.end_ms // self.mark.segment_ms, raw_key)
        raw = self._rows.get(row)
        versions = [] if raw is None else decode_versions(raw)
        versions.insert(bisect_right(versions, version.end_ms, key=lambda one: one.end_ms), version)
        self._rows.set(row, _encode(versions))
