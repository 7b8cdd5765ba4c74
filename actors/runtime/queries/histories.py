"""Reads of a table as of a time, from committed databases: the table's and its history's of each partition."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Any, Self

from actors._core.pages import Part, Place, resume_at
from actors._core.windows.versions import SEGMENTS, History, deleted_row
from actors.errors import ActorsError
from actors.runtime.message.table import Table
from actors.runtime.queries.queries import MAX_LOOKED_AT, Bounds, Found, Held, HeldTask, Looked, take, unreadable
from stores._core.overlay import after_prefix
from stores._core.record import METADATA_BYTES
from stores.errors import StoreError
from stores.ports import PartitionReader

READS_OF_A_KEY = SEGMENTS + 2
"""How many rows of a history one key may need: whether it is deleted, and each segment from a time on."""
_DELETED = deleted_row(b"")


class BeforeHistoryError(ActorsError):
    """A time is before the history: what was there then is unknown."""


class _Former:
    """The rows of a history without their metadata, and how many bytes of them were read."""

    __slots__ = ("_reader", "read_bytes")

    def __init__(self, reader: PartitionReader) -> None:
        self._reader, self.read_bytes = reader, 0

    def get(self, row: bytes) -> bytes | None:
        """Return the value of a row, None where it is missing."""
        raw = self._reader.get(row)
        self.read_bytes += len(raw or b"")
        return None if raw is None else raw[METADATA_BYTES:]

    def deleted(self, start: bytes | None, end: bytes | None) -> Iterator[bytes]:
        """Return the keys that are deleted, from `start`, included, to `end`, not included, in order."""
        last = after_prefix(_DELETED) if end is None else _DELETED + end
        for row, _ in self._reader.scan(_DELETED + (start or b""), last):
            yield row[len(_DELETED) :]


@dataclass(frozen=True, slots=True)
class TableAsOf:
    """A partition of a table as of a time; both databases are of the same commit. Make one with `of`.

    Attributes:
        at_ms: the time, Unix milliseconds.
        since_ms: since when the partition keeps former values, Unix milliseconds.
    """

    at_ms: int
    since_ms: int
    _table: Table[Any, Any]
    _rows: PartitionReader
    _former: _Former
    _history: History

    @classmethod
    def of(cls, table: Table[Any, Any], at_ms: int, *, rows: PartitionReader, former: PartitionReader) -> Self:
        """Look at a partition of a table that has a history.

        Raises:
            NewerVersionError: the rows are of another history.
            ValueError: the history can't be read.
            StoreError: a database can't be read.
        """
        read = _Former(former)
        history, since_ms = table.committed_history(read.get)
        return cls(at_ms, since_ms, table, rows, read, history)

    def get(self, raw_key: bytes) -> bytes | None:
        """Return the row that a key had, None if it had none.

        Raises:
            BeforeHistoryError: the time is before the history, and the latest value isn't as old.
            ValueError, StoreError: as of `of`.
        """
        row = self._as_of(raw_key, self._rows.get(raw_key))
        if row is None:
            self._require_kept()
        return row

    def items(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes | None, int]]:
        """Return (key, its row or None, bytes that were read), in order of keys, `start` included, `end` not.

        Keys that have a row now or had one within the history are there, those that had none at the time with None.

        Raises:
            BeforeHistoryError: the time is before the history: of keys that changed since then nothing is known.
            ValueError, StoreError: as of `of`.
        """
        self._require_kept()
        former, last = self._former, None
        held = ((key, raw) for key, raw in self._rows.scan(start, end))
        gone = ((key, b"") for key in former.deleted(start, end))
        for key, raw in merge(held, gone):
            if key != last:
                former.read_bytes, last = len(raw), key
                row = self._as_of(key, raw or None)
                yield key, row, former.read_bytes

    def _as_of(self, raw_key: bytes, raw: bytes | None) -> bytes | None:
        row = None if raw is None else raw[METADATA_BYTES:]
        return self._table.committed_as_of(self._history, row, raw_key, self.at_ms)

    def _require_kept(self) -> None:
        if self.at_ms < self.since_ms:
            raise BeforeHistoryError(
                f"table {self._table.name} keeps former values since {self.since_ms}, and as_of={self.at_ms} is "
                "before: ask for a later time, or declare the table with a longer history= under another name"
            )


def read_as_of(table: Table[Any, Any], task: HeldTask, key: bytes, at_ms: int) -> Found:
    """Return the row that a key of a table with a history had as of a time, Unix milliseconds; it is read at once.

    Raises:
        BeforeHistoryError: the time is before the history, and the latest value isn't as old.
        NotReadyError: a database can't be read now.
        NewerVersionError: the history is of another program.
        ValueError: a row of the history can't be read.
    """
    held, former = _both(table, task)
    try:
        return Found(TableAsOf.of(table, at_ms, rows=held.store, former=former.store).get(key))
    except StoreError as error:
        raise unreadable(held, error) from error


def read_part_as_of(
    table: Table[Any, Any],
    tasks: Collection[HeldTask],
    bounds: Bounds,
    after: Place | None,
    limit: int,
    max_bytes: int,
    *,
    at_ms: int,
) -> Part[tuple[Held, Found]]:
    """Return the next rows of some partitions of a table as of a time; else as `read_part` and `read_as_of`."""
    walks = (_walk(table, one, bounds, after, at_ms) for one in tasks)
    return take(walks, limit, max_bytes, most=MAX_LOOKED_AT // READS_OF_A_KEY)


def _walk(table: Table[Any, Any], task: HeldTask, bounds: Bounds, after: Place | None, at_ms: int) -> Iterator[Looked]:
    held, former = _both(table, task)
    start = resume_at(bounds.start, after, held.partition)
    try:
        rows = TableAsOf.of(table, at_ms, rows=held.store, former=former.store)
        for key, row, read_bytes in rows.items(start, bounds.end):
            yield (key, held.partition), held, Found(row), read_bytes
    except StoreError as error:
        raise unreadable(held, error) from error


def _both(table: Table[Any, Any], task: HeldTask) -> tuple[Held, Held]:
    if table.history is None:
        raise AssertionError("a table without a history is refused before")
    return task.of(table.name), task.of(table.history.name)
