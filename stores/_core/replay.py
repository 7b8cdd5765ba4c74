"""What a replayed changelog stands for: the position that follows from the write metadata of its records.

Workers that restore and Spark that builds snapshots must agree in this to the byte.
"""

from __future__ import annotations

from dataclasses import replace

from stores._core.record import Position, decode_metadata, encode_metadata

NO_METADATA = encode_metadata(0, 0)
"""What is kept in front of a value whose record has no write metadata: another program wrote it."""


def advance(position: Position, newest: bytes, next_offset: int) -> Position:
    """Move the position past records whose highest write metadata is `newest`, `NO_METADATA` if none has one.

    Write metadata compares as bytes: version, epoch, input offset, big-endian and not negative. So records may be
    looked at in chunks of any size. The newest owner's input offset counts, also where an older one had come further:
    an operator may have set the offset back in between. Owners' epochs begin at 1: epoch 0 is no owner's, and such
    metadata says nothing of the input.

    Raises:
        ValueError: the write metadata is of a version this release doesn't know.
    """
    metadata = decode_metadata(newest)
    if metadata.epoch > position.epoch:
        source_offset = metadata.source_offset + 1
    elif metadata.epoch == position.epoch > 0:
        source_offset = max(position.source_offset, metadata.source_offset + 1)
    else:
        source_offset = position.source_offset
    return replace(
        position,
        changelog_offset=next_offset,
        epoch=max(position.epoch, metadata.epoch),
        source_offset=source_offset,
    )
