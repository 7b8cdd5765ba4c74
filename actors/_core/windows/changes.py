"""Changes of a table's rows on their way to the groups of an aggregate, and how far an aggregate has taken up a table.

A change is MessagePack: `[former value or nil, new value or nil]`, both as they came in the table's topic.

How far: "a" if all rows of the partition are in their groups, else "n" and the key of the next one.
"""

from __future__ import annotations

import msgspec

from actors._core.outside import MALFORMED

ALL, NEXT = b"a", b"n"


class Change(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What becomes of a group's rows: the former value leaves, the new one comes; None where there is none."""

    former: bytes | None
    new: bytes | None


encode_change = msgspec.msgpack.Encoder().encode
_decode_change = msgspec.msgpack.Decoder(Change).decode


def decode_change(raw: bytes) -> Change:
    """Return what `encode_change` was given.

    Raises:
        ValueError: it is something else.
    """
    try:
        return _decode_change(raw)
    except MALFORMED as error:
        raise ValueError(f"not a change of a table's row, {error}: {raw[:50]!r}") from error
