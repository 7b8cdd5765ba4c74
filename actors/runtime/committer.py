"""Gathers the commits of a worker's tasks: what waits when a transaction begins goes into it.

A failure of some batches concerns their tasks: the others are committed together without them. Then each one whose
content was refused is committed alone, and only what is refused alone is the task's own fault. After a transaction
whose outcome is unknown, that is ended, and each of its tasks takes over again and looks. Those that waited had sent
nothing and simply go on.

A commit belongs to the member's generation when its transaction begins, whichever generation its task was assigned in.
While a rebalance is under way the group's former generation lives until all members have joined: commits go on. Those
that are refused then wait for the assignment, and are committed in the new generation if their task stays.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial

from actors._core.logs import escaping
from actors._core.task.commit import rest_s
from actors.errors import (
    BatchesRefusedError,
    CommitRefusedError,
    FencedError,
    MigratedError,
    StaleGenerationError,
    TaskError,
)
from actors.ports import CommitBatch, CommitReceipt, Identity, Writer
from actors.runtime.cancellation import is_cancelled

logger = escaping(logging.getLogger(__name__))

NOBODY = Identity("", -1)
END_S = 15.0
"""How long a failed transaction is tried to be ended: a coordinator that died is replaced after about 10 s."""
GATHER = 16
"""A transaction of several tasks waits one part in so many of the last one's time for batches that come a bit later."""


class Membership:
    """A worker's membership of its group.

    Attributes:
        identity: of the last generation of which the worker knows what is its.
    """

    def __init__(self, identity: Identity = NOBODY) -> None:
        self.identity = identity
        self._settled = asyncio.Event()
        self._settled.set()

    def joining(self) -> None:
        """Note that the member joins again, and keeps its tasks."""
        self._settled.clear()

    def settle(self, identity: Identity | None = None) -> None:
        """Note the end of a rebalance, without an identity if the group has forgotten the member."""
        self.identity = identity or self.identity
        self._settled.set()

    async def changed(self, since: Identity) -> bool:
        """Wait for the end of a rebalance that is under way; tell whether there is another identity than `since`."""
        await self._settled.wait()
        return self.identity != since


@dataclass(slots=True)
class _Waiting:
    """A batch that is to be committed, and who waits for that: nobody if the task was cancelled."""

    log: CommitterLog
    batch: CommitBatch
    receipt: asyncio.Future[CommitReceipt]

    def is_wanted(self) -> bool:
        """Return whether it may still be committed; report it if its task has lost that right."""
        if self.log.is_over:
            self.fail(MigratedError(f"{self.batch}: the task isn't this worker's any more"))
        return not self.receipt.done()

    def fail(self, error: Exception) -> None:
        """Report an error that others may get too."""
        if not self.receipt.done():
            self.receipt.set_exception(copy.copy(error))


@dataclass(eq=False)
class Committer:
    """Commits for all tasks of a worker, one transaction at a time of about `max_bytes` at most.

    `longest_rest_s` is the most that tasks gather records between two transactions. `knows` tells whether the group has
    a member; without it only tasks end what a failed transaction left open.
    """

    writer: Writer
    max_bytes: int
    member: Membership = field(default_factory=Membership)
    longest_rest_s: float = 0.0
    knows: Callable[[str], Awaitable[bool]] | None = None
    _commit_s: float = field(default=0.0, init=False)
    _rest: asyncio.TimerHandle | None = field(default=None, init=False)
    _resting: set[Callable[[], None]] = field(default_factory=set, init=False)
    _taken: int = field(default=0, init=False)
    _waiting: deque[_Waiting] = field(default_factory=deque, init=False)
    _running: asyncio.Task[None] | None = field(default=None, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _others_turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _is_under_way: bool = field(default=False, init=False)
    _is_doubtful: bool = field(default=True, init=False)
    _was_fenced: bool = field(default=False, init=False)
    _ending: dict[str, asyncio.Future[None]] = field(default_factory=dict, init=False)
    _context: Context = field(default_factory=copy_context, init=False)

    def new_log(self) -> CommitterLog:
        """Return the writing side of a task."""
        return CommitterLog(self)

    async def fence(self) -> None:
        """Fence as `TaskLog.fence` does. Tasks that call at the same time share one."""
        async with self._turn:
            await self._end_doubt()

    async def settle(self) -> None:
        """Return when the markers of all that was committed are written."""
        async with self._turn:
            self._is_doubtful = True
            await self._end_doubt()

    async def end_transaction_of(self, transactional_id: str) -> None:
        """End the open transaction of an id; commits go on meanwhile, and simultaneous calls share one request."""
        ending = self._ending.get(transactional_id)
        if ending is None:
            ending = self._ending[transactional_id] = asyncio.ensure_future(self._end_of(transactional_id))
            ending.add_done_callback(partial(self._ended, transactional_id))
        await asyncio.shield(ending)

    def _ended(self, transactional_id: str, ending: asyncio.Future[None]) -> None:
        del self._ending[transactional_id]
        if not ending.cancelled():
            # Whoever asked may be gone.
            ending.exception()

    async def _end_of(self, transactional_id: str) -> None:
        async with self._others_turn:
            await self.writer.end_transaction_of(transactional_id)

    def is_ready(self, wake: Callable[[], None]) -> bool:
        """Return whether a commit may begin: no transaction is under way, and the rest after the last one is over.

        If not, `wake` is called when it may. All tasks that wait for that are woken at once, so they go together.
        """
        if not self._is_under_way and self._rest is None:
            return True
        self._resting.add(wake)
        return False

    def _begin_rest(self) -> None:
        self._is_under_way = False
        self._end_rest()
        seconds = rest_s(self._commit_s, self._taken, self.longest_rest_s)
        self._rest = asyncio.get_running_loop().call_later(seconds, self._rested)

    def _end_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _rested(self) -> None:
        self._rest = None
        if not self._is_under_way:
            resting, self._resting = self._resting, set()
            for wake in resting:
                wake()

    async def commit(self, log: CommitterLog, batch: CommitBatch) -> CommitReceipt:
        """Commit a batch of a task. If it is cancelled before its transaction began, nothing is sent."""
        waiting = _Waiting(log, batch, asyncio.get_running_loop().create_future())
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
        self._end_rest()
        await self.writer.close()

    async def _run(self) -> None:
        taken: list[_Waiting] = []
        try:
            # What becomes ready at about the same time goes together.
            await asyncio.sleep(self._commit_s / GATHER if self._taken > 1 else 0)
            now_s = asyncio.get_running_loop().time
            while taken := self._take():
                self._is_under_way, began_s, self._taken = True, now_s(), len(taken)
                async with self._turn:
                    await self._together(taken)
                self._commit_s = now_s() - began_s
                await self._leave_nothing_open()
            self._begin_rest()
        except Exception as error:
            # A defect: it ends the tasks that wait, and they end the worker.
            for waiting in (*taken, *self._waiting):
                if not waiting.receipt.done():
                    waiting.receipt.set_exception(error)
        finally:
            self._running = None

    def _take(self) -> list[_Waiting]:
        """Return the batches of the next transaction: those that fit, at least one."""
        taken: list[_Waiting] = []
        left: deque[_Waiting] = deque()
        size = 0
        for waiting in self._waiting:
            if not waiting.is_wanted():
                continue
            if taken and size + waiting.batch.size > self.max_bytes:
                left.append(waiting)
                continue
            taken.append(waiting)
            size += waiting.batch.size
        self._waiting = left
        return taken

    async def _together(self, taken: list[_Waiting]) -> None:
        try:
            receipts = await self._written(taken)
        except BatchesRefusedError as refusal:
            self._is_doubtful = False
            await self._apart(taken, refusal)
        except Exception as error:
            self._was_fenced = isinstance(error, FencedError)
            for waiting in taken:
                waiting.fail(error)
        except asyncio.CancelledError:
            for waiting in taken:
                waiting.receipt.cancel()
            # A client cancels its own futures when a connection dies: then the others are still to be committed.
            if is_cancelled():
                raise
        else:
            self._is_doubtful = False
            for waiting, receipt in zip(taken, receipts, strict=True):
                if not waiting.receipt.done():
                    waiting.receipt.set_result(receipt)

    async def _written(self, taken: list[_Waiting]) -> Sequence[CommitReceipt]:
        """Commit what is still wanted; drop the rest from `taken`."""
        while True:
            await self._end_doubt()
            taken[:] = [waiting for waiting in taken if waiting.is_wanted()]
            if not taken:
                return []
            identity, self._is_doubtful = self.member.identity, True
            try:
                return await self.writer.write(identity, [waiting.batch for waiting in taken])
            except StaleGenerationError:
                if not await self.member.changed(identity):
                    raise

    async def _apart(self, taken: list[_Waiting], refusal: BatchesRefusedError) -> None:
        """Commit the accepted ones together, then each refused one alone: another one may have been the reason."""
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

    async def _leave_nothing_open(self) -> None:
        """End what a failed transaction left open: its tasks may be other workers' before they take over again.

        A worker that was fenced has nothing open. One that the group has forgotten leaves it to those who take over:
        another process may have its id now.
        """
        if not self._is_doubtful or self._was_fenced or self.knows is None:
            return
        try:
            async with asyncio.timeout(END_S), self._turn:
                if await self.knows(self.member.identity.member_id):
                    await self._end_doubt()
        except (TaskError, TimeoutError) as error:
            logger.info("what the last commit left open isn't ended yet: %s", error or f"no answer in {END_S:g} s")
        except asyncio.CancelledError:
            # As in `_together`.
            if is_cancelled():
                raise

    async def _end_doubt(self) -> None:
        if self._is_doubtful:
            await self.writer.fence()
            self._is_doubtful = False


class CommitterLog:
    """`actors.ports.TaskLog` of one task over its worker's committer."""

    def __init__(self, committer: Committer) -> None:
        self.committer, self.is_over = committer, False

    async def fence(self) -> None:
        """Fence the worker's producer, for all tasks that ask at the time."""
        await self.committer.fence()

    async def end_transaction_of(self, transactional_id: str) -> None:
        """End what somebody else's id left open."""
        await self.committer.end_transaction_of(transactional_id)

    def is_ready(self, wake: Callable[[], None]) -> bool:
        """Return whether a commit may begin; if not, `wake` is called when it may."""
        return self.committer.is_ready(wake)

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        """Commit a batch together with those of other tasks."""
        return await self.committer.commit(self, batch)

    def end(self) -> None:
        """End the task's part in commits."""
        self.is_over = True

    async def close(self) -> None:
        """Do nothing: the committer is the worker's."""


class OnlyLog(CommitterLog):
    """The log of the only one that commits with a committer, which is closed with it."""

    async def close(self) -> None:
        """Close the committer."""
        await self.committer.close()
