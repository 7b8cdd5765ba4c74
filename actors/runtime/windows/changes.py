"""The windows of a window store that changed, each until the interval of stream time is over in which it did.

    "e" end start key        the window that begins then as it was changed last in the interval that ends then: a list
                             of one, as of `actors._core.windows.rows`
    "m"                      as of windows

A change is one write for each window, and no read: all changes of a window in one interval have the same row. When
stream time has come to the interval's end, the row is handed out and removed in one commit, as a window that closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from actors._core.windows.kinds import Window
from actors._core.windows.rows import Held, close_key, close_parts, decode_list, encode_list, time_of
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from stores._core.windows import KEY_AT, decode_progress


class ChangeStore:
    """The changed windows of a window store. Times are Unix milliseconds.

    Attributes:
        name: the store's name.
        rows: the store of its rows.
        every_ms: how long an interval is; intervals begin at multiples of it.
        retention_ms, kept_ms, decode_key, result: as of the window store.
        on_close_function: called as `(ctx, window, value)` for each window that changed, when the interval is over.
    """

    grace_ms = 0

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

    def __repr__(self) -> str:
        return f"<ChangeStore {self.name}: every {timedelta(milliseconds=self.every_ms)}>"

    @property
    def layout(self) -> str:
        """What the rows are made for: any interval, since each row says when its own ends."""
        return "windows that changed"

    def note(self, state: TaskState, raw_key: bytes, window: Window, raw: bytes) -> None:
        """Note a window's new value, encoded."""
        row = self._row(state, raw_key, window)
        self.rows.write_raw(state, row, encode_list([Held(*window, raw, window.end_ms)]))
        state.windows.expect(self, row)

    def forget(self, state: TaskState, raw_key: bytes, window: Window) -> None:
        """Forget what was noted in this interval of a window that isn't there any more."""
        state.overlays[self.rows].delete(self._row(state, raw_key, window))

    def _row(self, state: TaskState, raw_key: bytes, window: Window) -> bytes:
        # In a close, the interval that ends at its stream time is over.
        now_ms = state.windows.stream_ms + state.windows.is_closing
        end_ms = (now_ms // self.every_ms + 1) * self.every_ms
        return close_key(end_ms, window.start_ms, raw_key)

    # --- what closes -----------------------------------------------------------------------------------------------

    def is_late(self, *_: Any) -> bool:
        """Return True: whether a message is late is said by the window store."""
        return True

    def first_entries(self, *_: Any) -> Iterable[tuple[bytes, bytes]]:
        """Return nothing: each change has its row from the beginning."""
        return ()

    def closing_ms(self, row: bytes) -> int:
        """Return the stream time from which on a row is handed out."""
        return time_of(row)

    def expired_until(self, to_ms: int) -> bytes:
        """Return the first row behind those of intervals that end up to a time."""
        return b"" if to_ms < 0 else close_key(to_ms + 1, 0, b"")[:KEY_AT]

    def expired_ms(self, row: bytes) -> int:
        """Return the time that `expired_until` returned a row for; -1 of no row."""
        return time_of(row) - 1 if row else -1

    # --- for people ------------------------------------------------------------------------------------------------

    def shown_key(self, row: bytes) -> Any:
        """Return a row's key as people read it: (key, start of the window, end of the interval)."""
        if row[:1] != b"e":
            return ("progress",)
        end_ms, start_ms, raw_key = close_parts(row)
        return self.decode_key(raw_key), start_ms, end_ms

    def shown_value(self, raw: bytes) -> Any:
        """Return a row's value as people read it."""
        if raw[:1] == b"l":
            return [self.result(one.value) for one in decode_list(raw)]
        return {"stream_ms": decode_progress(raw).stream_ms} if raw else None
