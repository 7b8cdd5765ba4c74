"""The executor's part of a snapshot: RocksDB tables from a file of sorted rows.

The one module here that needs rocksdict, for its table writer; imported by that task only. A library for it in
the JVM would need RocksDB's native code of the very release that the workers have.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from spark_replay.errors import TargetError
from spark_replay.sources.digests import SHARED
from stores._core.snapshot import TABLE_SUFFIX, SnapshotTable
from stores.errors import StoreError
from stores.tables import write_tables

_BATCH_ROWS = 4_096
_BATCH_BYTES = 32 << 20
_COLUMNS = ["partition", "key", "value"]
_partition = itemgetter(0)


def tables_of(rows: Path, folder: Path) -> list[tuple[int, SnapshotTable]]:
    """Write the rows of a Parquet file, sorted by partition and key, to tables in a folder, with names of their own.

    Args:
        rows: `partition` int, `key` binary, `value` binary: with metadata in front; null for a deleted key.
        folder: The folder.

    Returns:
        (partition, table) in the order of the rows.

    Raises:
        TargetError: A file can't be read or written; the text names it. Or there is no such folder here.
    """
    host, prefix = socket.gethostname(), folder / uuid4().hex
    if not folder.is_dir():
        raise TargetError(f"the executor {host} doesn't see {folder}: {SHARED}, and may write to")
    tables: list[tuple[int, SnapshotTable]] = []
    try:
        for partition, group in groupby(_rows(rows), key=_partition):
            content = ((key, value) for _, key, value in group)
            tables += [(partition, table) for table in write_tables(content, partial(_path, prefix, partition))]
    except (StoreError, OSError, pa.ArrowException) as error:
        raise TargetError(f"tables of {rows} can't be made on the executor {host}: {error}: {SHARED}") from error
    return tables


def _path(prefix: Path, partition: int, number: int) -> Path:
    return prefix.with_name(f"{prefix.name}-{partition}-{number}{TABLE_SUFFIX}")


def _rows(file: Path) -> Iterator[tuple[int, bytes, bytes]]:
    with pq.ParquetFile(file) as source:
        for batch in source.iter_batches(batch_rows(source.metadata), columns=_COLUMNS):
            for row in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True):
                if row[2] is not None:
                    yield row


def batch_rows(metadata: Any) -> int:
    """Return how many rows of a Parquet file are read into memory together."""
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    rows: int = metadata.num_rows
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(1, size)))
