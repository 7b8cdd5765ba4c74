"""Snapshots made in plain Python, as the oracle of what Spark makes and for tests of those who use them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from stores._core.manifest import with_crc32
from stores._core.record import Position
from stores._core.snapshot import SNAPSHOT_MANIFEST, SnapshotManifest, SnapshotPartition, encode_snapshot, table_file
from stores.tables import write_tables


def write_snapshot(
    folder: Path,
    parts: Mapping[int, tuple[Mapping[bytes, bytes], Position]],
    *,
    app: str = "app",
    store: str = "store",
    changelog: str | None = None,
    partition_count: int = 1,
    table_bytes: int = 1 << 20,
) -> Path:
    """Write {partition: (key → value with its metadata, position)}; give the store's folder."""
    own = folder / store
    own.mkdir(parents=True, exist_ok=True)
    made = []
    for number, (rows, position) in parts.items():
        tables = write_tables(
            sorted(rows.items()),
            lambda index, number=number: own / table_file(number, index),
            table_bytes=table_bytes,
        )
        made.append(SnapshotPartition(number, position, tuple(tables)))
    manifest = SnapshotManifest(
        app=app,
        store=store,
        changelog=changelog or f"{app}--{store}-changelog",
        partition_count=partition_count,
        made_at_ms=0,
        partitions=tuple(made),
    )
    (own / SNAPSHOT_MANIFEST).write_text(encode_snapshot(manifest))
    return own


def with_own_crc32(text: str) -> str:
    """Return a changed document with the CRC-32 that it would have been written with, if it is one."""
    try:
        return json.dumps(with_crc32(json.loads(text)))
    except (ValueError, RecursionError):
        return text
