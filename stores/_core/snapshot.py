"""The manifest of a snapshot: a store's state as table files, and the position that each partition's stand for.

See "Snapshot" in `docs/design/0001-formats.md`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from stores._core.manifest import check_file, document, integer, part_position, text, typed
from stores._core.record import Position

SNAPSHOT_MANIFEST = "seed.json"
SNAPSHOT_FORMAT = 1
TABLE_SUFFIX = ".sst"


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A table file beside the manifest: `keys` entries in `size_bytes` bytes, whose CRC-32 is `crc32`."""

    file: str
    size_bytes: int
    crc32: int
    keys: int


@dataclass(frozen=True, slots=True)
class SnapshotPartition:
    """One partition: its tables in the order of their keys, none if it holds nothing."""

    partition: int
    position: Position
    tables: tuple[SnapshotTable, ...]

    @property
    def keys(self) -> int:
        """How many keys it holds."""
        return sum(table.keys for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManifest:
    """What was made of one store, of all its partitions; `made_at_ms` in Unix milliseconds."""

    app: str
    store: str
    changelog: str
    partition_count: int
    made_at_ms: int
    partitions: tuple[SnapshotPartition, ...]


def table_file(partition: int, number: int) -> str:
    """Return the name of a partition's table number so and so."""
    return f"partition-{partition:05d}-{number:04d}{TABLE_SUFFIX}"


def encode_snapshot(manifest: SnapshotManifest) -> str:
    """Return the manifest as JSON text."""
    return json.dumps({"format": SNAPSHOT_FORMAT, **asdict(manifest)}, indent=1, ensure_ascii=False) + "\n"


def decode_snapshot(raw_text: str) -> SnapshotManifest:
    """Read what `encode_snapshot` wrote; fields that this release doesn't know are ignored.

    Raises:
        ValueError: it isn't a snapshot's manifest, or it is of a format this release doesn't know. The text says which.
    """
    raw = document(raw_text, "snapshot", SNAPSHOT_FORMAT)
    manifest = SnapshotManifest(
        app=text(raw, "app"),
        store=text(raw, "store"),
        changelog=text(raw, "changelog"),
        partition_count=integer(raw, "partition_count", "manifest"),
        made_at_ms=integer(raw, "made_at_ms", "manifest"),
        partitions=tuple(_partition(part) for part in typed(raw, "partitions", list, "manifest")),
    )
    _check(manifest)
    return manifest


def _check(manifest: SnapshotManifest) -> None:
    numbers = [part.partition for part in manifest.partitions]
    if len(set(numbers)) != len(numbers):
        raise ValueError("snapshot with a partition twice")
    if not all(0 <= number < manifest.partition_count for number in numbers):
        raise ValueError(f"snapshot with partitions {numbers} of {manifest.partition_count}")
    for part in manifest.partitions:
        # The next owner's epoch is one more.
        if part.position.epoch < 0 or part.position.changelog_offset < 0:
            raise ValueError(f"snapshot with a negative position of partition {part.partition}: {part.position}")
        for table in part.tables:
            check_file(table.file, "snapshot")


def _partition(raw: object) -> SnapshotPartition:
    if not isinstance(raw, dict):
        raise ValueError(f"snapshot with a partition that is {type(raw).__name__} instead of an object")  # noqa: TRY004
    where = f"partition {raw.get('partition')}"
    return SnapshotPartition(
        partition=integer(raw, "partition", where),
        position=part_position(raw, where),
        tables=tuple(_table(table, where) for table in typed(raw, "tables", list, where)),
    )


def _table(raw: object, where: str) -> SnapshotTable:
    if not isinstance(raw, dict):
        raise ValueError(f"snapshot with a table of {where} that is {type(raw).__name__}")  # noqa: TRY004
    return SnapshotTable(
        file=typed(raw, "file", str, where),
        size_bytes=integer(raw, "size_bytes", where),
        crc32=integer(raw, "crc32", where),
        keys=integer(raw, "keys", where),
    )
