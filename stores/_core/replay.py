"""What a replayed changelog stands for: the position that follows from the stamps of its records.

Workers that restore and Spark that builds seeds must agree in this to the byte.
"""

from __future__ import annotations

from dataclasses import replace

from stores._core.record import Position, decode_stamp, encode_stamp

NO_STAMP = encode_stamp(0, 0)
"""What is kept in front of a value whose record has no stamp: another program wrote it."""


def advance(position: Position, newest: bytes, next_offset: int) -> Position:
    """Move the position past records whose highest stamp is `newest`, `NO_STAMP` if none has one.

    Stamps compare as bytes: version, epoch, input offset, big-endian and not negative. So records may be looked at in
    chunks of any size. The newest owner's input offset counts, also where an older one had come further: an operator
    may have set the offset back in between. Owners' epochs begin at 1: epoch 0 is no owner's, and such a stamp says
    nothing of the input.

    Raises:
        ValueError: the stamp is of a version this release doesn't know.
    """
    stamp = decode_stamp(newest)
    if stamp.epoch > position.epoch:
        source_offset = stamp.source_offset + 1
    elif stamp.epoch == position.epoch > 0:
        source_offset = max(position.source_offset, stamp.source_offset + 1)
    else:
        source_offset = position.source_offset
    return replace(
        position,
        changelog_offset=next_offset,
        epoch=max(position.epoch, stamp.epoch),
        source_offset=source_offset,
    )
