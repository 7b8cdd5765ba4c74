"""The metadata of each write, and the position of a store's content.

The bytes of write metadata are the changelog's header `fa-stamp`, and stand in front of each value in RocksDB; an
export has them as columns. See `docs/design/0001-formats.md`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final

import msgspec

from stores._core.outside import MISSHAPEN

METADATA_HEADER = "fa-stamp"
METADATA_VERSION = 1
INPUTS_VERSION = 2
"""The version of an actor with several inputs, which also says which one a write came from."""
EXPIRY_AT: Final = 17
METADATA_BYTES: Final = 25
"""The expiry is the last field of write metadata, from `EXPIRY_AT` on."""
NEVER = 0
"""`expires_at_ms` of a key that doesn't expire."""
NEVER_BYTES = bytes(8)

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number as Parquet and RocksDB's values have it."""

_METADATA = struct.Struct(">BQqq")
pack_metadata = _METADATA.pack
"""`encode_metadata` for where a call counts: (METADATA_VERSION, epoch, source_offset, expires_at_ms)."""
INPUT_BITS = 16
INPUT_PLACE = slice(15, 17)
"""Where version 2 has the input's place."""
MAX_INPUTS = 64
SOURCE_PLACE = slice(9, 17)
"""Where the offset in the input is: -1 before the first input, which comes behind all others in the order of bytes."""
BEFORE_INPUT = 0x80
"""From which first byte on it is negative."""


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """The owner's epoch, the offset in the input, the expiry (Unix milliseconds) and the input's place of a write."""

    epoch: int
    source_offset: int
    expires_at_ms: int = NEVER
    input: int = 0


def encode_metadata(epoch: int, source_offset: int, expires_at_ms: int = NEVER, *, input: int | None = None) -> bytes:
    """Return the `METADATA_BYTES` bytes of write metadata; `input` is None for an actor with one input."""
    if input is None:
        return _METADATA.pack(METADATA_VERSION, epoch, source_offset, expires_at_ms)
    return _METADATA.pack(INPUTS_VERSION, epoch, source_offset << INPUT_BITS | input, expires_at_ms)


def decode_metadata(raw: bytes) -> WriteMetadata:
    """Read the write metadata at the front of `raw`.

    Raises:
        ValueError: `raw` is too short or of a version this release doesn't know.
    """
    if len(raw) < METADATA_BYTES:
        raise ValueError(f"write metadata has {METADATA_BYTES} bytes, found {len(raw)}")
    version, epoch, source_offset, expires_at_ms = _METADATA.unpack_from(raw)
    if version == METADATA_VERSION:
        return WriteMetadata(epoch, source_offset, expires_at_ms)
    if version != INPUTS_VERSION:
        raise ValueError(f"write metadata of version {version}, this release reads versions up to {INPUTS_VERSION}")
    place = source_offset & (1 << INPUT_BITS) - 1
    if place >= MAX_INPUTS:
        raise ValueError(f"write metadata of input {place}, an actor has up to {MAX_INPUTS}")
    return WriteMetadata(epoch, source_offset >> INPUT_BITS, expires_at_ms, place)


def with_epoch(metadata: bytes, epoch: int) -> bytes:
    """Return write metadata with another epoch."""
    return metadata[:1] + epoch.to_bytes(8, "big") + metadata[9:]


def place_of(with_metadata: bytes) -> int | None:
    """Return the place of the input that a write came from, None for an actor with one; the metadata isn't checked."""
    return int.from_bytes(with_metadata[INPUT_PLACE], "big") if with_metadata[0] == INPUTS_VERSION else None


def expires_at_ms(with_metadata: bytes) -> int:
    """Return when the value expires (Unix milliseconds), `NEVER` if it doesn't; the metadata isn't checked."""
    return int.from_bytes(with_metadata[EXPIRY_AT:METADATA_BYTES], "big", signed=True)


def is_expired(with_metadata: bytes, now_ms: int) -> bool:
    """Return whether the value has expired at `now_ms`."""
    raw = with_metadata[EXPIRY_AT:METADATA_BYTES]
    return raw != NEVER_BYTES and int.from_bytes(raw, "big", signed=True) <= now_ms


@dataclass(frozen=True, slots=True)
class Position:
    """The point in the input and in the changelog that a store's content stands for.

    `source_offset` is the next offset to process of the first input, `changelog_offset` the next changelog offset to
    read, `wall_time_ms` when both were last known to be the truth, `epoch` the owner that wrote them, `changelog_id`
    the changelog topic's id, and `more_offsets` are those of the other inputs. `transaction` is the number of the
    owner's commit that the store took last, 0 if it took none itself.
    """

    source_offset: Int64
    changelog_offset: Int64
    wall_time_ms: Int64
    epoch: Int64
    changelog_id: str
    more_offsets: tuple[Int64, ...] = ()
    transaction: Int64 = 0

    @property
    def offsets(self) -> tuple[int, ...]:
        """The next offset to process of each input."""
        return (self.source_offset, *self.more_offsets)

    def offset_of(self, index: int) -> int | None:
        """Return the next offset to process of an input, None if nothing is known of it."""
        offsets = self.offsets
        return offsets[index] if index < len(offsets) else None

    def at(self, offsets: Sequence[int]) -> Position:
        """Return the same with other offsets of the inputs."""
        return replace(self, source_offset=offsets[0], more_offsets=tuple(offsets[1:]))

    def covers(self, metadata: WriteMetadata) -> bool:
        """Return whether a write was made before this position."""
        known = self.offset_of(metadata.input) or 0
        return (metadata.epoch, metadata.source_offset) < (self.epoch, known)


def encode_position(position: Position) -> bytes:
    """Return the position as JSON."""
    return json.dumps(asdict(position, dict_factory=position_fields), separators=(",", ":")).encode()


def position_fields(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a position for `asdict`, without those that say nothing."""
    return {name: value for name, value in fields if value or name not in ("more_offsets", "transaction")}


def decode_position(raw: bytes) -> Position:
    """Read what `encode_position` wrote; `ValueError` if it isn't a position."""
    try:
        fields = json.loads(raw)
        fields["more_offsets"] = tuple(fields.get("more_offsets", ()))
        return Position(**fields)
    except MISSHAPEN as error:
        raise ValueError(f"not a position: {raw[:200]!r}") from error
