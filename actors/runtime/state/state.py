"""A store that its task has brought to the end of its changelog, and how commits go into it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from actors.errors import LogWentBackError, OutcomeUnknownError
from actors.runtime.threads import finish_in_thread
from stores._core.record import Position
from stores.ports import PartitionStore

INLINE_WRITES = 10_000
"""How many writes go to the store on the event loop. rocksdict holds the interpreter's lock while it writes (0.6 µs a
write), so a thread frees nobody; it only keeps the loop's timers honest when a batch is large."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A store at the end of its changelog; `position.source_offset` is what the state itself knows of the input.

    `is_ahead` says that it isn't there: it has records that the changelog lost.
    """

    store: PartitionStore
    position: Position
    is_empty: bool
    is_ahead: bool = False

    async def write(
        self,
        writes: Iterable[tuple[bytes, bytes | None]],
        count: int,
        *,
        source_offset: int,
        changelog_offset: int | None,
        wall_time_ms: int,
        epoch: int,
    ) -> None:
        """Write what a transaction made durable, `count` writes. `changelog_offset` None means: it has no new record.

        `wall_time_ms` is from before the transaction: its success proves that the task was the owner then.

        Raises:
            LogWentBackError: the new records don't lie behind what the store has; nothing is written.
        """
        before = self.store.position()
        if before is None:
            raise OutcomeUnknownError("the store lost its position")
        if changelog_offset is not None and changelog_offset - count < before.changelog_offset:
            raise LogWentBackError(
                f"a commit's records begin at offset {changelog_offset - count}, before the checkpoint at "
                f"{before.changelog_offset}"
            )
        position = Position(
            source_offset=source_offset,
            changelog_offset=before.changelog_offset if changelog_offset is None else changelog_offset,
            # Not the later of both: a time from a clock that was ahead would hide how old the store is.
            wall_time_ms=wall_time_ms,
            epoch=epoch,
            changelog_id=before.changelog_id,
        )
        if count <= INLINE_WRITES:
            self.store.apply(writes, position)
        else:
            await finish_in_thread(self.store.apply, writes, position)
