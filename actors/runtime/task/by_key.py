"""Messages of different keys side by side, messages of one key in order: the executor of actors with `concurrency`.

    shared overlays     what is finished and not committed yet, as in any processor
    a message's own     what its handler has written so far

A message is merged into the shared overlays when its handler is done, whatever is still running: the input offsets
that are finished behind one that isn't go into the offset's metadata with the same commit (`_core.task.completed`).
The next message of the key begins after that. So no commit waits for a slow handler, and a message may wait for one
behind it in the same partition.

A handler reaches no key but its message's own: what another key's message sees doesn't depend on which was faster.

A process that dies loses what isn't committed. Messages whose handlers were running are handled again, those that the
metadata says are finished aren't.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from actors._core.logs import escaping
from actors.errors import RecordError
from actors.ports import InputRecord, RefusedRecord, TopicPartition
from actors.runtime.cancellation import GivenBack
from actors.runtime.commands import is_command
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.message.internal_messages import InternalMessage
from actors.runtime.message.task_state import TaskState
from actors.runtime.task.context import MessageId
from actors.runtime.task.handling import identity
from actors.runtime.task.processor import Executor, TaskProcessor
from stores._core.overlay import MessageScope, Overlay, OverlayReader

logger = escaping(logging.getLogger(__name__))

WINDOW = 20
"""How many messages may wait, for each one that may run."""
LEAST_WINDOW = 1_000
PAUSED_LOOK_S = 0.5
"""How often a message that is to be tried again looks whether a pause is over."""


@dataclass(slots=True, eq=False)
class InFlightRecord:
    """A message between its admission and its merge; `one` is the input with which its writes go."""

    one: InputProgress
    record: InputRecord
    internal: InternalMessage | None
    queue: KeyQueue
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class KeyQueue:
    """The messages of one key, one of which may run; or, with the key None, one message without a key."""

    key: bytes | None
    waiting: deque[InFlightRecord] = field(default_factory=deque)
    is_busy: bool = False


class ByKey(Executor):
    """Runs up to `concurrency` messages of a partition at once."""

    def __init__(self, processor: TaskProcessor) -> None:
        super().__init__(processor)
        self._shared = shared = processor.messages
        # A hook that is called outside of a message has no more rights than a message inside.
        shared.on_wait = lambda _: None
        self._limit = processor.spec.concurrency
        self._window = max(LEAST_WINDOW, WINDOW * self._limit)
        self._readers = {store: OverlayReader(overlay) for store, overlay in shared.overlays.items()}
        self._pending: deque[tuple[InputProgress, InputRecord]] = deque()
        self._admitted = [one.next_offset for one in processor.inputs]
        self._open: dict[InFlightRecord, None] = {}
        self._queues: dict[bytes, KeyQueue] = {}
        self._ready: deque[KeyQueue] = deque()
        self._running: dict[asyncio.Task[Any], InFlightRecord] = {}
        self._handling.runners = self._running
        self._done: deque[tuple[InFlightRecord, TaskState]] = deque()
        self._holds = 0
        self._is_careful = False
        self._waiting = 0
        self._changed = asyncio.Event()
        self._ending = asyncio.Event()
        self._error: BaseException | None = None
        self._is_closed = False
        # Those that are parked share a line, in which only one at a time may be given a place.
        # Of messages that run side by side none sees what another, of the same id, has written.
        self._orders_keyless = bool(processor.spec.stores)

    async def advance(self) -> bool:
        """Admit, start and merge what can be, and do what is due; return whether the loop begins again without a wait.

        Raises:
            RecordError: a message can't be handled, and all before it is committed.
        """
        processor = self._processor
        processor.pass_time()
        # What was admitted before a pause waits here.
        if not self._inbox.is_paused:
            self._admit_pending()
        self._start()
        # After a commit: what came during it has woken nobody.
        if not await self._take_care():
            if processor.is_clean:
                processor.oldest_s = None
            elif processor.oldest_s is None:
                processor.oldest_s = processor.clock.monotonic()
            failure = self._failure
            if isinstance(failure, RecordError):
                failure.is_passed = True
                await processor.commit()
            if failure is not None:
                raise failure
            if not await processor.punctuate():
                return False
        # What is due may go on without a pause of its own.
        await processor.clock.sleep(0)
        return True

    def _admit_pending(self) -> None:
        while self._pending or self._inbox:
            if not self._pending:
                self._pending.extend((one, record) for one, records in self._processor.runs() for record in records)
            while self._pending:
                one, record = self._pending[0]
                if record.offset >= self._admitted[one.index]:
                    if not (self.has_room and one.completed.may_begin(record.offset)):
                        return
                    self._admitted[one.index] = record.offset + 1
                    is_new = one.completed.begin(record.offset)
                    one.next_offset = one.completed.next_offset
                    if is_new:
                        self._admit(one, record)
                self._pending.popleft()

    async def _take_care(self) -> bool:
        """While there is reason to, commit what each message led to alone, so that the right one is blamed.

        Returns:
            Whether there was a commit.
        """
        processor, poison = self._processor, self._processor.context.poison
        is_suspect = any(processor.is_suspect(one, one.next_offset) for one in processor.inputs)
        is_careful, has_committed = is_suspect or processor.clock.monotonic() < poison.careful_internal_s, False
        if is_careful and not self._is_careful and not processor.is_clean:
            await processor.commit()
            has_committed = True
        if is_careful != self._is_careful:
            self._is_careful = is_careful
            self.hold(is_careful)
        while is_careful and (merged := self._merge_one()) is not None:
            one = merged.one if merged.internal is None else processor.inputs[0]
            await processor.commit_alone(merged.record, one.source)
            has_committed = True
        return has_committed

    async def handle_due(self, took_s: float) -> None:
        """Admit what is due: it is handled as soon as its key's turn comes."""
        for internal in self._processor.due:
            self._admit(self._processor.at, internal.record, internal)

    async def let_pass(self, seconds: float) -> None:
        """Wait before a message is tried again, while others go on; raise GivenBack if the task ends."""
        while not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ending.wait()
            if not self._inbox.is_paused:
                break
            seconds = PAUSED_LOOK_S
        if self._ending.is_set():
            raise GivenBack

    @property
    def has_waiting(self) -> bool:
        """Return whether records wait that can't be begun yet."""
        return bool(self._pending or self._inbox)

    @property
    def is_working(self) -> bool:
        """Return whether something was begun that isn't merged, or waits."""
        return bool(self._open) or self.has_waiting

    @property
    def is_ending(self) -> bool:
        """Return whether handlers are to end."""
        return self._inbox.stopping or self._ending.is_set()

    @property
    def in_hand(self) -> tuple[TopicPartition, int] | None:
        """The oldest input record that was begun and isn't merged, with its offset; None if there is none."""
        begun = ((one.source, one.completed.oldest) for one in self._processor.inputs)
        return next(((source, offset) for source, offset in begun if offset is not None), None)

    def left_of(self, one: InputProgress) -> tuple[int, Iterable[InputRecord]]:
        """Count what is admitted as begun: it is in front of the timers of its key, also while it waits there."""
        return self._admitted[one.index], (record for of, record in self._pending if of is one)

    @property
    def has_room(self) -> bool:
        """Return whether another message may be admitted: those behind one of their key that waits don't count.

        What they wait for may be behind them. Their number is bounded by `actors._core.task.completed.SPAN`.
        """
        return len(self._ready) < self._window

    @property
    def _failure(self) -> BaseException | None:
        """The error of the first of all unmerged messages, or of a merge."""
        first = next(iter(self._open), None)
        return self._error if first is None or first.error is None else first.error

    def _admit(self, one: InputProgress, record: InputRecord, internal: InternalMessage | None = None) -> None:
        """Take the next message; it runs as soon as all before it of its key are done and fewer than `limit` run."""
        key = record.key
        if isinstance(record, RefusedRecord) and record.original is not None:
            key = record.original.key
        if key is None and not self._orders_keyless:
            queue = KeyQueue(None)
        else:
            key = key or b""
            queue = self._queues.get(key) or KeyQueue(key)
            self._queues[key] = queue
        in_flight = InFlightRecord(one, record, internal, queue)
        self._open[in_flight] = None
        queue.waiting.append(in_flight)
        if not queue.is_busy and len(queue.waiting) == 1:
            self._ready.append(queue)

    def _start(self) -> None:
        """Start what may run; what runs in a pause comes to its end."""
        if self._inbox.is_paused or self._is_closed:
            return
        while self._ready and len(self._running) - self._waiting < self._limit:
            queue = self._ready.popleft()
            in_flight = queue.waiting.popleft()
            queue.is_busy = True
            running = asyncio.create_task(
                self._run(in_flight), name=f"message {in_flight.one.source} {in_flight.record.offset}"
            )
            self._running[running] = in_flight
            running.add_done_callback(self._end)

    async def _run(self, in_flight: InFlightRecord) -> None:
        state = self._private_state(in_flight)
        try:
            await self._handling.message(state, in_flight.record, in_flight.internal)
        except GeneratorExit:
            # Somebody closes the coroutine: a handler that raises this has failed.
            raise
        except BaseException as error:
            # Nothing of its key runs behind it.
            in_flight.error = error
            if not self._is_closed:
                logger.warning("%s: %r, behind unfinished messages", in_flight.one.source, error)
        else:
            self._done.append((in_flight, state))
            if not self._holds:
                self._merge_all()
        self._end(asyncio.current_task())
        self._start()
        self._changed.set()
        self._inbox.wake()

    def _end(self, running: asyncio.Task[Any] | None) -> None:
        if running is not None:
            self._running.pop(running, None)

    def message_in(self, running: asyncio.Task[object], *, is_loop: bool) -> MessageId | None:
        """Return the message that an asyncio task handles; None if it handles none."""
        in_flight = self._running.get(running)
        return None if in_flight is None else identity(in_flight.one.source, in_flight.record)

    def _private_state(self, in_flight: InFlightRecord) -> TaskState:
        shared, one = self._shared, in_flight.one
        offset, source, tag = in_flight.record.offset, one.source, one.topics.message_tag
        if in_flight.internal is not None:
            offset, source, tag = one.completed.reached - 1, shared.home, shared.message_tag
        scope = MessageScope(shared.scope.epoch, offset, shared.scope.now_ms)
        scope.input = None if shared.scope.input is None else one.index
        return replace(
            shared,
            source=source,
            message_tag=tag,
            scope=scope,
            overlays={store: Overlay(reader, scope) for store, reader in self._readers.items()},
            outputs=[],
            output_bytes=0,
            on_wait=self._waits,
        )

    def _waits(self, change: int) -> None:
        """Don't count a message that waits for another actor: its reply may depend on a later message."""
        self._waiting += change
        self._changed.set()
        if change > 0:
            self._start()
            self._inbox.wake()

    def hold(self, holds: bool) -> None:
        """Begin or end a time in which nothing is merged but by `_merge_one`."""
        self._holds += 1 if holds else -1
        if not self._holds:
            self._merge_all()

    def is_queued(self, key: bytes) -> bool:
        """Return whether a message of a key waits or is being handled."""
        return key in self._queues

    def _merge_all(self) -> None:
        """Merge all that is done."""
        while self._done:
            self._merge_one()

    def _merge_one(self) -> InFlightRecord | None:
        """Merge the message that was done first; return it, None when there is none."""
        while self._done:
            in_flight, state = self._done.popleft()
            if in_flight in self._open:
                self._merge(in_flight, state)
                self._start()
                return in_flight
        return None

    def _merge(self, in_flight: InFlightRecord, state: TaskState) -> None:
        shared = self._shared
        for store, overlay in state.overlays.items():
            if overlay.writes:
                shared.overlays[store].absorb(overlay.writes)
        shared.outputs += state.outputs
        shared.output_bytes += state.output_bytes
        del self._open[in_flight]
        queue = in_flight.queue
        queue.is_busy = False
        if queue.waiting:
            self._ready.append(queue)
        elif queue.key is not None:
            del self._queues[queue.key]
        if in_flight.internal is None:
            self._finished(in_flight.one, in_flight.record)
            return
        try:
            in_flight.internal.handled()
        except Exception as error:
            # It looks into a store, and nobody here could say what to do: the processor ends with it.
            self._error = error

    def _finished(self, one: InputProgress, record: InputRecord) -> None:
        """Note that a record's effects are in the shared overlays."""
        processor, scope = self._processor, self._processor.scope
        one.completed.finish(record.offset)
        one.next_offset = one.completed.next_offset
        processor.at, processor.handled = one, processor.handled + 1
        scope.source_offset = one.completed.reached - 1
        if scope.input is not None:
            scope.input, self._shared.home_offset = one.index, processor.inputs[0].reached
        if is_command(record):
            return
        if processor.time is not None:
            processor.time.finished(one.index, record.offset, record.timestamp)
        elif self._handling.timers is not None:
            self._handling.timers.saw(record.timestamp)

    async def finish(self) -> None:
        """Start nothing more, and wait for the handlers that run, but not for those that wait for others' answers."""
        await self._processor.commit()
        self._ending.set()
        if not self._inbox.hurries:
            self._is_closed = True
            while len(self._running) > self._waiting:
                self._changed.clear()
                await self._changed.wait()
        await self._take_care()

    async def close(self) -> None:
        """Cancel all that runs and forget all that isn't merged. May be called twice."""
        self._ending.set()
        self._is_closed = True
        self._open = {}
        for running in list(self._running):
            running.cancel()
        while self._running:
            await asyncio.wait(set(self._running))
        self._queues.clear()
        self._ready.clear()
