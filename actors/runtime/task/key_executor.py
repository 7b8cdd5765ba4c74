"""Messages of different keys side by side, messages of one key in order.

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
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from actors._core.logs import escaping
from actors.ports import InputRecord, Unreadable
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.message.internal_messages import InternalMessage
from actors.runtime.message.task_state import TaskState
from actors.runtime.task.context import MessageId
from actors.runtime.task.handling import Handling, identity
from stores._core.overlay import MessageScope, Overlay, OverlayReader

logger = escaping(logging.getLogger(__name__))

WINDOW = 20
"""How many messages may wait, for each one that may run."""
LEAST_WINDOW = 1_000


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


class KeyExecutor:
    """Runs up to `limit` messages of a partition at once.

    `wake` is called when a message is done, `merged` when an input record is merged.

    Attributes:
        is_paused: nothing is started; what runs comes to its end.
    """

    def __init__(
        self,
        shared: TaskState,
        handling: Handling,
        *,
        limit: int,
        wake: Callable[[], None],
        merged: Callable[[InputProgress, InputRecord], None],
    ) -> None:
        self._shared = shared
        self._handling = handling
        self._limit = limit
        self._window = max(LEAST_WINDOW, WINDOW * limit)
        self._wake = wake
        self._note_merged = merged
        self._readers = {store: OverlayReader(overlay) for store, overlay in shared.overlays.items()}
        self._open: dict[InFlightRecord, None] = {}
        self._queues: dict[bytes, KeyQueue] = {}
        self._ready: deque[KeyQueue] = deque()
        self._running: dict[asyncio.Task[Any], InFlightRecord] = {}
        handling.runners = self._running
        self._done: deque[tuple[InFlightRecord, TaskState]] = deque()
        self._holds = 0
        self._waiting = 0
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._merged = 0
        self._is_closed = False
        self.is_paused = False
        # Those that are parked share a line, in which only one at a time may be given a place.
        # Of messages that run side by side none sees what another, of the same id, has written.
        self._orders_keyless = bool(handling.spec.stores)

    def __len__(self) -> int:
        """How many messages were admitted and aren't merged."""
        return len(self._open)

    def is_busy(self, key: bytes) -> bool:
        """Whether a message of `key` waits, runs or isn't merged."""
        return key in self._queues

    @property
    def has_room(self) -> bool:
        """Whether another message may be admitted: those behind one of their key that waits don't count.

        What they wait for may be behind them. Their number is bounded by `actors._core.task.completed.SPAN`.
        """
        return len(self._ready) < self._window

    @property
    def failure(self) -> BaseException | None:
        """What made the first of all unmerged messages fail, or a merge."""
        first = next(iter(self._open), None)
        return self._error if first is None or first.error is None else first.error

    def admit(self, one: InputProgress, record: InputRecord, internal: InternalMessage | None = None) -> None:
        """Take the next message; it runs as soon as all before it of its key are done and fewer than `limit` run."""
        key = record.key
        if isinstance(record, Unreadable) and record.original is not None:
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

    def start(self) -> None:
        """Start what may run."""
        if self.is_paused or self._is_closed:
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
                self.merge_all()
        self._end(asyncio.current_task())
        self.start()
        self._changed.set()
        self._wake()

    def _end(self, running: asyncio.Task[Any] | None) -> None:
        if running is not None:
            self._running.pop(running, None)

    def message_in(self, running: asyncio.Task[Any]) -> MessageId | None:
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
            self.start()
            self._wake()

    def hold(self, holds: bool) -> None:
        """Begin or end a time in which nothing is merged but by `merge_one`."""
        self._holds += 1 if holds else -1
        if not self._holds:
            self.merge_all()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Merge nothing meanwhile: somebody else writes to the shared overlays, and may take back what they wrote."""
        self.hold(True)
        try:
            yield
        finally:
            self.hold(False)

    def merge_all(self) -> None:
        """Merge all that is done."""
        while self._done:
            self.merge_one()

    def take_count(self) -> int:
        """Return how many input records were merged since the last call."""
        count, self._merged = self._merged, 0
        return count

    def merge_one(self) -> InFlightRecord | None:
        """Merge the message that was done first; return it, None when there is none."""
        while self._done:
            in_flight, state = self._done.popleft()
            if in_flight in self._open:
                self._merge(in_flight, state)
                self.start()
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
            self._merged += 1
            in_flight.one.completed.finish(in_flight.record.offset)
            self._note_merged(in_flight.one, in_flight.record)
            return
        try:
            in_flight.internal.handled()
        except Exception as error:
            # It looks into a store, and nobody here could say what to do: the processor ends with it.
            self._error = error

    async def quiet(self) -> None:
        """Start nothing more, and wait for the handlers that run, but not for those that wait for others' answers."""
        self._is_closed = True
        while len(self._running) > self._waiting:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Cancel all that runs and forget all that isn't merged. May be called twice."""
        self._is_closed = True
        self._open = {}
        for running in list(self._running):
            running.cancel()
        while self._running:
            await asyncio.wait(set(self._running))
        self._queues.clear()
        self._ready.clear()
