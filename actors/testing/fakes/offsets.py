"""A consumer group's committed offsets. `tests/sim` has a group with members.

Of several commits of one offset the one that was written last counts, a transactional one from when it was written, not
from when its transaction ended.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.ports import Committed, TopicPartition


class GroupOffsets:
    """The offsets of a group with one member that never leaves.

    Attributes:
        offsets: the committed offsets, pending ones not.
    """

    def __init__(self, name: str, *, appended: Callable[[], int]) -> None:
        self.name = name
        self.offsets: dict[TopicPartition, Committed] = {}
        self._next_append = appended
        self._appended: dict[TopicPartition, int] = {}

    def heartbeat(self, member_id: str, generation: int) -> None:
        """Keep the session alive."""

    def check_member(self, member_id: str, generation: int) -> None:
        """Refuse a member that isn't one, or is of another generation: this one always is."""

    def knows(self, member_id: str) -> bool:
        """Return whether this is a member, in whatever generation."""
        return True

    def transactional_ids(self) -> set[str | None]:
        """Return those of the members; None is in it for one that doesn't say so, or while the group rebalances."""
        return {None}

    def committed(self, source: TopicPartition) -> Committed | None:
        """Return the committed offset; one of a transaction without its marker is not."""
        return self.offsets.get(source)

    def complete(self, source: TopicPartition, committed: Committed, appended: int) -> None:
        """Let an offset of a committed transaction count, unless a later one was written meanwhile."""
        if appended > self._appended.get(source, 0):
            self._appended[source] = appended
            self.offsets[source] = committed
