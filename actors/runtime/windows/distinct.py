"""The different values of windows, which `aggregates.count_distinct()` counts: a row for each, below the window's key.

They are the windows of a store of their own, with the kind and retention of the store that counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors._core.aggregates import identity
from actors._core.windows.foreign_keys import within
from actors._core.windows.kinds import Window
from actors._core.windows.rows import VALUE, aligned_key
from actors.runtime.message.context import current_message
from actors.runtime.message.task_state import TaskState
from actors.runtime.windows.store import Changed, WindowStore
from stores._core.overlay import after_prefix


@dataclass(frozen=True, slots=True)
class DistinctValues:
    """The values in `store`."""

    store: WindowStore[bytes, bytes]

    def add(self, counts: WindowStore[Any, Any], key: Any, value: Any) -> Changed[int]:
        """Count a value in each open window of the message that doesn't have it; see `WindowStore.add`."""
        overlay, state, raw_key = counts._place(key)
        time, ctx = state.windows, current_message.get()
        changed: Changed[int] = []
        for window in counts.windows.holding(time.time_of(ctx)):  # type: ignore[union-attr]

            def count(raw: bytes | None, window: Window = window) -> int:
                former: int = 0 if raw is None else counts.decode_value(raw)
                return former + self.take(state, raw_key, window, value)

            changed += counts._into_aligned((window,), overlay, state, raw_key, count)
        if not changed:
            time.count_late_for(counts, ctx)
        return changed

    def take(self, state: TaskState, raw_key: bytes, window: Window, value: Any) -> bool:
        """Keep a value of a window; return whether it is new there."""
        row = aligned_key(window.start_ms, within(raw_key, identity(value)))
        if state.overlays[self.store.rows].get(row) is not None:
            return False
        self.store.rows.write_raw(state, row, VALUE)
        return True

    def forget(self, state: TaskState, raw_key: bytes, window: Window) -> None:
        """Remove the values of a window."""
        overlay, first = state.overlays[self.store.rows], aligned_key(window.start_ms, within(raw_key, b""))
        for row, _ in list(overlay.items(first, after_prefix(first))):
            overlay.delete(row)
