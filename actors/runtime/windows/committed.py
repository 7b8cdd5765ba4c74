"""Reads a key's windows from committed rows: for queries, commands and tests, beside the task that writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actors._core.windows.kinds import AlignedWindows, Session, Window
from actors._core.windows.rows import aligned_key, close_key, close_parts, decode_list, list_key, time_of
from actors.runtime.windows.store import Items, WindowStore
from stores._core.reader import PartitionReader
from stores._core.record import METADATA_BYTES
from stores._core.windows import PROGRESS_KEY, Progress, decode_progress

MAX_PLACES = 5_000
"""How many places of one key are looked at for one page: for a query they hold the event loop."""


@dataclass(frozen=True, slots=True)
class CommittedWindows:
    """Some of a key's windows, in order of their starts.

    Attributes:
        windows: each with its encoded value.
        next_ms: the start from which on nothing was looked at; None at the end.
        stream_ms: stream time as it is committed, -1 before the first record.
    """

    windows: list[tuple[Window, bytes]]
    next_ms: int | None
    stream_ms: int


@dataclass(frozen=True, slots=True)
class CommittedTime:
    """Time of a partition as it is committed: see `actors.runtime.message.task_state.ReadTime`."""

    stream_ms: int
    latest_ms: int

    def visible_ms(self, store: WindowStore[Any, Any]) -> int:
        """Return the start (sessions: end) up to which windows are past their retention."""
        return self.stream_ms - store.kept_ms


def committed_time(get: Callable[[bytes], bytes | None]) -> CommittedTime:
    """Return the time of a window store; `get` gives the committed value of a row, None where it is missing."""
    raw = get(PROGRESS_KEY)
    progress = Progress() if raw is None else decode_progress(raw)
    return CommittedTime(progress.stream_ms, max(progress.stream_ms, progress.latest_ms))


def read_windows(
    store: WindowStore[Any, Any],
    get: Callable[[bytes], bytes | None],
    raw_key: bytes,
    from_ms: int,
    to_ms: int,
    *,
    items: Items,
) -> CommittedWindows:
    """Return the windows of a key that begin in a span of time, both bounds included, or the first of them.

    Args:
        store: the store.
        get: gives the committed value of a row without its metadata, None where it is missing.
        raw_key: the encoded key.
        from_ms: Unix milliseconds.
        to_ms: likewise.
        items: returns (row, value) from a row up to another one; of the values nothing is read.
    """
    time = committed_time(get)
    row_ms = store.first_ms(items) if time.stream_ms < 0 else 0
    next_ms = None
    if not isinstance(store.windows, Session):
        # Sessions have few places, whatever the retention; no window of others begins later than that.
        first_ms, last_ms = max(from_ms, time.visible_ms(store) + 1, row_ms), min(to_ms, time.latest_ms + 1)
        next_ms = _behind(store, first_ms, last_ms)
    through_ms = to_ms if next_ms is None else next_ms - 1
    windows = store.windows_between(get, raw_key, from_ms, through_ms, time, first_ms=row_ms)
    return CommittedWindows(windows, next_ms, time.stream_ms)


def _behind(store: WindowStore[Any, Any], from_ms: int, to_ms: int) -> int | None:
    """Return the start behind the most places of a page from a time on; None if the span has no more."""
    if isinstance(store.windows, AlignedWindows):
        starts = store.windows.starts(from_ms, to_ms)
        return starts[MAX_PLACES] if len(starts) > MAX_PLACES else None
    end_ms = (max(0, from_ms) // store.segment_ms + MAX_PLACES) * store.segment_ms
    return end_ms if end_ms <= to_ms else None


def oldest_open_ms(store: WindowStore[Any, Any], held: PartitionReader) -> int | None:
    """Return the start of the oldest committed window that takes messages, Unix milliseconds; None if there is none.

    Of sessions and sliding windows it is the oldest one of the key whose close is next, and None where nothing is
    called for closes. It costs a look at one row or two.

    Raises:
        ValueError: rows can't be read.
    """
    kind, grace_ms = store.windows, store.grace_ms
    row = held.get(PROGRESS_KEY)
    time = Progress() if row is None else decode_progress(row[METADATA_BYTES:])
    if isinstance(kind, AlignedWindows):
        # A grace that was shorter before has closed windows for good.
        over_ms = max(0, time.stream_ms - grace_ms, time.closed_end_ms)
        first = next(held.scan(aligned_key(kind.holding(over_ms)[0].start_ms, b""), b"x"), None)
        return None if first is None else time_of(first[0])
    over_ms = max(time.stream_ms - kind.closes_ms(Window(0, 0), grace_ms), time.closed_end_ms)
    entry = next(held.scan(close_key(max(0, over_ms + 1), 0, b""), b"f"), None)
    raw = None if entry is None else held.get(list_key(*close_parts(entry[0])[1:]))
    lists = [] if raw is None else decode_list(raw[METADATA_BYTES:])
    open_ones = (one for one in lists if one.end_ms > over_ms)
    return min((one.start_ms for one in open_ones), default=None)
