"""How windows lie in a store, so that what has expired is a range, and what a record needs is a get.

    "w" start key            an aligned window: its value
    "k" segment key          other windows of a key, as a list: those that begin (sliding) or end (session) in a
                             segment of time
    "e" end segment key      nothing: a window of that list ends then and waits for its close; where closes are asked
                             for. When it closes follows from the grace that is declared
    "W", "E"                 headers for a close: `actors.runtime.windows.carried`
    "m"                      `stores._core.windows.Progress`: stream time, and how far windows are closed and removed

Values begin with a letter that says what they are: "v" a window's value, "l" a list with the place at which its last
window begins (`actors._core.windows.lists`), "p" progress: stream time, then the rest in MessagePack. Times and
segments are 8 bytes, big-endian, also where Spark reads them without the app.
The key is last, so that it needs no length.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from actors._core.outside import MALFORMED, caused
from actors._core.windows.held import Held
from actors._core.windows.kinds import Session, Sliding, Window
from actors._core.windows.lists import LIST_HEAD_BYTES, appended, list_head, number_of, without_header
from stores._core.windows import CLOSE_KEY_AT, KEY_AT, LIST_AT, WORD

_encode = msgspec.msgpack.Encoder().encode
_decode_list = msgspec.msgpack.Decoder(list[Held]).decode
_decode_window = msgspec.msgpack.Decoder(Held).decode
_decode_times = msgspec.msgpack.Decoder(list[int]).decode
VALUE, LIST, TIMES = b"v", b"l", b"t"


def encode_list(held: list[Held]) -> bytes:
    """Return the value of a list's row, for `decode_list` and `last_of`."""
    elements = without_header(_encode(held), len(held))
    return list_head(LIST, LIST_HEAD_BYTES + len(elements) - len(_encode(held[-1])), len(held)) + elements


def decode_list(raw: bytes) -> list[Held]:
    """Return the windows that `encode_list` wrote.

    Raises:
        ValueError: it is something else.
    """
    try:
        return _decode_list(raw[LIST_AT:])
    except MALFORMED as error:
        raise caused(ValueError(f"not a list of windows, {error}: {raw[:50]!r}"), error) from error


def last_of(raw: bytes) -> Held:
    """Return the last window of a list; errors as of `decode_list`."""
    try:
        return _decode_window(raw[number_of(raw) :])
    except MALFORMED as error:
        raise caused(ValueError(f"not a list of windows, {error}: {raw[:50]!r}"), error) from error


def last_list(get: Callable[[bytes], bytes | None], raw_key: bytes, first: int, last: int) -> tuple[int, bytes | None]:
    """Return the last segment of some that has a list of a key, and that list; -1 and None where none has."""
    for segment in range(last, first - 1, -1):
        raw = get(list_key(segment, raw_key))
        if raw is not None:
            return segment, raw
    return -1, None


def with_last(raw: bytes | None, last: Held, *, is_new: bool) -> bytes:
    """Return a list with another last window, or with one more."""
    if not is_new and raw is not None:
        return raw[: number_of(raw)] + _encode(last)
    return appended(raw, _encode(last), LIST, LIST_HEAD_BYTES if raw is None else len(raw))


def encode_times(times_ms: list[int]) -> bytes:
    """Return the value of a row that lists times."""
    return TIMES + _encode(times_ms)


def decode_times(raw: bytes) -> list[int]:
    """Return the times that `encode_times` wrote.

    Raises:
        ValueError: it is something else.
    """
    try:
        return _decode_times(raw[1:])
    except MALFORMED as error:
        raise caused(ValueError(f"not a list of times, {error}: {raw[:50]!r}"), error) from error


@lru_cache(maxsize=1024)
def aligned_prefix(start_ms: int) -> bytes:
    """Return the prefix of the rows of aligned windows with this start: all keys have the same windows."""
    return b"w" + start_ms.to_bytes(WORD)


def aligned_key(start_ms: int, raw_key: bytes) -> bytes:
    """Return the row of an aligned window."""
    return aligned_prefix(start_ms) + raw_key


def list_key(segment: int, raw_key: bytes) -> bytes:
    """Return the row of a key's windows in a segment."""
    return b"k" + segment.to_bytes(WORD) + raw_key


def close_key(end_ms: int, segment: int, raw_key: bytes) -> bytes:
    """Return the entry of a window of a list that waits for its close."""
    return b"e" + end_ms.to_bytes(WORD) + segment.to_bytes(WORD) + raw_key


def changes_key(end_ms: int, raw_key: bytes) -> bytes:
    """Return the row of the intervals for which a window that changed waits."""
    return b"c" + end_ms.to_bytes(WORD) + raw_key


def time_of(row: bytes) -> int:
    """Return the start, segment or end of a row."""
    return int.from_bytes(row[1:KEY_AT])


def key_of(row: bytes) -> bytes:
    """Return the message key of a window's or a list's row."""
    return row[KEY_AT:]


def close_parts(row: bytes) -> tuple[int, int, bytes]:
    """Return end, segment and message key of an entry."""
    return time_of(row), int.from_bytes(row[KEY_AT:CLOSE_KEY_AT]), row[CLOSE_KEY_AT:]


Fold = Callable[[bytes | None], bytes]
"""A function from the value of a window, None if there is none, to the value with the record in it."""


@dataclass(slots=True)
class _Around:
    """The windows around a record, as far as new ones follow from them.

    Attributes:
        own: the window that ends with the record; in the first length of time, the window that begins in 1970.
        before: the last window that ends before the record.
        after: the last window that holds the record and begins behind `own`.
        previous_ms: the time of the last record before.
    """

    own: Held | None = None
    before: Held | None = None
    after: Held | None = None
    previous_ms: int | None = None


def _around(held: Sequence[Held], at_ms: int, own_start: int) -> _Around:
    found = _Around()
    for one in held:
        if one.start_ms == own_start:
            found.own = one
            if one.last_ms < at_ms:
                found.previous_ms = one.last_ms
            elif one.last_ms > at_ms:
                found.after = one
        elif one.end_ms < at_ms:
            found.before, found.previous_ms = one, one.last_ms
        elif one.start_ms <= at_ms:
            found.after = one
    return found


def into_sliding(
    kind: Sliding, held: Sequence[Held], at_ms: int, fold: Fold, is_open: Callable[[Window], bool]
) -> list[Held]:
    """Return the sliding windows of a key that a record at `at_ms` makes or changes.

    `held` has the key's windows that begin from two lengths before the record to a millisecond after it, in order.
    Windows that hold the record get it; those that its arrival makes necessary are made: one that ends with it, one
    that begins after it, and one that begins after the record before it.
    """
    length = kind.longest_ms
    # Windows don't begin before 1970: what comes in the first `length` has the window [0, length] in common.
    own_start = max(0, at_ms - length)
    near = _around(held, at_ms, own_start)
    # The window behind the record before may be the own one: it is made once.
    starts = {own_start, *(one.start_ms for one in held)}
    changed: list[Held] = []

    def add(start_ms: int, value: bytes | None, last_ms: int) -> None:
        window = Window(start_ms, start_ms + length)
        if is_open(window):
            changed.append(Held(*window, fold(value), max(last_ms, at_ms)))

    previous_ms, before, after = near.previous_ms, near.before, near.after
    if previous_ms is not None and previous_ms + 1 not in starts and previous_ms + 1 + length >= at_ms:
        add(previous_ms + 1, None, at_ms)
    if after is not None and after.last_ms > at_ms and at_ms + 1 not in starts:
        changed.append(Held(at_ms + 1, at_ms + 1 + length, after.value, after.last_ms))
    if near.own is None:
        fits = previous_ms is not None and previous_ms >= own_start
        add(own_start, before.value if fits and before is not None else None, at_ms)
    for one in held:
        if one.start_ms <= at_ms <= one.end_ms and not one.is_closed:
            add(one.start_ms, one.value, one.last_ms)
    return changed


def into_session(kind: Session, held: Sequence[Held], at_ms: int) -> tuple[Window, list[Held]]:
    """Return the session that a record at `at_ms` belongs to, and the sessions of `held` that it takes the place of.

    `held` has the key's sessions in order of their ends, and so have those that are returned.
    """
    from_ms, to_ms, start_ms, end_ms = at_ms - kind.gap_ms, at_ms + kind.gap_ms, at_ms, at_ms
    merged = [one for one in held if one.end_ms >= from_ms and one.start_ms <= to_ms]
    for one in merged:
        start_ms, end_ms = min(start_ms, one.start_ms), max(end_ms, one.end_ms)
    return Window(start_ms, end_ms), merged


def replaced(held: Sequence[Held], places: Container[tuple[int, int]], new: Sequence[Held]) -> list[Held]:
    """Return a list without the windows at `places`, their starts and ends, and with new ones."""
    # Hot: not as `Held.window`, which makes an object.
    rest = [window for window in held if window.is_merged or (window.start_ms, window.end_ms) not in places]
    rest += new
    if len(rest) > 1:
        rest.sort(key=_place)
    return rest


def _place(held: Held) -> tuple[int, int]:
    return held.end_ms, held.start_ms


def next_end_ms(windows: Iterable[Held]) -> int | None:
    """Return the end of the next window of a list that closes; None if the closes of all were handled."""
    return min((window.end_ms for window in windows if not window.is_closed), default=None)
