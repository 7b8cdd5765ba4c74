"""The windows of a window store that changed, each until the interval of stream time is over in which it did.

    "e" until end key        the window with that end as it is handed out for the interval that ends at `until`: a list
                             of one, as of `actors._core.windows.rows`
    "c" end key              the ends of the intervals for which the window waits, in order, as a list
    "m"                      as of windows

A key's sessions are told apart by their ends: one that is past its retention may begin as a later one does.

All changes of a window in one interval have the same row. When stream time has come to the interval's end, the row is
handed out and removed in one commit, as a window that closes.

A close changes windows as of the stream time at which it was due, and messages may have changed them behind it by then;
an interval may end earlier or later than the present one if intervals had another length before. So a change goes into
the window's rows of all intervals that aren't over: what is handed out last is what the window store has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from actors._core.windows.held import Held
from actors._core.windows.join_rows import shown_rest
from actors._core.windows.kinds import Window
from actors._core.windows.rows import (
    TIMES,
    changes_key,
    close_key,
    close_parts,
    decode_list,
    decode_times,
    encode_list,
    encode_times,
    key_of,
    time_of,
)
from actors.runtime.message.context import current_message
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from actors.runtime.windows.across import Feed
from stores._core.overlay import Overlay


class ChangeStore:
    """The changed windows of a window store. Times are Unix milliseconds.

    Attributes:
        name: the store's name.
        rows: the store of its rows.
        every_ms: how long an interval is; intervals begin at multiples of it.
        retention_ms, kept_ms, decode_key, result: as of the window store.
        on_close_function: called as `(ctx, window, value)` for each window that changed, when the interval is over.
        feeds: as of the window store.
    """

    grace_ms = 0
    is_part = True
    close_when_idle: timedelta | None = None

    def __init__(
        self,
        rows: Store[bytes, bytes],
        *,
        every_ms: int,
        retention_ms: int,
        decode_key: Callable[[bytes], Any],
        result: Callable[[bytes], Any],
    ) -> None:
        self.name = rows.name
        self.rows = rows
        self.every_ms = every_ms
        self.retention_ms = self.kept_ms = retention_ms
        self.decode_key = decode_key
        self.result = result
        self.on_close_function: Callable[..., Any] | None = None
        self.feeds: list[Feed] = []

    def __repr__(self) -> str:
        return f"<ChangeStore {self.name}: every {timedelta(milliseconds=self.every_ms)}>"

    @property
    def layout(self) -> str:
        """The layout of the rows: any interval, since each row says when its own ends."""
        return "windows that changed"

    def note(self, state: TaskState, raw_key: bytes, window: Window, raw: bytes) -> None:
        """Note a window's new value, encoded."""
        value, now_ms = encode_list([Held(*window, raw, window.end_ms)]), self._now_ms(state)
        until_ms = self._until_ms(now_ms)
        waiting_row = changes_key(window.end_ms, raw_key)
        waiting = self._waiting(state.overlays[self.rows], waiting_row)
        if until_ms not in waiting:
            waiting = sorted([*waiting, until_ms])
            self.rows.write_raw(state, waiting_row, encode_times(waiting))
            state.windows.expect(self, close_key(until_ms, window.end_ms, raw_key))
        rows = [close_key(waiting_ms, window.end_ms, raw_key) for waiting_ms in waiting if waiting_ms > now_ms]
        for row in rows:
            self.rows.write_raw(state, row, value)
        if state.windows.carried is not None:
            state.windows.carried.keep(state, self.rows, rows)

    def note_lists(self, state: TaskState, raw_key: bytes, gone: Iterable[Held], changed: Iterable[Held]) -> None:
        """Note the windows of a key's lists that went and changed, but not those that are there for their close."""
        for ended in gone:
            self.forget(state, raw_key, ended.window)
        for window in changed:
            if not window.is_merged:
                self.note(state, raw_key, window.window, window.value)

    def forget(self, state: TaskState, raw_key: bytes, window: Window) -> None:
        """Forget what was noted of a window that isn't there any more, but for intervals that are over."""
        overlay, now_ms = state.overlays[self.rows], self._now_ms(state)
        for until_ms in self._waiting(overlay, changes_key(window.end_ms, raw_key)):
            if until_ms > now_ms:
                self.take(state, close_key(until_ms, window.end_ms, raw_key))

    def take(self, state: TaskState, row: bytes) -> Held | None:
        """Remove the row of an interval; return the window as it was there, None if there is none."""
        overlay, (until_ms, end_ms, raw_key) = state.overlays[self.rows], close_parts(row)
        raw, waiting_row = overlay.get(row), changes_key(end_ms, raw_key)
        overlay.delete(row)
        if state.windows.carried is not None:
            state.windows.carried.forget(state, self.rows, row)
        left = [other_ms for other_ms in self._waiting(overlay, waiting_row) if other_ms != until_ms]
        if left:
            self.rows.write_raw(state, waiting_row, encode_times(left))
        else:
            overlay.delete(waiting_row)
        return None if raw is None else decode_list(raw)[0]

    def _waiting(self, overlay: Overlay, waiting_row: bytes) -> list[int]:
        raw = overlay.get(waiting_row)
        return [] if raw is None else decode_times(raw)

    def _now_ms(self, state: TaskState) -> int:
        """Return the time of a change. In a close, the interval that ends at its stream time is over.

        A message may be ahead of stream time, which follows several feeds: its change belongs to its own interval.
        """
        time, ctx = state.windows, current_message.get(None)
        return time.stream_ms + 1 if time.is_closing or ctx is None else max(time.key_ms, time.time_of(ctx))

    def _until_ms(self, now_ms: int) -> int:
        """Return the end of the interval that a time lies in."""
        return (now_ms // self.every_ms + 1) * self.every_ms

    def is_late(self, *_: Any) -> bool:
        """Return True: whether a message is late is said by the window store."""
        return True

    def closing_ms(self, row: bytes) -> int:
        """Return the stream time from which on a row is handed out."""
        return time_of(row)

    def expired_until(self, _: int) -> bytes:
        """Return b"": each row is removed when it is handed out."""
        return b""

    def expired_ms(self, _: bytes) -> int:
        """Return the time of no row."""
        return -1

    def shown_key(self, row: bytes) -> Any:
        """Return a row's key as people read it: (key, end of the window, end of the interval)."""
        if row[:1] == b"c":
            return "waits", self.decode_key(key_of(row)), time_of(row)
        if row[:1] not in (b"e", b"E"):
            return ("progress",)
        until_ms, end_ms, raw_key = close_parts(row)
        place = self.decode_key(raw_key), end_ms, until_ms
        return place if row[:1] == b"e" else ("headers", *place)

    def shown_value(self, raw: bytes) -> Any:
        """Return a row's value as people read it."""
        if raw[:1] == b"l":
            return [self.result(one.value) for one in decode_list(raw)]
        if raw[:1] == TIMES:
            return decode_times(raw)
        return shown_rest(raw)
