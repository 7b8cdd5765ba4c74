"""The port of a partition's store: `stores.memory` is the reference, `stores.rocks` the product."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from stores._core.reader import PartitionReader as PartitionReader
from stores._core.record import Position


class SnapshotContent(Protocol):
    """Content that an empty store may begin with instead of its changelog's beginning."""

    @property
    def position(self) -> Position:
        """Return the position that the content belongs to."""

    def place(self, folder: Path) -> Sequence[Path]:
        """Put RocksDB tables with the content into the folder, to be moved away from there, and check them.

        Blocks. The snapshot itself stays as it is: several workers may use one.

        Raises:
            SnapshotError: they can't be read, or aren't what the snapshot says.
        """

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Return (key, value with its metadata) in byte order of the keys; blocks, and raises, as `place` does."""


class PartitionStore(PartitionReader, Protocol):
    """A `PartitionReader` that its single owner writes to.

    Attributes:
        path: what tells it apart from all others; its `StoreCorruptedError` has the same.
    """

    @property
    def path(self) -> Path:
        """The store's place; unique among stores."""

    def apply(self, writes: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """Write all (key, value with its metadata or None to delete) and the position, or nothing if the process dies.

        Later writes of one key win. Blocks: call it off the event loop when it is long.
        """

    def drop(self, start: bytes, end: bytes) -> None:
        """Remove all keys from `start`, included, to `end`, not included; the position stays.

        If the process dies soon after, they may be there again: it is for what has expired.
        """

    def load(self, writes: Iterable[tuple[bytes, bytes | None]], position: Position) -> None:
        """Do what `apply` does for a chunk of a restore, which is faster when there are many.

        If the process dies before `settle`, this chunk and others of the newest may be gone, whole ones with their
        positions. Until then reads are slow; iterators may be cut short.
        """

    def settle(self) -> None:
        """Keep what was loaded. Blocks, after many loads for some 100 ms; `apply` does it too."""

    def estimated_keys(self) -> int:
        """Estimate the number of keys, expired ones included, without looking at them."""

    def load_snapshot(self, content: SnapshotContent) -> None:
        """Take content and position of a snapshot, or stay empty if the process dies. Blocks.

        Raises:
            SnapshotError: the snapshot can't be used, or the store has a position already; it is as it was.
            StoreError: the store couldn't be opened with the content; close it and open it again.
        """

    def wipe(self) -> None:
        """Forget everything, the position too."""

    def close(self) -> None:
        """Release files and locks. May be called twice."""
