"""Writes what a worker holds of a store to Parquet, for audits: also while the worker runs.

See "Export" in `docs/design/0001-formats.md`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stores._core.manifest import MANIFEST, Manifest, ManifestPartition, encode_manifest, partition_file
from stores._core.record import METADATA_BYTES, decode_metadata, place_of
from stores._files import make_folder, open_private, tighten, write_atomically
from stores.errors import StoreCorruptedError, StoreError, StoreUnavailableError, UnknownStoreError
from stores.folder import DataFolder
from stores.rocks import RocksReader

ROW_GROUP_ROWS = 50_000
ROW_GROUP_BYTES = 64 << 20
"""A row group ends at either; it is in memory as a whole, here and in readers."""
SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("source_offset", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("expires_at_ms", pa.int64(), nullable=False),
        pa.field("input", pa.int32()),
    ]
)

_WORKER_NAME = re.compile(r"[A-Za-z0-9._:-]+")


def export_store(
    folder: Path,
    store: str,
    to: Path,
    *,
    app: str,
    changelog: str,
    placement: str,
    partition_count: int,
    worker: str,
    now_ms: int,
    progress: Callable[[int, int], None] | None = None,
    damaged: Callable[[int, StoreCorruptedError], None] | None = None,
) -> Manifest:
    """Write a Parquet file for each partition of `store` in the data folder, then the manifest.

    Each partition is exported as of one position of its own. One without a position (nothing restored yet,
    or a restore in the middle of a chunk) is left out.

    Args:
        folder: the worker's data folder, which the worker may be using.
        store: the store's name.
        to: where the folder `worker` with the files goes; a former export there is replaced.
        app: the app that the folder must belong to.
        changelog: the store's changelog topic, for the manifest.
        placement: `key` or `task`, for the manifest.
        partition_count: of the changelog, for the manifest.
        worker: name of the folder below `to`; no two workers that export there may share it.
        now_ms: Unix milliseconds, for the manifest.
        progress: called with the partition and the keys of it so far, after each row group; once of an empty one.
        damaged: called with a partition whose database is corrupted, which is then left out; None: that is an error.

    Raises:
        UnknownStoreError: the folder has nothing of `store`; the text says what it has.
        StoreError: the folder or one of its databases can't be read, or the files can't be written.
    """
    source = DataFolder.inspect(folder, app=app)
    partitions = source.partitions_on_disk(store)
    if not partitions:
        raise UnknownStoreError(
            f"no store {store!r} in {source.path}: there is {', '.join(source.stores_on_disk()) or 'none'}"
        )
    target = _target(to, worker)
    try:
        make_folder(target)
        tighten(target)
        # The manifest of a former export mustn't vouch for the files of this one.
        (target / MANIFEST).unlink(missing_ok=True)
        exported = []
        for partition in partitions:
            try:
                exported.append(_export_partition(source, store, partition, target, progress))
            except StoreCorruptedError as error:
                if damaged is None:
                    raise
                damaged(partition, error)
        manifest = Manifest(
            app=app,
            store=store,
            changelog=changelog,
            placement=placement,
            worker=worker,
            exported_at_ms=now_ms,
            partition_count=partition_count,
            partitions=tuple(part for part in exported if part is not None),
        )
        write_atomically(target / MANIFEST, encode_manifest(manifest))
    except OSError as error:
        raise StoreUnavailableError(f"can't write the export of {store!r} to {target}: {error}") from error
    return manifest


def _target(to: Path, worker: str) -> Path:
    if _WORKER_NAME.fullmatch(worker) is None or worker in (".", ".."):
        raise StoreError(f"worker name {worker!r}: letters, digits, '.', '_', ':' and '-' make a folder's name")
    return Path(to) / worker


def _export_partition(
    source: DataFolder, store: str, partition: int, target: Path, progress: Callable[[int, int], None] | None
) -> ManifestPartition | None:
    path = source.store_path(store, partition)
    if not (path / "CURRENT").exists():
        return None
    reader = RocksReader.open(path, identity=source.identity(store, partition))
    try:
        position = reader.position()
        if position is None:
            return None
        file = target / partition_file(partition)
        keys = _write_rows(file, path, partition, reader.scan(), progress)
    finally:
        reader.close()
    return ManifestPartition(partition, file.name, keys, position)


def _write_rows(
    file: Path,
    path: Path,
    partition: int,
    rows: Iterator[tuple[bytes, bytes]],
    progress: Callable[[int, int], None] | None,
) -> int:
    draft = file.with_name(file.name + ".tmp")
    keys = 0
    try:
        # Made here: an old draft may be open to others, or a link to another file.
        draft.unlink(missing_ok=True)
        with open_private(draft, "xb") as target, pq.ParquetWriter(target, SCHEMA, compression="zstd") as writer:
            for chunk in _chunks(rows):
                writer.write_table(_table(path, partition, chunk))
                keys += len(chunk)
                if progress is not None:
                    progress(partition, keys)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    if progress is not None and not keys:
        progress(partition, keys)
    return keys


def _chunks(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    chunk, size = [], 0
    for row in rows:
        chunk.append(row)
        size += len(row[0]) + len(row[1])
        if len(chunk) == ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _table(path: Path, partition: int, chunk: list[tuple[bytes, bytes]]) -> Any:
    try:
        written = [decode_metadata(raw) for _, raw in chunk]
    except ValueError as error:
        raise StoreCorruptedError(path, error) from error
    columns: list[list[Any]] = [
        [partition] * len(chunk),
        [key for key, _ in chunk],
        [raw[METADATA_BYTES:] for _, raw in chunk],
        [metadata.source_offset for metadata in written],
        [metadata.epoch for metadata in written],
        [metadata.expires_at_ms for metadata in written],
        [place_of(raw) for _, raw in chunk],
    ]
    return pa.table(columns, schema=SCHEMA)
