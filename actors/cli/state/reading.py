"""What this machine's disk holds, read beside a worker that may be writing to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.runtime.windows.committed import CommittedWindows, read_windows
from actors.runtime.windows.store import WindowStore
from stores._core.record import METADATA_BYTES, Position, WriteMetadata, decode_metadata, is_expired
from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.folder import DataFolder
from stores.rocks import RocksReader

_BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system's block size is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key that is there."""

    value: bytes
    metadata: WriteMetadata
    is_expired: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """A partition at its position, and what it has of one key."""

    partition: int
    position: Position
    entry: Entry | None

    @property
    def found(self) -> Entry | None:
        """The key's entry, unless it has expired."""
        return None if self.entry is None or self.entry.is_expired else self.entry


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOnDisk:
    """A partition's database.

    Attributes:
        position: None while it is being restored.
        keys: RocksDB's estimate, expired keys included.
        size_bytes: what its files take on the disk.
    """

    position: Position | None
    keys: int
    size_bytes: int


def read_key(folder: DataFolder, store: str, partition: int, key: bytes) -> Reading:
    """Look a key up in one partition.

    Raises:
        StoreUnavailableError: the partition is being restored, so its content belongs to no position.
        StoreError: it can't be read.
    """
    path = folder.store_path(store, partition)
    with _opened(folder, store, partition) as reader:
        position = _settled(reader, store, partition)
        raw = reader.get(key)
    return Reading(partition, position, None if raw is None else _entry(path, raw))


def read_key_windows(
    folder: DataFolder, store: WindowStore[Any, Any], partition: int, key: bytes, from_ms: int, to_ms: int
) -> tuple[Position, CommittedWindows]:
    """Read the windows of a key that begin in a span of time in one partition, or the first of them.

    Raises:
        StoreUnavailableError: the partition is being restored, so its content belongs to no position.
        StoreError: it can't be read.
    """
    with _opened(folder, store.name, partition) as reader:
        position = _settled(reader, store.name, partition)

        def value(row: bytes) -> bytes | None:
            raw = reader.get(row)
            return None if raw is None else raw[METADATA_BYTES:]

        return position, read_windows(store, value, key, from_ms, to_ms)


def look_at(folder: DataFolder, store: str, partition: int) -> PartitionOnDisk:
    """Look at a partition's database.

    Raises:
        StoreError: it can't be read.
    """
    with _opened(folder, store, partition) as reader:
        return PartitionOnDisk(
            position=reader.position(), keys=reader.estimated_keys(), size_bytes=_size_bytes(reader.path)
        )


def _settled(reader: RocksReader, store: str, partition: int) -> Position:
    position = reader.position()
    if position is None:
        raise StoreUnavailableError(
            f"store {store}, partition {partition}: a worker is restoring it, and what it has belongs to no "
            "position yet: try again"
        )
    return position


def _size_bytes(path: Path) -> int:
    size_bytes = 0
    for file in path.iterdir():
        # A worker may delete it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            size_bytes += file.stat().st_blocks * _BLOCK_BYTES
    return size_bytes


@contextlib.contextmanager
def _opened(folder: DataFolder, store: str, partition: int) -> Iterator[RocksReader]:
    reader = RocksReader.open(folder.store_path(store, partition), identity=folder.identity(store, partition))
    try:
        yield reader
    finally:
        reader.close()


def _entry(path: Path, raw: bytes) -> Entry:
    try:
        metadata = decode_metadata(raw)
    except ValueError as error:
        raise StoreCorruptedError(path, error) from error
    return Entry(raw[METADATA_BYTES:], metadata, is_expired(raw, time.time_ns() // 1_000_000))
