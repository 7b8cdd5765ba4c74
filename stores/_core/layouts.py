"""Rows of stores as far as partitions go: the message key that a row is of, and the row that a partition itself has.

A row moves with its message's key when an app gets another number of partitions. By the layout of its store and its
first letter, `KEYS` says where in the row the key begins, and whether its length (4 bytes) is in front; else the key is
last. A partition's own row, `OWN`, is made of those of all former partitions whose keys may come to the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd

from stores._core.windows import KEY_AT, KEYS_AT, PROGRESS_KEY, WORD, merge_progress

Merge = Callable[[Mapping[int, bytes | None], int], bytes | None]

KEYS: Mapping[str, Mapping[bytes, tuple[int, bool]]] = {
    "key": {b"": (0, False)},
    "sized": {b"": (0, True)},
    "windows": {b"o": (1, False), **{letter: (at, False) for letter, at in KEYS_AT.items()}},
    "values": {b"w": (KEY_AT, True)},
    "timers": {b"n": (1, True), b"w": (KEY_AT, True), b"s": (KEY_AT, True)},
    "effects": {b"e": (1, True)},
    "parked": {b"p": (1, True)},
    "history": {b"h": (KEY_AT, False), b"d": (1, False)},
    "taken": {b"g": (1, False)},
    "waiting": {},
}
"""By layout and first letter, where the message key begins, and whether its length is in front. b"" is any letter."""


def _earliest(raws: Mapping[int, bytes | None], _: int) -> bytes | None:
    """Return the earliest stream time, 8 bytes, and the byte behind it if any has one. No row is the earliest."""
    rows = [raw for raw in raws.values() if raw is not None]
    return None if len(rows) < len(raws) else min(raw[:WORD] for raw in rows) + max(raw[WORD:] for raw in rows)


def _equal(raws: Mapping[int, bytes | None], _: int) -> bytes | None:
    row, *others = {*raws.values()}
    if others:
        raise ValueError("they haven't come equally far")
    return row


OWN: Mapping[str, tuple[bytes, Merge]] = {
    "windows": (PROGRESS_KEY, merge_progress),
    "values": (PROGRESS_KEY, merge_progress),
    "timers": (b"t", _earliest),
    "waiting": (b"s", _earliest),
    "history": (b"m", _equal),
    "taken": (b"m", _equal),
}
"""By layout, the row that a partition itself has, and the function that merges those of several."""


def own_rows(layout: str, raws: Sequence[bytes | None], partitions: int) -> list[bytes | None]:
    """Return the own row of each of so many new partitions, None where there is none.

    Keys of a former partition can only come to new ones that leave the same remainder by what divides both numbers.

    Args:
        layout: the store's.
        raws: the own row of each former partition, None where there is none.
        partitions: how many there are from now on.

    Raises:
        ValueError: rows can't be merged.
    """
    before, shared, (_, merge) = len(raws), gcd(len(raws), partitions), OWN[layout]
    if shared == before:
        return [raws[number % before] for number in range(partitions)]
    sources = [{place: raws[place] for place in range(first, before, shared)} for first in range(shared)]
    merged = [merge(rows, before) for rows in sources]
    return [merged[number % shared] for number in range(partitions)]
