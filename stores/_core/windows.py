"""The rows of window stores and joins as far as they can be told without the program: by standbys and by Spark.

`actors._core.windows.rows` and `join_rows` have all of them. Here is the row `m`, which says how far the windows of a
partition have come, and the key of a row's message.

A worker removes windows, and records of joins, that are past their retention from its disk without a delete in the
changelog, whose own retention removes the records at another time. The row `m` says which rows these may be, in the
commit after which they may go: all that begin with the first letter of `expired` and come before it. So a holder of
such rows may remove them, and a comparison of two sides leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stores._core.outside import MALFORMED

PROGRESS_KEY = b"m"
PROGRESS = b"p"
WORD = 8
KEY_AT = 1 + WORD
CLOSE_KEY_AT = 1 + 2 * WORD
SIDE_AT = KEY_AT
LIST_AT = 5
"""Where the MessagePack begins in a list's row and in a chunk's: see `actors._core.windows.lists`."""
CHUNK_KEY_AT = SIDE_AT + 1 + 4
UNMATCHED_KEY_AT = CHUNK_KEY_AT + 4
KEYS_AT = {b"w": KEY_AT, b"k": KEY_AT, b"e": CLOSE_KEY_AT, b"c": KEY_AT, b"j": CHUNK_KEY_AT, b"u": UNMATCHED_KEY_AT}
KEYS_AT |= {b"W": KEY_AT, b"E": CLOSE_KEY_AT}
"""Where the message key begins in a row, by the row's first letter. A capital has the headers for a close."""
_LISTS = {b"l": (LIST_AT, 2), b"c": (LIST_AT, 1), b"o": (1, 2)}
"""By a value's first letter, where its list begins, and the place of the value in each element."""
VALUES = (b"v", *_LISTS)
"""The first letters of the values of rows that have values of windows, or of a join's records."""
_ARRAY_32 = b"\xdd"


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """How far the windows of a partition have come. Later releases may add fields to the end.

    Attributes:
        stream_ms: stream time, -1 before the first record.
        closed: the row of the last aligned window whose close was handled, empty before the first.
        closed_end_ms: windows that end up to then are closed by `closed_grace_ms`: the grace was shorter before. -1
            before the first.
        closed_grace_ms: see there, -1 where there are none.
        layout: the windows that the rows are made for, "" before the first.
        grace_ms: the grace period by which windows were closed so far, -1 before the first.
        has_entries: whether each list with a window to close has an entry for it.
        expired: rows with its first letter that come before it may have been removed, empty before the first.
        latest_ms: the latest time of a record where stream time may be behind it, else -1.
        former: by former partition whose keys are in this one, stream time and `closed` there, as long as not
            all windows that were closed there are closed; else empty.
        former_partitions: how many there were, 0 where `former` is empty.
    """

    stream_ms: int = -1
    closed: bytes = b""
    closed_end_ms: int = -1
    layout: str = ""
    grace_ms: int = -1
    has_entries: bool = False
    expired: bytes = b""
    closed_grace_ms: int = -1
    latest_ms: int = -1
    former: dict[int, tuple[int, bytes]] = {}
    former_partitions: int = 0


_encode = msgspec.msgpack.Encoder().encode
_FIELDS_AFTER_STREAM_TIME = len(Progress.__struct_fields__) - 1


def encode_progress(progress: Progress) -> bytes:
    """Return the value of the row `PROGRESS_KEY`."""
    rest = msgspec.structs.astuple(progress)[1:]
    return PROGRESS + progress.stream_ms.to_bytes(WORD, signed=True) + _encode(rest)


def decode_progress(raw: bytes) -> Progress:
    """Decode the result of `encode_progress`.

    Raises:
        ValueError: it is something else.
    """
    try:
        rest = msgspec.msgpack.decode(raw[KEY_AT:], type=list)
        progress = msgspec.convert(
            [int.from_bytes(raw[1:KEY_AT], signed=True), *rest], Progress, builtin_types=(bytes,)
        )
    except (*MALFORMED, msgspec.MsgspecError) as error:
        raise ValueError(f"not the stream time of windows, {error}: {raw[:50]!r}") from error
    if raw[:1] != PROGRESS or len(rest) < _FIELDS_AFTER_STREAM_TIME or len(progress.expired) not in (0, KEY_AT):
        raise ValueError(f"not the stream time of windows: {raw[:50]!r}")
    return progress


def merge_progress(raws: Mapping[int, bytes | None], partitions: int) -> bytes:
    """Return the row of a partition whose keys come from several of so many former partitions; None: it has none.

    Stream time is the earliest of theirs, so that nothing becomes late. For a key the later one of its own former
    partition counts on, so that nothing closes twice.

    Raises:
        ValueError: windows were closed by different rules, or a row is something else.
    """
    rows = {place: Progress() if raw is None else decode_progress(raw) for place, raw in raws.items()}
    present = [rows[place] for place, raw in raws.items() if raw is not None] or [Progress()]
    first = present[0]
    rules = {(row.layout, row.grace_ms, row.closed_end_ms, row.closed_grace_ms, row.has_entries) for row in present}
    if len(rules) > 1 or any(row.former for row in present):
        raise ValueError("they haven't closed their windows by one grace period, or were merged before")
    stream_ms = min(row.stream_ms for row in rows.values())
    closed = min(row.closed for row in rows.values())
    reached = {place: (row.stream_ms, row.closed) for place, row in rows.items()}
    former = {place: time for place, time in reached.items() if time != (stream_ms, closed)}
    return encode_progress(
        msgspec.structs.replace(
            first,
            stream_ms=stream_ms,
            closed=closed,
            expired=min(row.expired for row in rows.values()),
            latest_ms=max(max(row.stream_ms, row.latest_ms) for row in rows.values()),
            former=former,
            former_partitions=partitions if former else 0,
        )
    )


def with_values(raw: bytes, change: Callable[[bytes], bytes], *, waits: bool = False) -> bytes:
    """Return a row's value with what `change` returns in place of each value of a window, or of a join's record.

    Args:
        raw: the row's value; one without such values is returned as it is.
        change: called with each of them, in order.
        waits: whether they are of records that wait for their `one`, which have an offset and headers in front.

    Raises:
        ValueError: it is something else.
    """
    letter = raw[:1]
    if letter == b"v":
        return letter + change(raw[1:])
    if letter not in _LISTS:
        return raw
    begin, place = _LISTS[letter]
    parts = _decoded(raw[begin:], list[list[Any]])
    for part in parts:
        front: list[Any] = _decoded(part[place], list[Any]) if waits else [part[place]]
        front[-1] = change(front[-1])
        part[place] = _encode(front) if waits else front[0]
    if letter == b"o":
        return letter + _encode(parts)
    encoded = [_encode(part) for part in parts]
    # The number in front is that of the last chunk, or where the last window begins.
    last_at = LIST_AT + 1 + 4 + sum(map(len, encoded[:-1]))
    number = last_at.to_bytes(4) if letter == b"l" else raw[1:LIST_AT]
    return b"".join((letter, number, _ARRAY_32, len(parts).to_bytes(4), *encoded))


def _decoded(raw: bytes, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (*MALFORMED, msgspec.MsgspecError) as error:
        raise ValueError(f"not values of windows, or of a join: {error}: {raw[:50]!r}") from error
