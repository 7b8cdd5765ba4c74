"""The reference store: a dict. Nothing outlives the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from stores._core.record import Position
from stores.errors import SnapshotError, StoreClosedError
from stores.ports import SnapshotContent


class MemoryStore:
    """A `PartitionStore` in memory."""

    def __init__(self) -> None:
        self._data: dict[bytes, bytes] = {}
        self._position: Position | None = None
        self._closed = False

    @property
    def path(self) -> Path:
        """A name of its own; there is no such folder."""
        return Path("memory") / str(id(self))

    def get(self, key: bytes) -> bytes | None:
        """Return a key's value with its metadata."""
        if self._closed:
            raise StoreClosedError(self)
        return self._data.get(key)

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows of a range of keys."""
        self._check_open()
        keys = [k for k in self._data if (start is None or k >= start) and (end is None or k < end)]
        return iter([(key, self._data[key]) for key in sorted(keys, reverse=reverse)])

    def position(self) -> Position | None:
        """Return the committed position."""
        self._check_open()
        return self._position

    def apply(self, writes: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """Make writes and the position durable together."""
        self._check_open()
        for key, raw in list(writes):
            if raw is None:
                self._data.pop(key, None)
            else:
                self._data[key] = raw
        self._position = position

    def drop(self, start: bytes, end: bytes) -> None:
        """Remove a range of keys."""
        self._check_open()
        for key in [key for key in self._data if start <= key < end]:
            del self._data[key]

    def load(self, writes: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """Apply a chunk of a restore."""
        self.apply(writes, position)

    def settle(self) -> None:
        """Keep the loaded writes."""
        self._check_open()

    def estimated_keys(self) -> int:
        """Return the exact number of keys."""
        self._check_open()
        return len(self._data)

    def load_snapshot(self, content: SnapshotContent) -> None:
        """Take content and position of a snapshot."""
        if self.position() is not None:
            raise SnapshotError(f"{self} isn't empty: a snapshot is for a store that is")
        self.apply(content.rows(), content.position)

    def wipe(self) -> None:
        """Remove all content and the position."""
        self._check_open()
        self._data.clear()
        self._position = None

    def close(self) -> None:
        """Close the store. May be called twice."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(self)

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._data)} keys)"
