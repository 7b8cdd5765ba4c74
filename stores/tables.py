"""Writes a partition's state as RocksDB tables that a store can take over as they are.

With the options of the stores' own tables: the comparator, lz4, the filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rocksdict import SstFileWriter

from stores._core.snapshot import SnapshotTable
from stores._files import crc32
from stores.errors import StoreError, StoreUnavailableError
from stores.rocks_options import RocksResources

TABLE_BYTES = 64 << 20
"""About the size at which a table is full; RocksDB's own have it too."""
_LOOK_EVERY = 1_024


def write_tables(
    rows: Iterable[tuple[bytes, bytes]], path: Callable[[int], Path], *, table_bytes: int = TABLE_BYTES
) -> Iterator[SnapshotTable]:
    """Write rows to tables, and give each when it is complete and synced.

    Args:
        rows: (key, value with its metadata), keys in ascending order of their bytes, none twice.
        path: gives the file of the table number so and so; a file that is there is written over.
        table_bytes: about the size of a table.

    Raises:
        StoreError: the keys aren't in order.
        StoreUnavailableError: a file can't be written.
    """
    options = RocksResources().families()[0]
    left = iter(rows)
    for number, first in enumerate(left):
        file = path(number)
        try:
            keys = _write(file, options, first, left, table_bytes)
        except Exception as error:
            kind = StoreUnavailableError if "IO error" in str(error) else StoreError
            raise kind(f"can't write the table {file}: {error}") from error
        yield SnapshotTable(file.name, file.stat().st_size, crc32(file), keys)


def _write(
    file: Path, options: Any, first: tuple[bytes, bytes], left: Iterator[tuple[bytes, bytes]], table_bytes: int
) -> int:
    writer = SstFileWriter(options)
    writer.open(str(file))
    writer[first[0]] = first[1]
    keys = 1
    while keys % _LOOK_EVERY or writer.file_size() < table_bytes:
        row = next(left, None)
        if row is None:
            break
        writer[row[0]] = row[1]
        keys += 1
    writer.finish()
    return keys
