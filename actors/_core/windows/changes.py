"""Changes of a table's rows on their way to the groups of an aggregate, and what both sides keep of a row.

A change is MessagePack: `[key of the row, its new value or nil]`, the value as it came in the table's topic.

The owner of the rows keeps a cursor, `m`: "a" if all rows of the partition are in their groups, else "n" and the key of
the next one. Under `g` and a row's key it keeps the key of the group that has the row.

The owner of a group keeps what was added of each row: "v" and a scalar in MessagePack, or "r" and the row's value.
"""

from __future__ import annotations

from typing import Any

import msgspec

from actors._core.outside import MALFORMED

CURSOR, GROUP_OF = b"m", b"g"
ALL, NEXT = b"a", b"n"
_SCALAR, _ROW = b"v", b"r"
_SCALARS = frozenset((int, float, str, bytes, bool, type(None)))
"""Types that MessagePack returns unchanged."""


class Change(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A row and its new value; None: it leaves the group."""

    row: bytes
    new: bytes | None


encode_change = msgspec.msgpack.Encoder().encode
_encode_scalar = encode_change
_decode_scalar = msgspec.msgpack.Decoder().decode
_decode_change = msgspec.msgpack.Decoder(Change).decode


def decode_change(raw: bytes) -> Change:
    """Return the change that `encode_change` wrote.

    Raises:
        ValueError: it is something else.
    """
    try:
        return _decode_change(raw)
    except MALFORMED as error:
        raise ValueError(f"not a change of a table's row, {error}: {raw[:50]!r}") from error


def encode_added(value: Any, row: bytes) -> bytes:
    """Return a group's entry of a row: the value that was added, or the row from which the value is made again."""
    if type(value) in _SCALARS:
        try:
            return _SCALAR + _encode_scalar(value)
        except (OverflowError, UnicodeEncodeError):
            # An int beyond 64 bits, or a text with a lone surrogate.
            return _ROW + row
    return _ROW + row


def decode_added(raw: bytes) -> tuple[Any, bytes | None]:
    """Return the value that was added, or None and the row that it is made of.

    Raises:
        ValueError: `encode_added` didn't make it.
    """
    kind, content = raw[:1], raw[1:]
    if kind == _ROW:
        return None, content
    try:
        if kind == _SCALAR:
            return _decode_scalar(content), None
    except MALFORMED as error:
        raise ValueError(f"not what a group keeps of a row, {error}: {raw[:50]!r}") from error
    raise ValueError(f"not what a group keeps of a row: {raw[:50]!r}")
