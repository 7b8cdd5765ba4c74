"""Gathers the commits of a worker's tasks: what waits when a transaction begins goes into it.

A failure of some batches concerns their tasks: the others are committed together without them. Then each one whose
content was refused is committed alone, and only what is refused alone is the task's own fault. After a transaction
whose outcome isn't known the writer is fenced, and each of its tasks takes over again and looks. Those that waited had
sent nothing and simply go on.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from actors.errors import BatchesRefusedError, CommitRefusedError
from actors.ports import CommitBatch, CommitReceipt, Identity, Writer


@dataclass(slots=True)
class _Waiting:
    """A batch that is to be committed, and who waits for that: nobody if the task was cancelled."""

    identity: Identity
    batch: CommitBatch
    receipt: asyncio.Future[CommitReceipt]

    def fail(self, error: Exception) -> None:
        """Report an error that others may get too."""
        if not self.receipt.done():
            self.receipt.set_exception(copy.copy(error))


@dataclass(eq=False)
class Committer:
    """Commits for all tasks of a worker, one transaction at a time of about `max_bytes` at most."""

    writer: Writer
    max_bytes: int
    _waiting: deque[_Waiting] = field(default_factory=deque, init=False)
    _running: asyncio.Task[None] | None = field(default=None, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _is_doubtful: bool = field(default=True, init=False)
    _context: Context = field(default_factory=copy_context, init=False)

    def log_of(self, identity: Identity) -> CommitterLog:
        """Return the writing side of a task that was assigned to this member in this generation."""
        return CommitterLog(self, identity)

    async def fence(self) -> None:
        """See `actors.ports.TaskLog.fence`. Tasks that call at the same time share one."""
        async with self._turn:
            await self._end_doubt()

    async def end_transaction_of(self, transactional_id: str) -> None:
        """See `actors.ports.TaskLog.end_transaction_of`."""
        async with self._turn:
            await self.writer.end_transaction_of(transactional_id)

    async def commit(self, identity: Identity, batch: CommitBatch) -> CommitReceipt:
        """See `actors.ports.TaskLog.commit`. If it is cancelled before its transaction began, nothing is sent."""
        waiting = _Waiting(identity, batch, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._running is None:
            # Not in the context of the task that happens to be first.
            self._running = asyncio.create_task(self._run(), name="committer", context=self._context)
        return await waiting.receipt

    async def close(self) -> None:
        """End what runs. May be called twice."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        await self.writer.close()

    async def _run(self) -> None:
        try:
            # What becomes ready in the same turn of the loop goes together.
            await asyncio.sleep(0)
            while taken := self._take():
                async with self._turn:
                    await self._together(taken)
        finally:
            self._running = None

    def _take(self) -> list[_Waiting]:
        """Return the batches of the next transaction: those of one generation that fit, at least one."""
        taken: list[_Waiting] = []
        left: deque[_Waiting] = deque()
        size = 0
        for waiting in self._waiting:
            if waiting.receipt.done():
                continue
            is_alike = not taken or waiting.identity == taken[0].identity
            if not is_alike or (taken and size + waiting.batch.size > self.max_bytes):
                left.append(waiting)
                continue
            taken.append(waiting)
            size += waiting.batch.size
        self._waiting = left
        return taken

    async def _together(self, taken: list[_Waiting]) -> None:
        try:
            await self._end_doubt()
            self._is_doubtful = True
            receipts = await self.writer.write(taken[0].identity, [waiting.batch for waiting in taken])
        except BatchesRefusedError as refusal:
            self._is_doubtful = False
            await self._apart(taken, refusal)
        except Exception as error:
            for waiting in taken:
                waiting.fail(error)
        except asyncio.CancelledError:
            for waiting in taken:
                waiting.receipt.cancel()
            raise
        else:
            self._is_doubtful = False
            for waiting, receipt in zip(taken, receipts, strict=True):
                if not waiting.receipt.done():
                    waiting.receipt.set_result(receipt)

    async def _apart(self, taken: list[_Waiting], refusal: BatchesRefusedError) -> None:
        """Commit those that weren't refused together, and then each refused one alone: it may have had bad company."""
        alone = []
        for place, error in sorted(refusal.errors.items()):
            if len(taken) > 1 and isinstance(error, CommitRefusedError):
                alone.append(taken[place])
            else:
                taken[place].fail(error)
        others = [waiting for place, waiting in enumerate(taken) if place not in refusal.errors]
        if others:
            await self._together(others)
        for waiting in alone:
            await self._together([waiting])

    async def _end_doubt(self) -> None:
        if self._is_doubtful:
            await self.writer.fence()
            self._is_doubtful = False


@dataclass(frozen=True, slots=True)
class CommitterLog:
    """`actors.ports.TaskLog` of one task over its worker's committer."""

    committer: Committer
    identity: Identity

    async def fence(self) -> None:
        """See `actors.ports.TaskLog.fence`."""
        await self.committer.fence()

    async def end_transaction_of(self, transactional_id: str) -> None:
        """See `actors.ports.TaskLog.end_transaction_of`."""
        await self.committer.end_transaction_of(transactional_id)

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        """See `actors.ports.TaskLog.commit`."""
        return await self.committer.commit(self.identity, batch)

    async def close(self) -> None:
        """See `actors.ports.TaskLog.close`: the committer is the worker's."""
