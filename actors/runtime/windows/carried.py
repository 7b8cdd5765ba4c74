"""Headers for closes, see `App(propagate_headers=…)`: those of the message that changed a window last.

    "W" start key            beside the row "w" of an aligned window
    "E" end segment key      for the window of a list that ends then, or beside the row "e" of a window that changed

A value is "h" and pairs of name and bytes, in MessagePack. Of a record of a join without a match it is in the row "u".
The rows are removed with the close, or at a takeover by a program that keeps none for that store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from actors._core.windows.held import Held
from actors._core.windows.join_rows import UNMATCHED, decode_headers, encode_headers
from actors._core.windows.rows import close_key
from actors.runtime.message.context import Context
from actors.runtime.message.outputs import RECORD_OVERHEAD_BYTES
from actors.runtime.message.task_state import TaskState


class CarriedHeaders:
    """Keeps the headers that `passing`, a `Propagation`, passes on. A `store` has the rows."""

    def __init__(self, passing: Any) -> None:
        self._passing = passing

    def value(self, state: TaskState, store: Any, row: bytes) -> bytes:
        """Return the headers that the message passes on, encoded; b"" for none, or too many for a row."""
        raw = encode_headers(self._passing.headers())
        return raw if len(row) + len(raw) + RECORD_OVERHEAD_BYTES <= state.max_record_bytes[store.name] else b""

    def keep(self, state: TaskState, store: Any, rows: Iterable[bytes]) -> None:
        """Keep the headers of the message for closes, in place of an earlier message's."""
        for row in rows:
            raw = self.value(state, store, row)
            if raw:
                store.write_raw(state, _place(row), raw)
            else:
                self.forget(state, store, row)

    def keep_of_lists(
        self, state: TaskState, windows: Any, raw_key: bytes, gone: Iterable[Held], changed: Iterable[Held]
    ) -> None:
        """Keep the headers for windows of lists that changed. A session that waits for its close has its own."""
        due = {one.end_ms for one in changed if one.is_merged}
        for ended in gone:
            if ended.end_ms not in due:
                self.forget(state, windows.rows, close_key(ended.end_ms, windows.segment_of(ended), raw_key))
        new = (window for window in changed if not window.is_merged)
        self.keep(state, windows.rows, (close_key(it.end_ms, windows.segment_of(it), raw_key) for it in new))

    def forget(self, state: TaskState, store: Any, row: bytes) -> None:
        """Remove the headers for a close."""
        state.overlays[store].delete(_place(row))

    def of_close(self, state: TaskState, store: Any, row: bytes) -> list[tuple[str, bytes]]:
        """Return the headers for a close; their row is removed."""
        overlay, place = state.overlays[store], _place(row)
        raw = overlay.get(place)
        if place != row:
            overlay.delete(place)
        return decode_headers(raw or b"")

    def passed_on(self, call: Callable[[Context], Awaitable[None]]) -> Callable[[Context], Awaitable[None]]:
        """Return the call of a close, whose outputs have its headers."""
        handler = self._passing.wrapped(lambda ctx, _: call(ctx))
        return lambda ctx: handler(ctx, None)


def remove_kept(state: TaskState, store: Any) -> None:
    """Remove the headers for all closes: nothing replaces them, and they would be an earlier message's later."""
    overlay = state.overlays[store]
    for row in [row for row, _ in overlay.items(b"E", b"X")]:
        overlay.delete(row)
    state.scope.release()


def _place(row: bytes) -> bytes:
    """Return the row of the headers for the close of a row."""
    return row if row[:1] == UNMATCHED else row[:1].upper() + row[1:]
