"""Iterates over a part of a RocksDB database."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

from stores.errors import StoreClosedError


class ScannedDatabase(Protocol):
    """The database as its iterators see it."""

    def mapped_errors(self) -> AbstractContextManager[None]:
        """Turn what rocksdict raises into this package's errors."""


class Scan:
    """An iterator over the state as of its making, until the database takes the RocksDB iterator away.

    Not `Rdict.items()`: that one ends early, without an error, where a block is corrupted. Bounds are
    checked here because rocksdict takes a lower bound for an upper one.
    """

    __slots__ = ("__weakref__", "_bound", "_database", "_ended", "_reverse", "_rows")

    def __init__(
        self, database: ScannedDatabase, rows: Any, start: bytes | None, end: bytes | None, reverse: bool
    ) -> None:
        self._database = database
        self._rows = rows
        self._reverse = reverse
        self._bound = start if reverse else end
        self._ended = False
        if reverse:
            _seek_below(rows, end)
        elif start is None:
            rows.seek_to_first()
        else:
            rows.seek(start)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        rows = self._rows
        if rows is None:
            self._raise_if_cut_short()
            raise StopIteration
        if not rows.valid():
            self._finish(rows)
            raise StopIteration
        key: bytes = rows.key()
        bound = self._bound
        if bound is not None and (key < bound if self._reverse else key >= bound):
            self._finish(rows)
            raise StopIteration
        value: bytes = rows.value()
        if self._reverse:
            rows.prev()
        else:
            rows.next()
        return key, value

    def cut_short(self) -> None:
        """Release the database, whose lock an iterator would keep."""
        self._rows = None

    def _finish(self, rows: Any) -> None:
        self._ended = True
        self._rows = None
        with self._database.mapped_errors():
            rows.status()

    def _raise_if_cut_short(self) -> None:
        if not self._ended:
            raise StoreClosedError(self._database)


def _seek_below(rows: Any, end: bytes | None) -> None:
    if end is None:
        rows.seek_to_last()
        return
    rows.seek_for_prev(end)
    if rows.valid() and rows.key() == end:
        rows.prev()
