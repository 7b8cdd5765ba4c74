"""What waits for a task: records, the wish that it stops, a doubt about what it knows."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain

from actors.ports import InputRecord


class Inbox:
    """Filled by the worker and by what runs beside the task, emptied by the task.

    Attributes:
        queued: how many records wait.
        stopping: the task is to commit what it has handled and to end.
        hurries: what runs isn't waited for any more.
        doubt: why the task has to take over again, None if it needn't.
        delivered: the offset behind the last record that was put in.
        left_at: where the source stood when the task was asked to stop: what it delivers after that is dropped.
        is_last: the worker itself stops, and may not come back soon.
    """

    def __init__(self, limit: int) -> None:
        self.queued = 0
        self.stopping = False
        self.hurries = False
        self.doubt: str | None = None
        self.delivered = 0
        self.left_at: int | None = None
        self.is_last = False
        self._limit = limit
        self._batches: deque[Sequence[InputRecord]] = deque()
        self._wake = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def is_full(self) -> bool:
        """Whether no more records should be fetched."""
        return self.queued >= self._limit

    def put(self, records: Sequence[InputRecord]) -> None:
        """Add records in offset order."""
        self._batches.append(records)
        self.delivered = records[-1].offset + 1
        self.queued += len(records)
        self._wake.set()

    def take(self) -> Sequence[InputRecord]:
        """Give the oldest batch."""
        records = self._batches.popleft()
        self.queued -= len(records)
        return records

    def records(self) -> Iterator[InputRecord]:
        """Give all that waits, and leave it there."""
        return chain.from_iterable(self._batches)

    def clear(self) -> None:
        """Drop all records: they are fetched again."""
        self._batches.clear()
        self.queued = 0

    def wake(self) -> None:
        """End a wait."""
        self._wake.set()

    async def wait(self, seconds: float | None) -> bool:
        """Wait for the next `wake`, at most so long; tell whether it came. One that came before doesn't count."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        return self._wake.is_set()
