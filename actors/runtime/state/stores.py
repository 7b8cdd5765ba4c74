"""The worker's open stores.

A store stays open when its partition goes elsewhere: the partition may come back, and all that a kept store saves is
reading the disk. It takes part in the takeover like one that was just opened.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from actors._core.logs import escaping
from actors.errors import LogWentBackError, OutcomeUnknownError
from actors.runtime.threads import finish_in_thread
from stores._core.overlay import Writes, with_metadata
from stores._core.record import Position
from stores.errors import StoreCorruptedError, StoreError
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

INLINE_WRITES = 10_000
"""How many writes go to the store on the event loop. rocksdict holds the interpreter's lock while it writes (0.6 µs a
write), so a thread frees nobody; it only keeps the loop's timers honest when a batch is large."""


class StoreCache:
    """Opens each store once. `open_store` and `delete_store` block; they run off the event loop."""

    def __init__(
        self, open_store: Callable[[str, int], PartitionStore], delete_store: Callable[[str, int], None]
    ) -> None:
        self._open_store = open_store
        self._delete_store = delete_store
        self._stores: dict[tuple[str, int], PartitionStore] = {}

    async def open(self, store: str, partition: int) -> PartitionStore:
        """Return the store of a partition, opened once and kept open. A damaged one is deleted and opened again."""
        held = self._stores.get((store, partition))
        if held is not None:
            return held
        try:
            return await finish_in_thread(self._open_and_keep, store, partition)
        except StoreCorruptedError as error:
            logger.error(
                "store %s, partition %d is deleted, to be restored from its changelog: %s",
                store,
                partition,
                error.cause,
            )
            await self.discard(store, partition)
            return await finish_in_thread(self._open_and_keep, store, partition)

    def _open_and_keep(self, store: str, partition: int) -> PartitionStore:
        """Open and remember in one step: a caller cancelled in between would leave a store that nobody closes."""
        opened = self._stores[store, partition] = self._open_store(store, partition)
        return opened

    async def reopen(self, store: str, partition: int) -> None:
        """Close a store whose last write failed, so that the next `open` starts from what the disk holds."""
        held = self._stores.pop((store, partition), None)
        if held is not None:
            with contextlib.suppress(StoreError):
                await finish_in_thread(held.close)

    async def discard(self, store: str, partition: int) -> None:
        """Close a store and delete its files: it is damaged, and the changelog has all of it."""
        await self.reopen(store, partition)
        await finish_in_thread(self._delete_store, store, partition)

    async def repair(self, store: str, partition: int, error: Exception) -> None:
        """Close a store after `error`; delete its files if that says that they, and no other store's, are damaged.

        A handler may have met the damage of any database, such as a view's. One that isn't open is looked at when it is
        opened.
        """
        held = self._stores.get((store, partition))
        if not isinstance(error, StoreCorruptedError):
            await self.reopen(store, partition)
        elif held is not None and held.path == error.path:
            await self.discard(store, partition)

    def opened(self) -> Iterator[tuple[str, int, PartitionStore]]:
        """Return (store, partition, open store) of all that are open."""
        return ((store, partition, held) for (store, partition), held in list(self._stores.items()))

    def close(self) -> None:
        """Close all. May be called twice."""
        while self._stores:
            _, held = self._stores.popitem()
            held.close()


async def note_time(stores: Iterable[PartitionStore], at_ms: int) -> None:
    """Note in the stores that what they hold was the truth at that time."""
    for store in stores:
        position = store.position()
        if position is not None:
            await finish_in_thread(store.apply, [], replace(position, wall_time_ms=at_ms))


async def store_commit(
    store: PartitionStore,
    writes: Writes,
    offsets: Sequence[int],
    changelog_offset: int | None,
    at_ms: int,
    epoch: int,
    transaction: int,
) -> None:
    """Write what a transaction made durable into a store, with the store's new position.

    `offsets` are behind the last record of each input that is committed, `changelog_offset` behind the records of
    `writes`, None if there are none. `at_ms` is from before the transaction: its success proves that the task was the
    owner then. `transaction` is its number in the mark.

    Raises:
        LogWentBackError: the new records don't lie behind what the store has; nothing is written.
    """
    before = store.position()
    if before is None:
        raise OutcomeUnknownError("the store lost its position")
    if changelog_offset is None:
        changelog_offset = before.changelog_offset
    elif changelog_offset - len(writes) < before.changelog_offset:
        raise LogWentBackError(
            f"a commit's records begin at offset {changelog_offset - len(writes)}, before the checkpoint at "
            f"{before.changelog_offset}"
        )
    # Not the later of both times: one from a clock that was ahead would hide how old the store is.
    position = Position(
        offsets[0], changelog_offset, at_ms, epoch, before.changelog_id, tuple(offsets[1:]), transaction
    )
    rows = ((key, with_metadata(entry)) for key, entry in writes.items())
    if len(writes) <= INLINE_WRITES:
        store.apply(rows, position)
    else:
        await finish_in_thread(store.apply, rows, position)
