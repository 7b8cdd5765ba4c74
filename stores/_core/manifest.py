"""The manifest of an export: which partitions a worker held, and the position each of them belongs to.

See "Export" in `docs/design/0001-formats.md`. A reader of the Parquet files (Spark) needs
this module and nothing else.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from stores._core.outside import MALFORMED
from stores._core.record import Int64, Position, position_fields

Content = TypeVar("Content")

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
_CRC = "crc32"


@dataclass(frozen=True, slots=True)
class ManifestPartition:
    """One exported partition: `file` lies beside the manifest and has `keys` rows."""

    partition: Int64
    file: str
    keys: Int64
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One worker's export of one store.

    `placement` is `key` when a key lives in the partition that murmur2 gives it, `row` when that is the partition of
    the key that a row is below, `task` when the store may hold any key.
    """

    app: str
    store: str
    changelog: str
    placement: Annotated[str, msgspec.Meta(pattern="^(key|row|task)$")]
    worker: str
    exported_at_ms: Int64
    partition_count: Int64
    partitions: tuple[ManifestPartition, ...]


def partition_file(partition: int) -> str:
    """Return the name of a partition's Parquet file."""
    return f"partition-{partition:05d}.parquet"


def encode_manifest(manifest: Manifest) -> str:
    """Return the manifest as JSON text."""
    return encode_document(manifest, MANIFEST_FORMAT)


def decode_manifest(raw_text: str) -> Manifest:
    """Read what `encode_manifest` wrote; fields that this release doesn't know are ignored.

    Raises:
        ValueError: it isn't a manifest, or it is of a format this release doesn't know. The text says which.
    """
    manifest = decode_document(raw_text, "manifest", MANIFEST_FORMAT, Manifest)
    check_numbers([part.partition for part in manifest.partitions], manifest.partition_count, "manifest")
    for part in manifest.partitions:
        check_file(part.file, "manifest")
    return manifest


@dataclass(frozen=True, slots=True)
class _Format:
    format: int


def encode_document(manifest: Any, number: int) -> str:
    """Return a manifest of the format with this number as JSON text."""
    fields = {"format": number, **asdict(manifest, dict_factory=position_fields)}
    return json.dumps(with_crc32(fields), indent=1, ensure_ascii=False) + "\n"


def decode_document(raw: str | bytes, kind: str, known_format: int, of: type[Content]) -> Content:
    """Read a manifest of a format; `ValueError`, which names the kind, if it is another one."""
    try:
        found = msgspec.json.decode(raw, type=_Format).format
        if found == known_format:
            require_crc32(msgspec.json.decode(raw))
            return msgspec.json.decode(raw, type=of)
    except (*MALFORMED, msgspec.MsgspecError) as error:
        raise ValueError(f"not a manifest: {error}") from error
    raise ValueError(f"{kind} of format {found}, this release reads format {known_format}")


def with_crc32(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a JSON object with the CRC-32 of what they say, however it is written."""
    return {**fields, _CRC: _crc32(fields)}


def require_crc32(fields: Mapping[str, Any]) -> None:
    """Check the fields of an object from `with_crc32`: a number with a flipped bit is a number too.

    Raises:
        ValueError: They aren't what was written.
    """
    if fields.get(_CRC) != _crc32(fields):
        raise ValueError(f"its CRC-32 is {_crc32(fields)} and was {fields.get(_CRC)}")


def _crc32(fields: Mapping[str, Any]) -> int:
    rest = {name: field for name, field in fields.items() if name != _CRC}
    return zlib.crc32(msgspec.json.encode(rest, order="deterministic"))


def check_numbers(numbers: list[int], partition_count: int, kind: str) -> None:
    """Check the partitions that a manifest names; `ValueError` if there can't be one, or one is there twice."""
    seen: set[int] = set()
    for number in numbers:
        if not 0 <= number < partition_count:
            raise ValueError(f"{kind} with partition {number} of {partition_count}")
        if number in seen:
            raise ValueError(f"{kind} with partition {number} twice")
        seen.add(number)


def check_file(name: str, kind: str) -> None:
    """Check that a file lies beside its manifest; `ValueError` if its name leads elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(f"{kind} with file {name!r}: files lie beside the manifest")
