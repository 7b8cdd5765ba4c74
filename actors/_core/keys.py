"""Keys of the stores that an actor keeps beside its state: entries of one message key are adjacent.

    sized    4 bytes length of the raw key, the raw key
    place    a letter, the sized raw key, 8 bytes sequence

Numbers are big-endian. The places of one raw key are its line, in the order of their sequences.
"""

from __future__ import annotations

_LENGTH_BYTES = 4
_SEQUENCE_BYTES = 8


def sized(raw_key: bytes) -> bytes:
    """Return the raw key with its length in front, so that it is no prefix of another one."""
    return len(raw_key).to_bytes(_LENGTH_BYTES, "big") + raw_key


def split_sized(raw: bytes) -> tuple[bytes, bytes]:
    """Return the raw key that `raw` begins with, and the rest."""
    end = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "big")
    return raw[_LENGTH_BYTES:end], raw[end:]


def make_place(letter: bytes, raw_key: bytes, sequence: int) -> bytes:
    return letter + sized(raw_key) + sequence.to_bytes(_SEQUENCE_BYTES, "big")


def line_bounds(letter: bytes, raw_key: bytes) -> tuple[bytes, bytes]:
    """Return a key before all places of a line, and one behind them."""
    start = letter + sized(raw_key)
    return start, start + b"\xff" * (_SEQUENCE_BYTES + 1)


def place_of(place: bytes) -> tuple[bytes, int]:
    """Return the raw key and the sequence of a place."""
    return place[1 + _LENGTH_BYTES : -_SEQUENCE_BYTES], int.from_bytes(place[-_SEQUENCE_BYTES:], "big")
