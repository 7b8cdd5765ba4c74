"""Readers of this machine's stores, beside a worker that may be writing to them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors._core.windows.kinds import Window
from actors.errors import ConfigurationError, NewerVersionError
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table
from actors.runtime.queries.histories import TableAsOf
from actors.runtime.windows.committed import CommittedWindows, committed_time, read_windows
from actors.runtime.windows.store import WindowStore
from stores._core.overlay import after_prefix
from stores._core.record import METADATA_BYTES, Position, WriteMetadata, decode_metadata, is_expired
from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.folder import DataFolder
from stores.rocks import RocksReader

_BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system's block size is."""


AS_OF = "Of a table with a history: as of this time, Unix ms."
_OPENINGS = 20
"""How often a table and its history are opened until both are of one commit: a worker writes one after the other."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key that is there; of a former value there is no metadata."""

    value: bytes
    metadata: WriteMetadata | None
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


def read_key(folder: DataFolder, store: Store[Any, Any], partition: int, key: bytes, as_of_ms: int | None) -> Reading:
    """Look a key up in one partition, in a table with a history also as of a time, Unix milliseconds.

    Raises:
        BeforeHistoryError: the time is before the history, and the latest value isn't as old.
        ConfigurationError: `as_of_ms` of a store that keeps no former values.
        StoreUnavailableError: the partition is being restored, or its databases are of different commits.
        StoreError: it can't be read.
    """
    if as_of_ms is not None:
        with _as_of(folder, with_history(store), partition, as_of_ms) as (position, table):
            row = table.get(key)
        return Reading(partition, position, None if row is None else Entry(row, None, False))
    path = folder.store_path(store.name, partition)
    with _opened(folder, store.name, partition) as reader:
        position = _settled(reader, store.name, partition)
        raw = reader.get(key)
    return Reading(partition, position, None if raw is None else _entry(path, raw, time.time_ns() // 1_000_000))


def with_history(store: Store[Any, Any]) -> Table[Any, Any]:
    """Return a store as a table that keeps former values.

    Raises:
        ConfigurationError: it is none.
    """
    if not isinstance(store, Table) or store.history is None:
        raise ConfigurationError(
            f"store {store.name} keeps no former values: leave --as-of out, or declare a table with a history, "
            "app.table(topic, history=timedelta(hours=1))"
        )
    return store


def read_rows(
    folder: DataFolder, store: Store[Any, Any], partition: int, prefix: bytes, as_of_ms: int | None
) -> Generator[tuple[Position, bytes, bytes], None, None]:
    """Return (position, key, value) of the keys of one partition that begin so, in order, without expired ones.

    Raises:
        BeforeHistoryError: the time is before the history.
        ConfigurationError: `as_of_ms` of a store that keeps no former values.
        StoreUnavailableError: the partition is being restored, or its databases are of different commits.
        StoreError: it can't be read.
    """
    start, end = prefix or None, after_prefix(prefix) if prefix else None
    if as_of_ms is not None:
        with _as_of(folder, with_history(store), partition, as_of_ms) as (position, table):
            yield from ((position, key, row) for key, row, _ in table.items(start, end) if row is not None)
        return
    path, now_ms = folder.store_path(store.name, partition), time.time_ns() // 1_000_000
    with _opened(folder, store.name, partition) as reader:
        position = _settled(reader, store.name, partition)
        for key, raw in reader.scan(start, end):
            if not _entry(path, raw, now_ms).is_expired:
                yield position, key, raw[METADATA_BYTES:]


@contextlib.contextmanager
def _as_of(
    folder: DataFolder, table: Table[Any, Any], partition: int, at_ms: int
) -> Iterator[tuple[Position, TableAsOf]]:
    """Open a partition of a table and of its history, both of one commit."""
    former = with_history(table).history
    if former is None:
        raise AssertionError("the table has a history")
    for _ in range(_OPENINGS):
        with _opened(folder, table.name, partition) as rows, _opened(folder, former.name, partition) as history:
            position, other = _settled(rows, table.name, partition), _settled(history, former.name, partition)
            if (position.epoch, position.offsets) != (other.epoch, other.offsets):
                continue
            try:
                yield position, TableAsOf.of(table, at_ms, rows=rows, former=history)
            except NewerVersionError:
                raise
            except ValueError as error:
                raise StoreCorruptedError(folder.store_path(former.name, partition), error) from error
            return
    raise StoreUnavailableError(
        f"table {table.name}, partition {partition}: on this disk it is at input offset {_shown(position)}, and its "
        f"history {former.name} at {_shown(other)}: try again; if no worker runs here, start one, which restores both"
    )


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
        return position, read_windows(store, _values(reader), key, from_ms, to_ms, items=reader.scan)


def read_all_windows(
    folder: DataFolder, store: WindowStore[Any, Any], partition: int, from_ms: int, to_ms: int
) -> Generator[tuple[Position, bytes, Window, bytes], None, None]:
    """Return (position, key, window, value) of all windows of one partition that begin in a span of time.

    Keys and values are encoded. Tumbling and hopping windows come in order of their starts, others in order of the
    segments of time that they lie in.

    Raises:
        StoreUnavailableError: the partition is being restored, so its content belongs to no position.
        StoreError: it can't be read.
    """
    with _opened(folder, store.name, partition) as reader:
        position = _settled(reader, store.name, partition)

        def items(start: bytes, end: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
            return ((row, raw[METADATA_BYTES:]) for row, raw in reader.scan(start, end, reverse=reverse))

        try:
            for key, window, raw in store.all_between(items, from_ms, to_ms, committed_time(_values(reader))):
                yield position, key, window, raw
        except ValueError as error:
            raise StoreCorruptedError(folder.store_path(store.name, partition), error) from error


def _values(reader: RocksReader) -> Callable[[bytes], bytes | None]:
    """Return a function from a key to its value without metadata, None if the key is missing."""

    def value(row: bytes) -> bytes | None:
        raw = reader.get(row)
        return None if raw is None else raw[METADATA_BYTES:]

    return value


def look_at(folder: DataFolder, store: str, partition: int) -> PartitionOnDisk:
    """Look at a partition's database.

    Raises:
        StoreError: it can't be read.
    """
    with _opened(folder, store, partition) as reader:
        return PartitionOnDisk(
            position=reader.position(), keys=reader.estimated_keys(), size_bytes=_size_bytes(reader.path)
        )


def _shown(position: Position) -> str:
    return f"{', '.join(map(str, position.offsets))} of epoch {position.epoch}"


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


def _entry(path: Path, raw: bytes, now_ms: int) -> Entry:
    try:
        metadata = decode_metadata(raw)
    except ValueError as error:
        raise StoreCorruptedError(path, error) from error
    return Entry(raw[METADATA_BYTES:], metadata, is_expired(raw, now_ms))
