"""The metadata of each write, and the position of a store's content.

The bytes of write metadata are the changelog's header `fa-stamp`, and stand in front of each value in RocksDB; an
export has them as columns. See `docs/design/0001-formats.md`.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Annotated

import msgspec

from stores._core.outside import MISSHAPEN

METADATA_HEADER = "fa-stamp"
METADATA_VERSION = 1
METADATA_BYTES = 25
NEVER = 0
"""`expires_at_ms` of a key that doesn't expire."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number as Parquet and RocksDB's values have it."""

_METADATA = struct.Struct(">BQqq")
pack_metadata = _METADATA.pack
"""`encode_metadata` for where a call counts: (METADATA_VERSION, epoch, source_offset, expires_at_ms)."""
_NEVER_BYTES = bytes(8)


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """The owner's epoch, the input offset and the expiry (Unix milliseconds) of a write."""

    epoch: int
    source_offset: int
    expires_at_ms: int = NEVER


def encode_metadata(epoch: int, source_offset: int, expires_at_ms: int = NEVER) -> bytes:
    """Return the `METADATA_BYTES` bytes of write metadata."""
    return _METADATA.pack(METADATA_VERSION, epoch, source_offset, expires_at_ms)


def decode_metadata(raw: bytes) -> WriteMetadata:
    """Read the write metadata at the front of `raw`.

    Raises:
        ValueError: `raw` is too short or of a version this release doesn't know.
    """
    if len(raw) < METADATA_BYTES:
        raise ValueError(f"write metadata has {METADATA_BYTES} bytes, found {len(raw)}")
    version, epoch, source_offset, expires_at_ms = _METADATA.unpack_from(raw)
    if version != METADATA_VERSION:
        raise ValueError(f"write metadata of version {version}, this release reads version {METADATA_VERSION}")
    return WriteMetadata(epoch, source_offset, expires_at_ms)


def expires_at_ms(with_metadata: bytes) -> int:
    """Return when the value expires (Unix milliseconds), `NEVER` if it doesn't; the metadata isn't checked."""
    return int.from_bytes(with_metadata[17:25], "big", signed=True)


def is_expired(with_metadata: bytes, now_ms: int) -> bool:
    """Return whether the value has expired at `now_ms`."""
    raw = with_metadata[17:25]
    return raw != _NEVER_BYTES and int.from_bytes(raw, "big", signed=True) <= now_ms


@dataclass(frozen=True, slots=True)
class Position:
    """The point in the input and in the changelog that a store's content stands for.

    `source_offset` is the next input offset to process, `changelog_offset` the next changelog offset to read,
    `wall_time_ms` when both were last known to be the truth, `epoch` the owner that wrote them and
    `changelog_id` the changelog topic's id.
    """

    source_offset: Int64
    changelog_offset: Int64
    wall_time_ms: Int64
    epoch: Int64
    changelog_id: str


def encode_position(position: Position) -> bytes:
    """Return the position as JSON."""
    return json.dumps(asdict(position), separators=(",", ":")).encode()


def decode_position(raw: bytes) -> Position:
    """Read what `encode_position` wrote; `ValueError` if it isn't a position."""
    try:
        return Position(**json.loads(raw))
    except MISSHAPEN as error:
        raise ValueError(f"not a position: {raw[:200]!r}") from error
