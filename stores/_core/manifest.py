"""The manifest of an export: which partitions a worker held, and the position each of them belongs to.

See "Export" in `docs/design/0001-formats.md`. Whoever reads the Parquet files (Spark) needs
this module and nothing else.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from stores._core.outside import MALFORMED
from stores._core.record import Position

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
PLACEMENTS = ("key", "task")


@dataclass(frozen=True, slots=True)
class ManifestPartition:
    """One exported partition: `file` lies beside the manifest and has `keys` rows."""

    partition: int
    file: str
    keys: int
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one worker exported of one store.

    `placement` is `key` when a key lives in the partition that murmur2 gives it, `task` when the store may
    hold any key.
    """

    app: str
    store: str
    changelog: str
    placement: str
    worker: str
    exported_at_ms: int
    partition_count: int
    partitions: tuple[ManifestPartition, ...]


def partition_file(partition: int) -> str:
    """Return the name of a partition's Parquet file."""
    return f"partition-{partition:05d}.parquet"


def encode_manifest(manifest: Manifest) -> str:
    """Return the manifest as JSON text."""
    return json.dumps({"format": MANIFEST_FORMAT, **asdict(manifest)}, indent=1, ensure_ascii=False) + "\n"


def decode_manifest(raw_text: str) -> Manifest:
    """Read what `encode_manifest` wrote; fields that this release doesn't know are ignored.

    Raises:
        ValueError: it isn't a manifest, or it is of a format this release doesn't know. The text says which.
    """
    raw = document(raw_text, "manifest", MANIFEST_FORMAT)
    manifest = Manifest(
        app=text(raw, "app"),
        store=text(raw, "store"),
        changelog=text(raw, "changelog"),
        placement=text(raw, "placement"),
        worker=text(raw, "worker"),
        exported_at_ms=integer(raw, "exported_at_ms", "manifest"),
        partition_count=integer(raw, "partition_count", "manifest"),
        partitions=tuple(_partition(part) for part in typed(raw, "partitions", list, "manifest")),
    )
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    if manifest.placement not in PLACEMENTS:
        raise ValueError(f"manifest with placement {manifest.placement!r}, not {' or '.join(PLACEMENTS)}")
    seen: set[int] = set()
    for part in manifest.partitions:
        if not 0 <= part.partition < manifest.partition_count:
            raise ValueError(f"manifest with partition {part.partition} of {manifest.partition_count}")
        if part.partition in seen:
            raise ValueError(f"manifest with partition {part.partition} twice")
        check_file(part.file, "manifest")
        seen.add(part.partition)


def _partition(raw: object) -> ManifestPartition:
    if not isinstance(raw, dict):
        raise ValueError(f"manifest with a partition that is {type(raw).__name__} instead of an object")  # noqa: TRY004
    where = f"partition {raw.get('partition')}"
    return ManifestPartition(
        partition=integer(raw, "partition", where),
        file=typed(raw, "file", str, where),
        keys=integer(raw, "keys", where),
        position=part_position(raw, where),
    )


def document(raw_text: str, kind: str, known_format: int) -> dict[str, Any]:
    """Read a JSON object that says its format; `ValueError`, which names the kind, if it is another one."""
    try:
        raw = json.loads(raw_text)
    except MALFORMED as error:
        raise ValueError(f"not a manifest: no JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ValueError(f"not a manifest: {type(raw).__name__} instead of an object")  # noqa: TRY004
    if integer(raw, "format", "manifest") != known_format:
        raise ValueError(f"{kind} of format {raw['format']}, this release reads format {known_format}")
    return raw


def check_file(name: str, kind: str) -> None:
    """Check that a file lies beside its manifest; `ValueError` if its name leads elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(f"{kind} with file {name!r}: files lie beside the manifest")


def part_position(part: dict[str, Any], where: str) -> Position:
    """Return the position of a manifest's partition; `ValueError` if it has none."""
    raw, where = typed(part, "position", dict, where), f"the position of {where}"
    numbers = {
        field.name: integer(raw, field.name, where) for field in fields(Position) if field.name != "changelog_id"
    }
    return Position(**numbers, changelog_id=typed(raw, "changelog_id", str, where))


def text(raw: dict[str, Any], field: str) -> str:
    """Return a manifest's field that has to be text; `ValueError` if it isn't."""
    value: str = typed(raw, field, str, "manifest")
    return value


def integer(raw: dict[str, Any], field: str, where: str) -> int:
    """Return a field that has to be a whole number; `ValueError`, which names `where`, if it isn't."""
    value: int = typed(raw, field, int, where)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"not a manifest: {field!r} of {where} is {value}, expected 64 bits at most")
    return value


def typed(raw: dict[str, Any], field: str, kind: type, where: str) -> Any:
    """Return a field that has to be of a type; `ValueError`, which names `where`, if it isn't."""
    if field not in raw:
        raise ValueError(f"not a manifest: {where} has no {field!r}")
    value = raw[field]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(  # noqa: TRY004
            f"not a manifest: {field!r} of {where} is {value!r}, expected {kind.__name__}"
        )
    return value
