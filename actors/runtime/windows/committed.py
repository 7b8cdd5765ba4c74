"""Reads a key's windows from committed rows: for queries, commands and tests, beside the task that writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actors._core.windows.kinds import Session, Window
from actors._core.windows.rows import PROGRESS_KEY, Progress, decode_progress
from actors.runtime.windows.store import WindowStore

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
    """Stream time of a partition as it is committed: see `actors.runtime.windows.store.ReadTime`."""

    stream_ms: int

    def visible_ms(self, store: WindowStore[Any, Any]) -> int:
        """Return up to which start (sessions: end) windows are past their retention."""
        return self.stream_ms - store.retention_ms


def read_windows(
    store: WindowStore[Any, Any], get: Callable[[bytes], bytes | None], raw_key: bytes, from_ms: int, to_ms: int
) -> CommittedWindows:
    """Return the windows of a key that begin in a span of time, both bounds included, or the first of them.

    Args:
        store: the store.
        get: gives the committed value of a row without its metadata, None where it isn't there.
        raw_key: the encoded key.
        from_ms: Unix milliseconds.
        to_ms: likewise.
    """
    raw = get(PROGRESS_KEY)
    time = CommittedTime((Progress() if raw is None else decode_progress(raw)).stream_ms)
    next_ms = None
    if not isinstance(store.windows, Session):
        # Sessions have few places, whatever the retention; no window of others begins later than that.
        first_ms, last_ms = max(0, from_ms, time.visible_ms(store) + 1), min(to_ms, time.stream_ms + 1)
        next_ms = store.behind(first_ms, last_ms, MAX_PLACES)
    through_ms = to_ms if next_ms is None else next_ms - 1
    return CommittedWindows(store.windows_between(get, raw_key, from_ms, through_ms, time), next_ms, time.stream_ms)
