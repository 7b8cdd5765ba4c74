"""The manifest of a snapshot: a store's state as table files, and the position that each partition's stand for.

See "Snapshot" in `docs/design/0001-formats.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

from stores._core.manifest import check_file, check_numbers, decode_document, encode_document
from stores._core.record import Int64, Position

SNAPSHOT_MANIFEST = "seed.json"
SNAPSHOT_FORMAT = 1
TABLE_SUFFIX = ".sst"
DATABASE_FILE = "CURRENT"
"""The file that each database has, and no other content."""


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A file of the snapshot: `keys` entries in `size_bytes` bytes, whose CRC-32 is `crc32`."""

    file: str
    size_bytes: Int64
    crc32: Int64
    keys: Int64


@dataclass(frozen=True, slots=True)
class SnapshotPartition:
    """One partition: its tables in the order of their keys, none if it holds nothing.

    With a `folder` beside the manifest they are in there, and are all files of a database, the checkpoint of a worker;
    the estimated number of its keys stands at the file `DATABASE_FILE`.
    """

    partition: Int64
    position: Position
    tables: tuple[SnapshotTable, ...]
    folder: str = ""

    @property
    def keys(self) -> int:
        """How many keys it holds."""
        return sum(table.keys for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManifest:
    """A snapshot of all partitions of a store; `made_at_ms` in Unix milliseconds."""

    app: str
    store: str
    changelog: str
    partition_count: Int64
    made_at_ms: Int64
    partitions: tuple[SnapshotPartition, ...]


def table_file(partition: int, number: int) -> str:
    """Return the name of a partition's table number so and so."""
    return f"partition-{partition:05d}-{number:04d}{TABLE_SUFFIX}"


def manifests(store: str, partition: int) -> tuple[str, str]:
    """Return where manifests with a partition may lie: that of all partitions, and that of a worker."""
    return f"{store}/{SNAPSHOT_MANIFEST}", f"{store}/partition-{partition:05d}/{SNAPSHOT_MANIFEST}"


def encode_snapshot(manifest: SnapshotManifest) -> str:
    """Return the manifest as JSON text."""
    return encode_document(manifest, SNAPSHOT_FORMAT)


def decode_snapshot(raw: str | bytes) -> SnapshotManifest:
    """Read what `encode_snapshot` wrote; fields that this release doesn't know are ignored.

    Raises:
        ValueError: it isn't a snapshot's manifest, or it is of a format this release doesn't know. The text says which.
    """
    manifest = decode_document(raw, "snapshot", SNAPSHOT_FORMAT, SnapshotManifest)
    check_numbers([part.partition for part in manifest.partitions], manifest.partition_count, "snapshot")
    for part in manifest.partitions:
        # The next owner's epoch is one more.
        if part.position.epoch < 0 or part.position.changelog_offset < 0:
            raise ValueError(f"snapshot with a negative position of partition {part.partition}: {part.position}")
        for name in (*(table.file for table in part.tables), *filter(None, [part.folder])):
            check_file(name, "snapshot")
    return manifest
