"""Seeds made in plain Python, as the oracle of what Spark makes and for tests of those who use them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stores._core.record import Position
from stores._core.snapshot import SEED_MANIFEST, SeedManifest, SeedPartition, encode_seed, table_file
from stores.tables import write_tables


def write_seed(
    folder: Path,
    parts: Mapping[int, tuple[Mapping[bytes, bytes], Position]],
    *,
    app: str = "app",
    store: str = "store",
    changelog: str | None = None,
    partition_count: int = 1,
    table_bytes: int = 1 << 20,
) -> Path:
    """Write {partition: (key → stamped value, position)}; give the store's folder."""
    own = folder / store
    own.mkdir(parents=True, exist_ok=True)
    made = []
    for number, (rows, position) in parts.items():
        tables = write_tables(
            sorted(rows.items()),
            lambda index, number=number: own / table_file(number, index),
            table_bytes=table_bytes,
        )
        made.append(SeedPartition(number, position, tuple(tables)))
    manifest = SeedManifest(
        app=app,
        store=store,
        changelog=changelog or f"{app}-{store}-changelog",
        partition_count=partition_count,
        made_at_ms=0,
        partitions=tuple(made),
    )
    (own / SEED_MANIFEST).write_text(encode_seed(manifest))
    return own
