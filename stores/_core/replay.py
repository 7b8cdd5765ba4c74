"""The position of a replayed changelog, from the write metadata of its records.

Workers that restore and Spark that builds snapshots must agree in this to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stores._core.record import Position, decode_metadata, encode_metadata

NO_METADATA = encode_metadata(0, 0)
"""Metadata in front of a value whose record has none: another program wrote it."""


def advance(position: Position, newest: Iterable[bytes], next_offset: int) -> Position:
    """Move the position past records; `newest` has the highest write metadata of each input among them.

    Write metadata of an input compares as bytes: version, epoch, input offset, big-endian; what was written before the
    first input is chosen apart. So records may be looked at in chunks of any size. The newest owner's input offset
    counts, also where an older one had come further: an operator may have set the offset back in between. Owners'
    epochs begin at 1: epoch 0 is no owner's, and such metadata says nothing of the input.

    Raises:
        ValueError: the write metadata is of a version this release doesn't know.
    """
    epoch, offsets = position.epoch, list(position.offsets)
    for metadata in map(decode_metadata, newest):
        if metadata.epoch:
            # An input that only older owners read has a place too: neither order nor chunks change the result.
            offsets += [0] * (metadata.input + 1 - len(offsets))
        if metadata.epoch > epoch:
            epoch, offsets = metadata.epoch, [0] * len(offsets)
        if metadata.epoch == epoch > 0:
            offsets[metadata.input] = max(offsets[metadata.input], metadata.source_offset + 1)
    transaction = position.transaction if epoch == position.epoch else 0
    return replace(position.at(offsets), changelog_offset=next_offset, epoch=epoch, transaction=transaction)
