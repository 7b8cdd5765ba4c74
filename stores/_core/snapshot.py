"""The manifest of a seed: a store's state as table files, and the position that each partition's stand for.

See "Seed" in `docs/design/0001-formats.md`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from stores._core.manifest import check_file, document, integer, part_position, text, typed
from stores._core.record import Position

SEED_MANIFEST = "seed.json"
SEED_FORMAT = 1
TABLE_SUFFIX = ".sst"


@dataclass(frozen=True, slots=True)
class SeedTable:
    """A table file beside the manifest: `keys` entries in `size_bytes` bytes, whose CRC-32 is `crc32`."""

    file: str
    size_bytes: int
    crc32: int
    keys: int


@dataclass(frozen=True, slots=True)
class SeedPartition:
    """One partition: its tables in the order of their keys, none if it holds nothing."""

    partition: int
    position: Position
    tables: tuple[SeedTable, ...]

    @property
    def keys(self) -> int:
        """How many keys it holds."""
        return sum(table.keys for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedManifest:
    """What was made of one store, of all its partitions; `made_at_ms` in Unix milliseconds."""

    app: str
    store: str
    changelog: str
    partition_count: int
    made_at_ms: int
    partitions: tuple[SeedPartition, ...]


def table_file(partition: int, number: int) -> str:
    """Give the name of a partition's table number so and so."""
    return f"partition-{partition:05d}-{number:04d}{TABLE_SUFFIX}"


def encode_seed(manifest: SeedManifest) -> str:
    """Give the manifest as JSON text."""
    return json.dumps({"format": SEED_FORMAT, **asdict(manifest)}, indent=1, ensure_ascii=False) + "\n"


def decode_seed(raw_text: str) -> SeedManifest:
    """Read what `encode_seed` wrote; fields that this release doesn't know are ignored.

    Raises:
        ValueError: it isn't a seed's manifest, or it is of a format this release doesn't know. The text says which.
    """
    raw = document(raw_text, "seed", SEED_FORMAT)
    manifest = SeedManifest(
        app=text(raw, "app"),
        store=text(raw, "store"),
        changelog=text(raw, "changelog"),
        partition_count=integer(raw, "partition_count", "manifest"),
        made_at_ms=integer(raw, "made_at_ms", "manifest"),
        partitions=tuple(_partition(part) for part in typed(raw, "partitions", list, "manifest")),
    )
    _check(manifest)
    return manifest


def _check(manifest: SeedManifest) -> None:
    numbers = [part.partition for part in manifest.partitions]
    if len(set(numbers)) != len(numbers):
        raise ValueError("seed with a partition twice")
    if not all(0 <= number < manifest.partition_count for number in numbers):
        raise ValueError(f"seed with partitions {numbers} of {manifest.partition_count}")
    for part in manifest.partitions:
        # The next owner's epoch is one more.
        if part.position.epoch < 0 or part.position.changelog_offset < 0:
            raise ValueError(f"seed with a negative position of partition {part.partition}: {part.position}")
        for table in part.tables:
            check_file(table.file, "seed")


def _partition(raw: object) -> SeedPartition:
    if not isinstance(raw, dict):
        raise ValueError(f"seed with a partition that is {type(raw).__name__} instead of an object")  # noqa: TRY004
    where = f"partition {raw.get('partition')}"
    return SeedPartition(
        partition=integer(raw, "partition", where),
        position=part_position(raw, where),
        tables=tuple(_table(table, where) for table in typed(raw, "tables", list, where)),
    )


def _table(raw: object, where: str) -> SeedTable:
    if not isinstance(raw, dict):
        raise ValueError(f"seed with a table of {where} that is {type(raw).__name__}")  # noqa: TRY004
    return SeedTable(
        file=typed(raw, "file", str, where),
        size_bytes=integer(raw, "size_bytes", where),
        crc32=integer(raw, "crc32", where),
        keys=integer(raw, "keys", where),
    )
