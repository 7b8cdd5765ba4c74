"""The work of a task from one takeover to the next: messages, internal messages that come due, and commits.

What happens when the process dies, step by step:

    handling             writes and outputs are in memory only: the committed offset is before them
    commit, before end   the next fence aborts the transaction, the inputs are handled again
    commit, after it     Kafka has everything, the store lacks the last batch: the restore reads it from the changelog
    store write          one atomic batch with its position: it is there or it isn't

A task goes on handling while a commit is under way, above the writes that the commit has frozen. The next commit begins
after that one's end; if it failed, all that was handled since is dropped with it.

The store is never ahead of Kafka because it is written after the transaction's end was acknowledged, and by nobody but
the task, which waits for the end of its predecessor on the same partition first, and ends after its last commit.

Timers, results of effects and parked messages are internal messages: the commit that handles them removes them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain

from actors._core.logs import escaping
from actors._core.outside import caused
from actors._core.task.lifecycle import Event
from actors.errors import (
    CommitRefusedError,
    LogWentBackError,
    NewerVersionError,
    RecordError,
    RefusedRecordError,
    RestoreError,
)
from actors.ports import CommitBatch, InputRecord, TopicPartition
from actors.runtime.cancellation import GivenBack, is_cancelled
from actors.runtime.handlers.expiry import Sweeper
from actors.runtime.inputs.inbox import PlacedRecords, take_in_order
from actors.runtime.inputs.progress import InputProgress, Run
from actors.runtime.message.internal_messages import DueMessages
from actors.runtime.state.stores import note_time, store_commit
from actors.runtime.task.context import MessageId, TaskContext
from actors.runtime.task.handling import Handling, blame, identity
from actors.runtime.task.tools import TaskParts
from actors.runtime.timers.backlog import Backlog
from stores._core.overlay import Writes

logger = escaping(logging.getLogger(__name__))

SWEEP_AGAIN_S = 60.0
_ROUNDING_S = 0.001


class Executor(ABC):
    """How messages are handled: one after the other (`in_order`), or those of different keys at once (`by_key`)."""

    def __init__(self, processor: TaskProcessor) -> None:
        self._processor, self._inbox, self._handling = processor, processor.inbox, processor.handling

    @abstractmethod
    async def advance(self) -> bool:
        """Go on with what waits; return whether the loop begins again without a wait."""

    @abstractmethod
    async def handle_due(self, took_s: float) -> None:
        """Handle what is due between records, after records that took so long."""

    @abstractmethod
    async def let_pass(self, seconds: float) -> None:
        """Wait before a message is tried again; raise GivenBack if the task ends."""

    @property
    @abstractmethod
    def in_hand(self) -> tuple[TopicPartition, int] | None:
        """The oldest input record that was begun and isn't finished, with its offset; None if there is none."""

    @abstractmethod
    def message_in(self, running: asyncio.Task[object], *, is_loop: bool) -> MessageId | None:
        """Return the message that an asyncio task handles; `is_loop`: it is the one that runs `work`."""

    @property
    def has_waiting(self) -> bool:
        """Return whether records wait that can't be begun yet."""
        return False

    @property
    def has_room(self) -> bool:
        """Return whether what is due between records may be begun."""
        return True

    @property
    def is_working(self) -> bool:
        """Return whether something was begun that isn't handled, or waits."""
        return False

    @property
    def is_ending(self) -> bool:
        """Return whether handlers are to end."""
        return self._inbox.stopping

    def left_of(self, one: InputProgress) -> tuple[int, Iterable[InputRecord]]:
        """Return the offset of an input before which all is begun, and what was taken from the inbox behind it."""
        return one.next_offset, ()

    def hold(self, holds: bool) -> None:  # noqa: B027  nothing runs beside where one message is handled at a time
        """Begin or end a time in which nothing is put into the shared overlays."""

    def is_queued(self, key: bytes) -> bool:
        """Return whether a message of a key waits or is being handled."""
        return False

    async def finish(self) -> None:  # noqa: B027
        """Let what runs come to its end, when the task leaves."""

    async def close(self) -> None:  # noqa: B027
        """Cancel what runs. May be called twice."""


class TaskProcessor:
    """Handles the messages of a partition that was just taken over, by an executor, and commits what they led to.

    `handling` makes what sees to one message.

    Attributes:
        at: the input of the last message that was handled.
        handled: how many records were handled since the last commit began.
        oldest_s: from when the age of the next commit counts, by the partition's clock; None while that has nothing.
    """

    def __init__(
        self,
        context: TaskContext,
        parts: TaskParts,
        executor: Callable[[TaskProcessor], Executor],
        handling: Callable[..., Handling] = Handling,
    ) -> None:
        spec, clock, sink = context.spec, context.clock, context.services.sink
        self.context, self.spec, self.inbox, self.clock = context, spec, context.inbox, clock
        self.inputs, self.at, self.stores, self.time = parts.inputs, parts.at, parts.stores, parts.time
        self.messages, self.scope = parts.state, parts.state.scope
        self.due = DueMessages(parts.punctuators)
        self.handled = 0
        self.oldest_s: float | None = None
        rows = ((part.store, part.overlay, part.committed) for part in parts.stores)
        self.sweeper = Sweeper.over(rows, clock, context.poison.sweep_after_s)
        self._name = ", ".join(str(one.source) for one in parts.inputs)
        self._published = {spec.changelogs[name].topic: topic for name, topic in spec.published.items()}
        self._parked = None if spec.parked is None else spec.changelogs[spec.parked.name].topic
        placed = (PlacedRecords(spec, one, context.meters, context.services.clock) for one in parts.inputs)
        self._placed = list(placed) if spec.misplaced else []
        self._under_way: asyncio.Task[None] | None = None
        self._under_way_bytes, self._is_ended, self._refreshed_s = 0, False, clock.monotonic()
        backlogs = (Backlog(one.source, one.backlog_end, lambda at: sink.position(at), clock) for one in parts.inputs)
        self.backlogs = list(backlogs)
        if parts.timers is not None:
            parts.timers.backlog_ms = self._backlog_ms
        self.executor: Executor
        self.handling = handling(
            spec,
            parts.parked,
            context.poison,
            is_ending=lambda: self.executor.is_ending,
            wait=lambda seconds: self.executor.let_pass(seconds),
            timers=parts.timers,
        )
        self.executor = executor(self)

    async def work(self) -> None:
        """Work until the task is asked to stop; what was handled is committed then.

        Raises:
            RecordError: a message can't be handled; all before it is committed.
            TaskError: the task has to take over again.
        """
        try:
            await self._work()
        except RefusedRecordError:
            # What the broker refuses is still held.
            raise
        except (GivenBack, RecordError, NewerVersionError) as error:
            # Behind an await, compiled code would raise what is handled elsewhere by then.
            failure = error
        else:
            return
        await self._commit_before(failure)
        raise failure

    async def _commit_before(self, failure: GivenBack | RecordError | NewerVersionError) -> None:
        """Commit what was handled before the work ends with an error."""
        if isinstance(failure, GivenBack):
            await self._leave()
        elif isinstance(failure, RecordError):
            await self.end_in_order()
        else:
            # A task that stands still is read: its stores have to have all that is committed.
            await self._commit_ended()

    async def _work(self) -> None:
        inbox, executor = self.inbox, self.executor
        while not inbox.stopping:
            await self.check()
            if await executor.advance():
                continue
            wait_s = self._commit_in_s()
            if wait_s <= 0.0:
                await self.begin_commit()
            elif self.is_clean and (inbox.is_paused or not executor.is_working):
                await self._idle()
            else:
                await inbox.wait(min(wait_s, self._due_in_s()))
        await self._leave()

    async def stay_paused(self) -> None:
        """Commit what was handled, and nothing else until the pause is over: queries and checkpoints go on."""
        await self.commit()
        while self.inbox.is_paused and not self.inbox.stopping:
            await self.check()
            if not await self.inbox.wait(self._refresh_in_s()):
                await self._refresh_checkpoints()

    async def _leave(self) -> None:
        """Commit what was handled, and how far the input is known to be finished.

        Markers and aborted transactions behind the last record are passed: when retention has removed them, an offset
        before them would look like input that was lost. The registry keeps the offset for longer than the group does.
        """
        await self.executor.finish()
        for one, queue in zip(self.inputs, self.inbox.queues, strict=True):
            if queue.left_at is not None and queue.left_at > one.next_offset >= queue.delivered:
                one.skip_to(queue.left_at)
        owner = self.context.last_owner(self.inputs)
        if owner is not None:
            self.messages.outputs.append(self.context.services.encode_owner(owner))
        await self.end_in_order()

    async def end_in_order(self) -> None:
        """Commit what was handled, then end what runs beside and commit what came of it, if anything did."""
        self._is_ended = True
        await self.commit()
        self.scope.source_offset = self.reached - 1
        await self.due.leave()
        await self.commit()

    async def close(self) -> None:
        """Drop what isn't committed, and end what runs beside. May be called twice."""
        await self.executor.close()
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
        self.scope.undo.clear()
        for part in self.stores:
            part.overlay.discard()
        self.messages.outputs.clear()
        self.messages.output_bytes = 0
        await self.due.close()

    @property
    def is_clean(self) -> bool:
        """Return whether nothing is left to commit but what is under way."""
        if self.time is not None and self.time.is_dirty:
            return False
        for one in self.inputs:
            if one.next_offset > one.handed_in_offset:
                return False
        return not self.messages.outputs and not any(part.overlay.writes for part in self.stores)

    @property
    def held_bytes(self) -> int:
        """About how much is held that isn't committed."""
        return self._under_way_bytes + self._new_bytes

    @property
    def _new_bytes(self) -> int:
        return self.messages.output_bytes + sum(part.overlay.bytes_held for part in self.stores)

    def message_in(self, running: asyncio.Task[object], *, is_loop: bool) -> MessageId | None:
        """Return the message, or the call, that an asyncio task runs; `is_loop`: it is the one that runs `work`."""
        effects = self.messages.tools.effects
        message = self.executor.message_in(running, is_loop=is_loop)
        return message if message is not None or effects is None else effects.call_in(running)

    @property
    def reached(self) -> int:
        """The offset behind the last record that was handled, in its input."""
        return self.at.reached

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is left to do now, but for a commit that may be under way."""
        return not self.executor.is_working and self.is_clean and not (self._is_ended or self.due.is_busy)

    def _backlog_ms(self) -> float:
        lowest_ms = math.inf
        for backlog, one, queue in zip(self.backlogs, self.inputs, self.inbox.queues, strict=True):
            begun, left = self.executor.left_of(one)
            lowest_ms = min(lowest_ms, backlog.lowest_ms(begun, chain(left, queue.records())))
        return lowest_ms

    def begin(self) -> None:
        """Note that something begins to be handled, which may be the oldest of the next commit."""
        self.pass_time()
        if self.oldest_s is None or self.is_clean:
            self.oldest_s = self.clock.monotonic()

    async def check(self) -> None:
        """Raise what a commit failed with, or why the task has to take over again."""
        if self._under_way is not None and self._under_way.done():
            await self._commit_ended()
        if self.time is not None:
            self.time.follow()
        doubt, self.inbox.doubt = self.inbox.doubt, None
        if doubt is not None:
            raise RestoreError(doubt)

    def runs(self) -> Iterable[Run]:
        """Take the records that come next."""
        return take_in_order(self.inbox, self.inputs, self._placed, self.spec.turns)

    def _commit_in_s(self) -> float:
        """Return in how many seconds a commit is due: where records wait by age and size, else after the rest."""
        if self.is_clean:
            return math.inf
        if self.is_large():
            return 0.0
        if self.executor.has_waiting:
            return self.commit_at_s(now_s := self.clock.monotonic()) - now_s
        return 0.0 if self._under_way is None and self._is_ready else math.inf

    async def _idle(self) -> None:
        if await self.inbox.wait(min(self._refresh_in_s(), self._due_in_s())):
            # What runs beside wakes a task too.
            await self.punctuate()
        elif not await self.punctuate() and self._refresh_in_s() <= _ROUNDING_S:
            await self._refresh_checkpoints()

    def _refresh_in_s(self) -> float:
        return self._refreshed_s + self.context.settings.checkpoint_refresh_s - self.clock.monotonic()

    def _due_in_s(self) -> float:
        if self.inbox.is_paused:
            return math.inf
        wait_s = self.inbox.wait_s
        if self.sweeper is not None:
            wait_s = min(wait_s, self.sweeper.wait_s())
        if self.may_take:
            wait_s = min(wait_s, self.due.wait_s())
        return self.clock.rest_s(wait_s)

    @property
    def may_take(self) -> bool:
        """Return whether internal messages may begin: a write before the first input has no offset to come from."""
        return self.executor.has_room and self.reached > 0

    async def punctuate(self, took_s: float = 0.0) -> bool:
        """Do some of what is due, after records that took so long; tell whether anything was due."""
        if self.inbox.is_paused:
            return False
        was_due = self.may_take and not self.inbox.stopping and self.due.take()
        if was_due:
            await self.executor.handle_due(took_s)
        sweeper = self.sweeper
        if sweeper is not None and not sweeper.wait_s():
            was_due = True
            await self._sweep(sweeper)
        return was_due

    async def _sweep(self, sweeper: Sweeper) -> None:
        """Remove some of what has expired in a commit of its own, so that no message is blamed if it is refused."""

        def is_over() -> bool:
            # What was taken back still counts as held until the next commit, which there is only after a write.
            return self.inbox.stopping or (not self.is_clean and self.is_large())

        # The sweep may take back what it wrote.
        self.executor.hold(True)
        try:
            await self.commit()
            await sweeper.sweep(self.messages, self.reached, is_over, self.executor.is_queued)
            try:
                await self.commit()
            except CommitRefusedError:
                self.context.poison.sweep_after_s = self.clock.monotonic() + SWEEP_AGAIN_S
                text = "%s: the broker refuses what expired keys led to: they are tried again in %.0f s"
                logger.exception(text, self._name, SWEEP_AGAIN_S)
                raise
        finally:
            self.executor.hold(False)

    async def _refresh_checkpoints(self) -> None:
        """Note that the checkpoint is still the truth, so that an idle worker isn't taken for one that was away.

        Only while the group knows us: a zombie's checkpoint is not the truth. The time is from before the question.
        The committed offset moves past markers and aborted transactions, as in `_leave`.
        """
        for one, queue in zip(self.inputs, self.inbox.queues, strict=True):
            reached = self.context.services.sink.position(one.source)
            # A task may be paused in the middle of what it took, and hold records that aren't handled.
            if reached is not None and reached > one.next_offset >= queue.delivered:
                one.skip_to(reached)
        await self.commit()
        self.pass_time()
        asked_ms = self.context.services.clock.wall_ms()
        await self.context.confirm()
        await note_time([part.committed for part in self.stores], asked_ms)
        self._refreshed_s = self.clock.monotonic()

    def commit_at_s(self, now_s: float) -> float:
        """Return when what was handled is to be committed at the latest."""
        oldest_s = now_s if self.oldest_s is None else self.oldest_s
        return self.context.settings.policy.at_s(oldest_s, now_s if self._is_ready else math.inf)

    @property
    def _is_ready(self) -> bool:
        """Return whether a commit that isn't due may begin; if not, the task is woken when it may."""
        return self.context.log.is_ready(self.inbox.wake)

    def is_suspect(self, one: InputProgress, offset: int) -> bool:
        """Return whether the broker refused a commit with messages behind this offset of an input."""
        return offset < self.context.poison.careful_until.get(one.source.topic, 0)

    def pass_time(self) -> None:
        """Move the messages' time on to now."""
        self.scope.now_ms = max(self.scope.now_ms, self.clock.wall_ms())

    async def commit_if_due(self, record: InputRecord, *, is_careful: bool) -> None:
        """Commit if it is time, or if the record that was handled last is to be committed alone."""
        # Handlers may be slow: those of one batch don't all run at the time at which it began.
        self.pass_time()
        if is_careful:
            await self.commit_alone(record, self.messages.source)
        elif self.is_large() or self.commit_at_s(now_s := self.clock.monotonic()) <= now_s:
            await self.begin_commit()

    async def commit_alone(self, record: InputRecord, source: TopicPartition) -> None:
        """Commit what one record of `source` led to; if the broker refuses that again, the record is the reason."""
        try:
            await self.commit()
        except CommitRefusedError as error:
            found, is_given_up = blame(self.spec, self.context.poison, source, record, error)
            if is_given_up:
                # Its work is dropped with all that isn't committed, so it is given up when its turn comes again; where
                # keys are handled side by side, the partition stops when all before it is finished.
                raise
            await self.context.log.fence()
            raise caused(found, error) from error
        self.context.poison.poisoned.pop(identity(source, record), None)

    def is_large(self) -> bool:
        """Return whether so much is held that it has to be committed before the interval is over."""
        return self._new_bytes >= self.context.settings.policy.max_bytes

    async def commit(self) -> None:
        """Commit all that was handled, and wait for the end."""
        if not self.is_clean:
            await self.begin_commit()
        await self._commit_ended()

    async def begin_commit(self) -> None:
        """Hand in what was handled, as soon as the commit that is under way has ended."""
        await self._commit_ended()
        if self.inbox.hurries and is_cancelled():
            # A handler that was cut short and returned all the same has handled nothing: it is the next owner's.
            raise asyncio.CancelledError
        # What follows it may never leave the task clean: its age counts from here.
        self.oldest_s = self.clock.monotonic()
        self._under_way = asyncio.create_task(self._carry_out(*self._freeze()), name=f"commit of {self._name}")
        self._under_way.add_done_callback(lambda _: self.inbox.wake())

    async def _commit_ended(self) -> None:
        """Wait for the end of the commit that is under way, if there is one, and raise what it failed with."""
        under_way = self._under_way
        if under_way is None:
            return
        if not under_way.done():
            self.context.waits_for_commit = True
            try:
                await asyncio.wait([under_way])
            finally:
                self.context.waits_for_commit = False
        self._under_way = None
        under_way.result()

    def _freeze(self) -> tuple[CommitBatch, list[Writes], list[int], int]:
        """Return the batch, each store's writes, the inputs' offsets and the number of records."""
        context, messages, scope = self.context, self.messages, self.scope
        if messages.newer is not None:
            # Its handler went on as if nothing had been there.
            raise messages.newer
        if self.time is not None:
            # The commit has their offsets, and no other follows when nothing comes behind them.
            self.time.see_finished()
        # What goes with a commit comes from what is handled, not from a message that failed or waits for a retry.
        offset, scope.source_offset = scope.source_offset, self.reached - 1
        self.due.before_commit()
        scope.source_offset = offset
        if self.time is not None:
            self.time.before_commit()
        context.advance(Event.COMMIT)
        self._under_way_bytes = size = self._new_bytes
        frozen = [part.overlay.freeze() for part in self.stores]
        changelogs = {part.topic: writes for part, writes in zip(self.stores, frozen, strict=True) if writes}
        batch = context.batch(messages, self.inputs, published=self._published, writes=changelogs, size=size)
        for one in self.inputs:
            one.handed_in_offset = batch.offsets[one.source].offset
        handled, self.handled = self.handled, 0
        return batch, frozen, [one.completed.reached for one in self.inputs], handled

    async def _carry_out(self, batch: CommitBatch, frozen: list[Writes], offsets: list[int], handled: int) -> None:
        """Commit a batch: to Kafka, then to the stores."""
        context, clock = self.context, self.clock
        began_ms, began_s = context.services.clock.wall_ms(), clock.monotonic()
        receipt = await context.log.commit(batch)
        context.is_storing = True
        for part, writes in zip(self.stores, frozen, strict=True):
            end = receipt.changelog_offsets.get(part.topic)
            try:
                await store_commit(part.committed, writes, offsets, end, began_ms, context.epoch, context.transaction)
            except LogWentBackError as error:
                context.poison.went_back[part.topic] = str(error)
                raise
            part.overlay.settle()
        for one in self.inputs:
            one.committed_offset = batch.offsets[one.source].offset
        context.failures, self._under_way_bytes = 0, 0
        seconds = clock.monotonic() - began_s
        context.meters.committed(batch, records=handled, seconds=seconds, at_ms=began_ms, parked=self._parked)
        context.advance(Event.COMMITTED)
        self.due.committed()
