"""How what closes lies in a store: which rows close, and how one is taken out in the commit of its close.

Tumbling and hopping windows close in the order of their rows, and the last row whose close was handled is noted. Other
windows have an entry for the next close of each list, which is removed or moved on. A record of a join that matched
none has a row, which is removed, and so has a window that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from actors._core.outside import caused
from actors._core.partitioner import partition_for
from actors._core.windows.join_rows import LEFT, UNMATCHED, unmatched_parts
from actors._core.windows.kinds import AlignedWindows, Window, goes_by_clock
from actors._core.windows.rows import (
    close_key,
    close_parts,
    decode_list,
    encode_list,
    key_of,
    list_key,
    next_end_ms,
    time_of,
)
from actors.errors import NewerVersionError
from actors.ports import TopicPartition
from actors.runtime.message.task_state import TaskState
from actors.runtime.windows.changes import ChangeStore
from actors.runtime.windows.joins import JoinStore, OneStore
from actors.runtime.windows.store import WindowStore
from stores._core.overlay import Overlay
from stores._core.windows import PROGRESS_KEY, Progress, decode_progress, encode_progress

TimedStore = WindowStore[Any, Any] | JoinStore | ChangeStore
"""A store whose rows belong to stream time."""
Found = list[tuple[Any, bytes]]
"""Closing entries: a window or a side, and the encoded value."""


def is_by_clock(stores: Iterable[TimedStore]) -> bool:
    """Return whether the windows of an actor go by the clock in place of stream time: all of them do, or none."""
    return any(isinstance(store, WindowStore) and goes_by_clock(store.windows) for store in stores)


class Closes:
    """The closes of one store.

    Attributes:
        prefix: what the rows that close begin with.
        has_entries: whether these rows are entries, written only where closes are asked for.
        length_ms: the longest of what closes: at one time, shorter ones are first.
        idle_ms: how long after its end a window without a grace is closed.
        output_lag_ms: how long before its close the time may be that it is handed out with.
        contents, remedy: what the store holds, and how another one gets a store of its own, for errors.
    """

    prefix: bytes
    has_entries: bool
    length_ms: int
    idle_ms: int
    output_lag_ms: int
    contents: str
    remedy: str

    def all_of(self, overlay: Overlay, row: bytes) -> list[bytes]:
        """Return the rows of all closes that a row stands for, each of which is handled by itself."""
        return [row]

    def named(self, row: bytes) -> tuple[bytes, int]:
        """Return the key and the time of a close."""
        raise NotImplementedError

    def take(self, state: TaskState, row: bytes, found: Found) -> str:
        """Take a row out, and put what closes into `found`; return what that is, for people, or ""."""
        raise NotImplementedError


def closes_of(store: TimedStore) -> Closes:
    """Return the closes of a store."""
    if isinstance(store, OneStore):
        return _Ended(store)
    if isinstance(store, JoinStore):
        return _Unmatched(store)
    if isinstance(store, ChangeStore):
        return _Changed(store)
    return _Aligned(store, store.windows) if isinstance(store.windows, AlignedWindows) else _Listed(store)


def read_progress(store: TimedStore, state: TaskState) -> Progress:
    """Return the progress of a store."""
    raw = state.overlays[store.rows].get(PROGRESS_KEY)
    return Progress() if raw is None else decode_progress(raw)


def former_time(progress: Progress | None, raw_key: bytes) -> tuple[int, bytes]:
    """Return stream time and `closed` of a key's former partition; (-1, b"") where they don't count any more."""
    if progress is None or not progress.former:
        return -1, b""
    return progress.former.get(partition_for(raw_key, progress.former_partitions), (-1, b""))


def write_progress(store: TimedStore, progress: Progress, state: TaskState) -> None:
    """Write how far a store has come."""
    store.rows.write_raw(state, PROGRESS_KEY, encode_progress(progress))


@contextmanager
def reading(home: TopicPartition, store: TimedStore) -> Iterator[None]:
    """Read rows of a store that no message is about: one that can't be read stops the partition, not the worker.

    Raises:
        NewerVersionError: a row can't be read.
    """
    try:
        yield
    except NewerVersionError:
        raise
    except (ValueError, IndexError, OverflowError) as error:
        failed = NewerVersionError(
            f"{home}: a row of store {store.name} can't be read: {error}. If a newer release wrote it, run that one. "
            "If this worker's disk is damaged, stop the worker, delete the partition's folder of the store in its data "
            "folder, and start it again: the store is restored from its changelog"
        )
        raise caused(failed, error) from error


def first_entries(store: TimedStore, overlay: Overlay, stream_ms: int) -> Iterator[tuple[bytes, bytes]]:
    """Return the rows that lists need where closes are asked for: an entry for the next close of each.

    What is past its retention by then has no close: it is noted as closed. Stores without lists need none.
    """
    if not isinstance(store, WindowStore):
        return
    for row, raw in overlay.items(b"k", b"l"):
        windows = decode_list(raw)
        past = [one for one in windows if not one.is_closed and store.counts_ms(one) <= stream_ms - store.kept_ms]
        for one in past:
            one.is_closed = True
        if past:
            yield row, encode_list(windows)
        next_ms = next_end_ms(windows)
        if next_ms is not None:
            yield close_key(next_ms, time_of(row), key_of(row)), b""


class _Windows(Closes):
    contents = "windows"
    remedy = "give the windows a store of another name"

    def __init__(self, store: WindowStore[Any, Any]) -> None:
        self._store = store
        self.length_ms = store.windows.longest_ms
        self.idle_ms = store.windows.closes_ms(Window(0, 0), 0)
        self.output_lag_ms = store.grace_ms + self.idle_ms if store.on_close_function is not None else 0

    def _shown(self, window: Window) -> str:
        return f"the window {window.start_ms} to {window.end_ms}"


class _Aligned(_Windows):
    """Tumbling and hopping windows."""

    prefix = b"w"
    has_entries = False

    def __init__(self, store: WindowStore[Any, Any], windows: AlignedWindows) -> None:
        super().__init__(store)
        self._windows = windows

    def named(self, row: bytes) -> tuple[bytes, int]:
        return key_of(row), self._store.end_ms(row) - 1

    def take(self, state: TaskState, row: bytes, found: Found) -> str:
        progress = read_progress(self._store, state)
        raw = state.overlays[self._store.rows].get(row)
        if row <= progress.closed or raw is None:
            return ""
        write_progress(self._store, msgspec.structs.replace(progress, closed=row), state)
        if row <= former_time(progress, key_of(row))[1]:
            return ""
        window = self._windows.starting(time_of(row))
        found[:] = [(window, raw[1:])]
        return self._shown(window)


class _Listed(_Windows):
    """Sliding windows and sessions."""

    prefix = b"e"
    has_entries = True

    def all_of(self, overlay: Overlay, row: bytes) -> list[bytes]:
        """Return the entries of the list's windows whose close wasn't handled, and the entry itself."""
        _, segment, raw_key = close_parts(row)
        raw = overlay.get(list_key(segment, raw_key))
        held = [] if raw is None else decode_list(raw)
        return [row, *(close_key(one.end_ms, segment, raw_key) for one in held if not one.is_closed)]

    def named(self, row: bytes) -> tuple[bytes, int]:
        end_ms, _, raw_key = close_parts(row)
        return raw_key, end_ms

    def take(self, state: TaskState, row: bytes, found: Found) -> str:
        store, overlay, what = self._store, state.overlays[self._store.rows], ""
        overlay.delete(row)
        end_ms, segment, raw_key = close_parts(row)
        list_row = list_key(segment, raw_key)
        raw = overlay.get(list_row)
        held = [] if raw is None else decode_list(raw)
        for one in held:
            if not one.is_closed and one.end_ms == end_ms:
                one.is_closed = True
                found[:] = [(one.window, one.value)]
                what = self._shown(one.window)
        if found:
            left = [one for one in held if not (one.is_closed and one.is_merged)]
            if left:
                store.rows.write_raw(state, list_row, encode_list(left))
            else:
                overlay.delete(list_row)
        next_ms = next_end_ms(held)
        if next_ms is not None:
            following = close_key(next_ms, segment, raw_key)
            store.rows.write_raw(state, following, b"")
            state.windows.expect(store, following)
        return what


class _Unmatched(Closes):
    """Records of a join that matched none."""

    prefix = UNMATCHED
    has_entries = True
    idle_ms = 1
    contents = "records"
    remedy = "give the join another name="

    def __init__(self, store: JoinStore) -> None:
        self._store = store
        self.length_ms = max(store.spans_ms)
        self.output_lag_ms = store.grace_ms + self.idle_ms + self.length_ms

    def named(self, row: bytes) -> tuple[bytes, int]:
        return unmatched_parts(row).raw_key, self._store.time_of(row)

    def take(self, state: TaskState, row: bytes, found: Found) -> str:
        overlay = state.overlays[self._store.rows]
        kept = self._store.kept_at(overlay, row)
        if not overlay.delete(row) or kept is None:
            return ""
        found[:] = [(unmatched_parts(row).side, kept.value)]
        return f"the record of {kept.at_ms} without a match"


class _Ended(_Unmatched):
    """Records of a join of one with many that have come to their end. A `one` is handed out with that time."""

    def __init__(self, store: OneStore) -> None:
        super().__init__(store)
        self._ones = store
        self.output_lag_ms = store.grace_ms + self.idle_ms

    def take(self, state: TaskState, row: bytes, found: Found) -> str:
        found[:] = self._ones.close(state, row)
        if not found:
            return ""
        return "a record without a match" if found[0][0] == LEFT else "records that waited for a match"


class _Changed(Closes):
    """Windows that changed in an interval that is over."""

    prefix = b"e"
    has_entries = True
    # At one time, what a window was is said before it closes.
    length_ms = 0
    idle_ms = 0
    output_lag_ms = 0
    contents = "changes"
    remedy = "give the windows a store of another name"

    def __init__(self, store: ChangeStore) -> None:
        self._store = store

    def named(self, row: bytes) -> tuple[bytes, int]:
        return close_parts(row)[2], time_of(row) - 1

    def take(self, state: TaskState, row: bytes, found: Found) -> str:
        held = self._store.take(state, row)
        if held is None:
            return ""
        found[:] = [(held.window, held.value)]
        return f"the interval in which the window {held.start_ms} to {held.end_ms} changed"
