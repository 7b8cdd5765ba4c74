"""Removes what is past its retention from the disk: on owners after commits, on standbys as they follow.

The row `m` of a window store, or of a join, says what may go (`stores._core.windows`), so a copy removes what its owner
removes. The changelog's own retention removes the records.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from actors.runtime.windows.closes import TimedStore
from stores._core.record import METADATA_BYTES
from stores._core.windows import PROGRESS_KEY, decode_progress
from stores.ports import PartitionStore

REMOVALS = 32
"""Into how many removals the windows of a retention are divided at most: each costs later reads a little."""


@dataclass(slots=True)
class Removal:
    """The removals from the disk of one partition of a store.

    Attributes:
        store: the window store, or the join.
        held: its rows.
        removed: rows before this one were; empty before the first time.
    """

    store: TimedStore
    held: PartitionStore
    removed: bytes = b""

    def remove(self, expired: bytes) -> None:
        """Remove the rows before `expired`, which is committed: the first time all, later if it is worth its while."""
        store, least_ms = self.store, max(1, self.store.retention_ms // REMOVALS)
        is_first = not self.removed
        if not expired or (not is_first and store.expired_ms(expired) - store.expired_ms(self.removed) < least_ms):
            return
        self.held.drop(self.removed or expired[:1], expired)
        self.removed = expired

    def follow(self) -> None:
        """Remove what the rows' own `m` says."""
        raw = self.held.get(PROGRESS_KEY)
        # Of a row that can't be read the owner tells.
        with suppress(ValueError):
            self.remove(b"" if raw is None else decode_progress(raw[METADATA_BYTES:]).expired)
