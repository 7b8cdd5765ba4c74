"""The product's tenure on a clock that the replayed records drive, with nobody to ask and no effect that acts."""

from __future__ import annotations

import heapq
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from types import NoneType
from typing import Any, cast

from actors._core.task.lifecycle import State
from actors.errors import ActorsError, RecordError, UsageError
from actors.ports import CommitBatch, CommitReceipt, InputRecord
from actors.runtime.handlers.effect import Effect
from actors.runtime.handlers.expiry import remove
from actors.runtime.inputs.event_times import written_ms
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.message.context import Context
from actors.runtime.message.internal_messages import InternalMessage
from actors.runtime.message.task_state import TaskState
from actors.runtime.outbox.calls import call_id
from actors.runtime.outbox.effects import Effects
from actors.runtime.quarantine.quarantine import Parked
from actors.runtime.spec import ActorSpec
from actors.runtime.state.restore import Restored
from actors.runtime.task.context import TaskContext
from actors.runtime.task.handling import Handling
from actors.runtime.task.in_order import InOrder
from actors.runtime.task.processor import TaskProcessor
from actors.runtime.task.tools import assemble
from stores._core.record import NEVER, decode_metadata
from stores.ports import PartitionStore

COMMIT_EVERY_MS = 1_000
"""Where keys expire with a hook, they are known to after a commit: how late it may be called, by the input's clock."""
_REASON_CHARS = 300
_ROUNDING_MS = 0.001


class NotReplayableError(ActorsError):
    """The handler asks for something that the input doesn't have."""


class InputClock:
    """Unix milliseconds as the records say; the monotonic time stands still, so that nothing is done for its sake."""

    def __init__(self) -> None:
        self.ms = 0

    @staticmethod
    def monotonic() -> float:
        """Return 0."""
        return 0.0

    def wall_ms(self) -> int:
        """Return the highest timestamp so far, or the time at which something came due after it."""
        return self.ms

    async def sleep(self, seconds: float) -> None:
        """Return at once."""


class CheckedClock(InputClock):
    """By which a replay tells that a timestamp is too far ahead: the input's clock, but none that is ahead of today.

    What workers refused is refused again, as far as the input says when they handled it.
    """

    def __init__(self, clock: InputClock) -> None:
        super().__init__()
        self._clock = clock
        self._now_ms = time.time_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Return the input's time, Unix milliseconds, or today's if that is earlier."""
        return min(self._clock.ms, self._now_ms)


class Unknowns:
    """Gaps of the input: (message key, offset, reason), until they are taken.

    Attributes:
        asked: why the message that is being handled can't be replayed, None if it can so far.
        topic: of what is being handled, if the actor has several inputs.
    """

    def __init__(self) -> None:
        self.found: list[tuple[bytes | None, int, str]] = []
        self.asked: str | None = None
        self.topic = ""

    def note(self, record: InputRecord, reason: str) -> None:
        """Note that something is unknown from a message on."""
        reason = f"{self.topic}: {reason}" if self.topic else reason
        self.found.append((record.key, record.offset, reason[:_REASON_CHARS]))


class Expiries:
    """The keys of stores with `on_expire`, by the time at which they expire; each is in here once.

    A key that is written again may expire later than this says, never earlier: a look into the store tells.
    """

    def __init__(self, stores: Mapping[str, int]) -> None:
        self._stores = stores
        self._heap: list[tuple[int, int, bytes]] = []
        self._known: set[tuple[int, bytes]] = set()

    def __bool__(self) -> bool:
        return bool(self._stores)

    def saw(self, batch: CommitBatch) -> None:
        """Note what a commit wrote."""
        for topic, number in self._stores.items():
            for key, (metadata, value) in batch.changelogs.get(topic, {}).items():
                if value is not None:
                    self.expect(number, key, metadata)

    def expect(self, number: int, key: bytes, metadata: bytes) -> None:
        """Note that a key of store `number` was written with that metadata."""
        expires_at_ms = decode_metadata(metadata).expires_at_ms
        if expires_at_ms != NEVER and (number, key) not in self._known:
            self._known.add((number, key))
            heapq.heappush(self._heap, (expires_at_ms, number, key))

    def due_ms(self) -> float:
        """Return when the next key may expire."""
        return self._heap[0][0] if self._heap else math.inf

    def take(self, now_ms: int, stores: Sequence[PartitionStore]) -> tuple[int, bytes, bytes] | None:
        """Return the next key that has expired: the store's number, the key, its value with its metadata."""
        while self._heap and self._heap[0][0] <= now_ms:
            _, number, key = heapq.heappop(self._heap)
            self._known.discard((number, key))
            raw = stores[number].get(key)
            if raw is None:
                continue
            expires_at_ms = decode_metadata(raw).expires_at_ms
            if NEVER < expires_at_ms <= now_ms:
                return number, key, raw
            self.expect(number, key, raw)
        return None


class MemoryLog:
    """`actors.ports.TaskLog` of a replay: commits go nowhere."""

    def __init__(self, expiries: Expiries) -> None:
        self._expiries = expiries

    async def fence(self) -> None:
        """Do nothing: there is no other owner to fence."""

    async def end_transaction_of(self, transactional_id: str) -> None:
        """Do nothing: there is no other owner."""

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        """Look at what expires."""
        if self._expiries:
            self._expiries.saw(batch)
        return CommitReceipt({})

    def is_ready(self, wake: Callable[[], None]) -> bool:
        """Return True: nothing is to be gathered."""
        return True

    def end(self) -> None:
        """Do nothing: there is no other owner."""

    async def close(self) -> None:
        """There is nothing to close."""


class _Unanswered:
    """In the place of what carries questions."""

    def __init__(self, unknowns: Unknowns, clock: InputClock) -> None:
        self._unknowns = unknowns
        self.wall_ms = clock.wall_ms

    async def ask(self, ctx: Context, actor: Any, *_: Any) -> Any:
        self._unknowns.asked = f"it asks actor {getattr(actor, '__name__', actor)}"
        raise NotReplayableError(self._unknowns.asked)


class _Uncalled:
    """In the place of the outbox: a call is checked and forgotten."""

    def __init__(self, spec: ActorSpec, unknowns: Unknowns) -> None:
        self._spec = spec
        self._unknowns = unknowns

    def call(
        self, ctx: Context, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, then: Any = None
    ) -> str:
        effect = self._named(function)
        if then is not None or effect.on_give_up or effect.on_unknown or _may_return(effect):
            self._unknowns.note(ctx._record, f"what effect {effect.name} sent back isn't in the input")
        return call_id(ctx, effect, args, kwargs)

    def call_in(self, running: object) -> str | None:
        return None

    def cancel(self, ctx: Context, id: str) -> bool:
        self._unknowns.note(ctx._record, "whether an effect was done when it was cancelled isn't in the input")
        return False

    def pending(self, ctx: Context, limit: int) -> list[Any]:
        return []

    def _named(self, function: Any) -> Effect:
        for effect in self._spec.effect_functions.values():
            if effect.function is function or effect.name == getattr(function, "name", None):
                return effect
        raise UsageError(f"ctx.effect({function!r}): actor {self._spec.name} doesn't list it")

    def retry(self, state: TaskState, raw_key: bytes, *, before: int | None = None) -> int:
        return 0

    def drop(self, state: TaskState, raw_key: bytes, call_id: str | None = None) -> int:
        return 0


def _may_return(effect: Effect) -> bool:
    try:
        found = inspect.signature(effect.function).return_annotation
    except (TypeError, ValueError):
        return True
    return found not in (None, NoneType, "None")


class _ReplayHandling(Handling):
    """Skips what can't be replayed, where the product stops."""

    __slots__ = ("_unknowns",)

    def __init__(self, unknowns: Unknowns, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._unknowns, self.wait = unknowns, self._try_at_once

    async def _try_at_once(self, seconds: float) -> None:
        """A handler that fails is tried again at once."""

    async def recover(
        self,
        state: TaskState,
        record: InputRecord,
        error: BaseException,
        sent: int,
        internal: InternalMessage | None = None,
    ) -> None:
        """Pass over a message that can't be replayed; else as `Handling`."""
        asked, self._unknowns.asked = self._unknowns.asked, None
        if asked is None:
            await super().recover(state, record, error, sent, internal)
            return
        self.undone(state, record, error, sent)
        self._pass_over(state, record, asked, internal)

    def give_up(
        self,
        state: TaskState,
        record: InputRecord,
        failed: RecordError,
        attempts: int,
        internal: InternalMessage | None = None,
    ) -> None:
        """Pass over a message at which the actor would stop; else as `Handling`."""
        if self.spec.then_for(record, failed) == "stop":
            self._pass_over(state, record, failed.reason, internal)
        else:
            super().give_up(state, record, failed, attempts, internal)

    def _pass_over(self, state: TaskState, record: InputRecord, reason: str, internal: InternalMessage | None) -> None:
        self._unknowns.note(record, reason)
        self._consume(state, record, internal, len(state.outputs))
        state.scope.release()


class Replay:
    """Has a processor handle what it is given, and what comes due on the way."""

    def __init__(
        self,
        context: TaskContext,
        stores: Sequence[Restored],
        inputs: Sequence[InputProgress],
        *,
        clock: InputClock,
        unknowns: Unknowns,
        expiries: Expiries,
    ) -> None:
        context.state = State.RUNNING
        self._clock, self._unknowns, self._expiries = clock, unknowns, expiries
        self._committed_ms = 0
        self._inbox = context.inbox
        parts = assemble(context, stores, inputs)
        spec, tools = context.spec, parts.state.tools
        tools.asks = _Unanswered(unknowns, clock)  # type: ignore[assignment]
        if spec.effects is not None:
            tools.effects = uncalled = _Uncalled(spec, unknowns)
            parts.punctuators = [part for part in parts.punctuators if not isinstance(part, Effects)]
            parts.parked = Parked(spec, parts.state, effects=uncalled, timers=parts.timers, meters=context.meters)
        if tools.timestamps is not None:
            tools.timestamps.clock = CheckedClock(clock)
        self._processor = processor = TaskProcessor(context, parts, InOrder, partial(_ReplayHandling, unknowns))
        # Hooks are called when a key expires, and without a hook an expired key is merely absent.
        processor.sweeper = None
        self._executor = cast(InOrder, processor.executor)

    async def replay(self, records: Sequence[tuple[int, InputRecord]]) -> None:
        """Handle records of the inputs, and commit."""
        for place, group in groupby(records, key=itemgetter(0)):
            one, left = self._processor.inputs[place], [record for _, record in group]
            if self._inbox.event_times is not None:
                left = list(self._inbox.event_times.timed(place, left))
            if len(self._processor.inputs) > 1:
                self._unknowns.topic = one.source.topic
            if not self._processor.due.punctuators and not self._expiries:
                await self._handle_all(one, left)
                continue
            for record in left:
                await self.pass_time(written_ms(record))
                await self._handle_all(one, [record])
                await self._take_what_is_due()
        await self._processor.commit()

    async def pass_time(self, to_ms: int) -> None:
        """Let the clock go on, and see to what comes due on the way at its time."""
        clock = self._clock
        if to_ms <= clock.ms:
            return
        if self._expiries and to_ms - self._committed_ms >= COMMIT_EVERY_MS:
            self._committed_ms = to_ms
            await self._processor.commit()
        while (due_ms := self._due_ms()) <= to_ms:
            clock.ms = max(clock.ms, int(due_ms))
            await self._take_what_is_due()
        clock.ms = to_ms

    def _due_ms(self) -> float:
        processor = self._processor
        due_ms, now_ms = self._expiries.due_ms(), self._clock.ms
        wait_s = processor.due.wait_s() if processor.may_take else math.inf
        if wait_s != math.inf:
            due_ms = min(due_ms, now_ms + math.ceil(wait_s * 1000 - _ROUNDING_MS))
        return due_ms

    async def _take_what_is_due(self) -> None:
        while await self._processor.punctuate():
            pass
        if self._expiries.due_ms() <= self._clock.ms:
            await self._expire()

    async def _expire(self) -> None:
        processor = self._processor
        await processor.commit()
        scope, now_ms = processor.scope, self._clock.ms
        scope.now_ms, scope.source_offset = max(scope.now_ms, now_ms), processor.reached - 1
        stores = [part.committed for part in processor.stores]
        while (found := self._expiries.take(now_ms, stores)) is not None:
            number, key, raw = found
            part = processor.stores[number]
            await remove(processor.messages, part.store, part.overlay, key, raw)
            await processor.commit()

    async def _handle_all(self, one: InputProgress, left: list[InputRecord]) -> None:
        """Handle records of an input; one that can't even be parked is skipped."""
        while left:
            try:
                await self._executor.handle([(one, left)])
            except RecordError as error:
                stuck = next(record for record in left if record.offset >= one.next_offset)
                self._unknowns.note(stuck, error.reason)
                one.next_offset = stuck.offset + 1
                left = [record for record in left if record.offset > stuck.offset]
            else:
                return


def on_input_time(
    handler: Callable[[Context, Any], Awaitable[None]], clock: InputClock, unknowns: Unknowns
) -> Callable[[Context, Any], Awaitable[None]]:
    """Return a handler that moves the clock to its message, and whose message fails if it asked another actor."""

    async def handle(ctx: Context, message: Any) -> None:
        timestamp_ms, state = written_ms(ctx._record), ctx._state
        if timestamp_ms > clock.ms and state is not None:
            clock.ms = state.scope.now_ms = timestamp_ms
        await handler(ctx, message)
        if unknowns.asked is not None:
            # The handler went on without the answer: nobody knows what it would have done with it.
            raise NotReplayableError(unknowns.asked)

    return handle
