"""A store that follows a log, as standbys and views do; they differ in what they do when it can't go on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from actors._core.task.takeover import Retention
from stores._core.record import Position
from stores.ports import PartitionStore


@dataclass(slots=True, kw_only=True)
class FollowedStore:
    """A prefix of a log's effects.

    Attributes:
        store: the content.
        position: the store's. Its wall time is when the store last had all that the log held.
        mark: when a look at the log's end began, and the end that it found; None when there is nothing to reach.
    """

    store: PartitionStore
    position: Position
    mark: tuple[int, int] | None = None

    def expect(self, asked_ms: int, end: int) -> None:
        """Note the log's end, asked for at `asked_ms`. An older mark is reached first: only then a new one helps."""
        self.mark = self.mark or (asked_ms, end)

    def timed(self, position: Position) -> Position:
        """Return a position that is going to be the store's, with the time of the mark if it reaches that."""
        if self.mark is None or position.changelog_offset < self.mark[1]:
            return position
        (asked_ms, _), self.mark = self.mark, None
        return replace(position, wall_time_ms=asked_ms)

    def is_too_old(self, now_ms: int, kept: Retention) -> bool:
        """Tell whether deletes may have escaped the store, so that it must not be followed on."""
        return now_ms - self.position.wall_time_ms >= kept.delete_retention_ms - kept.margin_ms
