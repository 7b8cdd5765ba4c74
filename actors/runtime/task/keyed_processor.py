"""A processor whose messages of different keys are handled side by side: see `actors.runtime.task.key_executor`."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Sequence
from itertools import chain

from actors.errors import RecordError
from actors.ports import CommitBatch, InputRecord, TopicPartition
from actors.runtime.cancellation import GivenBack
from actors.runtime.commands import is_command
from actors.runtime.handlers.expiry import Sweeper
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.state.restore import Restored
from actors.runtime.task.context import MessageId, TaskContext
from actors.runtime.task.key_executor import KeyExecutor
from actors.runtime.task.processor import TaskProcessor
from stores._core.overlay import Writes

PAUSED_LOOK_S = 0.5
"""How often a message that is to be tried again looks whether a pause is over."""


class KeyedProcessor(TaskProcessor):
    """Handles up to `concurrency` messages at a time."""

    def __init__(self, context: TaskContext, stores: Sequence[Restored], inputs: Sequence[InputProgress]) -> None:
        self._ending = asyncio.Event()
        super().__init__(context, stores, inputs)
        # A hook that is called outside of the executor has no more rights than a message inside.
        self._messages.on_wait = lambda _: None
        self._executor = KeyExecutor(
            self._messages,
            self._handling,
            limit=context.spec.concurrency,
            wake=context.inbox.wake,
            merged=self._merged,
        )
        self._pending: deque[tuple[InputProgress, InputRecord]] = deque()
        self._admitted = [one.next_offset for one in inputs]
        self._was_clean = True
        self._holds = False

    async def _work(self) -> None:
        while not self._inbox.stopping:
            await self._check()
            self._note_time()
            # What was admitted before a pause waits in the executor.
            self._executor.is_paused = is_paused = self._inbox.is_paused
            if not is_paused:
                self._admit()
            self._executor.start()
            if await self._look_at_what_is_done():
                # What is due may go on without a pause of its own.
                await self._clock.sleep(0)
                continue
            wait_s = self._commit_in_s()
            if wait_s <= 0.0:
                await self._begin_commit()
            elif (self.is_quiet and not self._pending and not self._inbox) or (is_paused and self.is_clean):
                await self._idle()
            else:
                await self._inbox.wait(min(wait_s, self._due_in_s()))
        await self._leave()

    async def close(self) -> None:
        """See `TaskProcessor.close`."""
        self._ending.set()
        await self._executor.close()
        await super().close()

    @property
    def is_quiet(self) -> bool:
        """See `TaskProcessor.is_quiet`."""
        return not self._executor and super().is_quiet

    def _is_busy(self, key: bytes) -> bool:
        return self._executor.is_busy(key)

    def _is_ending(self) -> bool:
        return self._inbox.stopping or self._ending.is_set()

    @property
    def _is_careful(self) -> bool:
        """Whether messages are merged and committed one by one, because the broker refused a commit."""
        poison = self._poison
        until = poison.careful_until
        is_suspect = any(one.completed.next_offset < until.get(one.source.topic, 0) for one in self.inputs)
        return is_suspect or self._clock.monotonic() < poison.careful_internal_s

    def _backlog_ms(self) -> float:
        # What is admitted is in front of the timers of its key, also while it waits for one of another key.
        lowest_ms = float("inf")
        parts = zip(self.backlogs, self.inputs, self._inbox.queues, strict=True)
        for backlog, one, queue in parts:
            waiting = chain((record for of, record in self._pending if of is one), queue.records())
            lowest_ms = min(lowest_ms, backlog.lowest_ms(self._admitted[one.index], waiting))
        return lowest_ms

    def _admit(self) -> None:
        executor = self._executor
        while self._pending or self._inbox:
            if not self._pending:
                self._pending.extend((one, record) for one, records in self._runs() for record in records)
            while self._pending:
                one, record = self._pending[0]
                completed, index = one.completed, one.index
                if record.offset < self._admitted[index]:
                    self._pending.popleft()
                    continue
                if not (executor.has_room and completed.may_begin(record.offset)):
                    return
                self._pending.popleft()
                self._admitted[index] = record.offset + 1
                if completed.begin(record.offset):
                    executor.admit(one, record)

    async def _look_at_what_is_done(self) -> bool:
        """See to what the executor has merged, and to what is due; tell whether the loop has to begin anew.

        Raises:
            RecordError: a message can't be handled, and all before it is committed.
        """
        if await self._take_care():
            # What came during a commit has woken nobody.
            return True
        self._sync()
        is_clean, was_clean = self.is_clean, self._was_clean
        if was_clean and not is_clean:
            self._oldest_s = self._clock.monotonic()
        self._was_clean = is_clean
        failure = self._executor.failure
        if failure is None:
            return await self._punctuate()
        if isinstance(failure, RecordError):
            failure.is_passed = True
            await self._commit()
        raise failure

    async def _take_care(self) -> bool:
        """While there is reason to, commit what each message led to alone, so that the right one is blamed.

        Returns:
            Whether there was a commit.
        """
        is_careful, has_committed = self._is_careful, False
        if is_careful and not self._holds and not self.is_clean:
            await self._commit()
            has_committed = True
        if is_careful != self._holds:
            self._holds = is_careful
            self._executor.hold(is_careful)
        while is_careful and (merged := self._executor.merge_one()) is not None:
            one = merged.one if merged.internal is None else self.inputs[0]
            await self._commit_alone(merged.record, one.source)
            has_committed = True
        return has_committed

    def _merged(self, one: InputProgress, record: InputRecord) -> None:
        """Note that a record's effects are in the shared overlays."""
        self._at, scope = one, self._scope
        scope.source_offset = one.completed.reached - 1
        if scope.input is not None:
            scope.input, self._messages.home_offset = one.index, self.inputs[0].reached
        if self._saw and not is_command(record):
            saw = self._saw[one.index]
            if self.time is None and saw is not None:
                saw(record.timestamp)
            elif self.time is not None:
                self.time.finished(one.index, record.offset, record.timestamp)

    @property
    def in_hand(self) -> tuple[TopicPartition, int] | None:
        """See `TaskProcessor.in_hand`."""
        begun = ((one.source, one.completed.oldest) for one in self.inputs)
        return next(((source, offset) for source, offset in begun if offset is not None), None)

    def message_in(self, running: asyncio.Task[object], *, is_loop: bool) -> MessageId | None:
        """See `TaskProcessor.message_in`."""
        return self._executor.message_in(running) or super().message_in(running, is_loop=False)

    def _sync(self) -> None:
        for one in self.inputs:
            one.next_offset = one.completed.next_offset

    def _freeze(self) -> tuple[CommitBatch, list[Writes], list[int], int]:
        self._sync()
        if self.time is not None:
            # The commit has their offsets, and no other follows when nothing comes behind them.
            self.time.see_finished()
        self._was_clean = True
        self._handled = self._executor.take_count()
        return super()._freeze()

    def _skip_to(self, one: InputProgress, offset: int) -> None:
        one.completed.skip_to(offset)

    async def _sweep(self, sweeper: Sweeper) -> None:
        with self._executor.holding():
            await super()._sweep(sweeper)

    @property
    def is_clean(self) -> bool:
        """See `TaskProcessor.is_clean`."""
        if any(one.completed.next_offset > one.handed_in_offset for one in self.inputs):
            return False
        return super().is_clean

    @property
    def _may_take(self) -> bool:
        return self._executor.has_room and super()._may_take

    def _due_in_s(self) -> float:
        return math.inf if self._inbox.is_paused else super()._due_in_s()

    async def _handle_due(self, took_s: float) -> None:
        for internal in self._due:
            self._executor.admit(self._at, internal.record, internal)

    def _commit_in_s(self) -> float:
        """Give when the next commit is due: at once when the input has run dry and the last one is long enough ago."""
        if self.is_clean:
            return float("inf")
        if self._is_large():
            return 0.0
        now_s = self._clock.monotonic()
        due_s = self._commit_at_s(now_s)
        if not self._pending and not self._inbox:
            due_s = min(due_s, now_s + self._rest_s())
        return due_s - now_s

    async def _leave(self) -> None:
        """Let the handlers that run come to their end, and commit."""
        await self._commit()
        self._ending.set()
        if not self._inbox.hurries:
            await self._executor.quiet()
        await self._take_care()
        self._sync()
        await super()._leave()

    async def _let_pass(self, seconds: float) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ending.wait()
            if not self._inbox.is_paused:
                break
            seconds = PAUSED_LOOK_S
        if self._ending.is_set():
            raise GivenBack
