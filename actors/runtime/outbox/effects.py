"""Effects outside Kafka: calls that handlers record with their writes, made after the commit until they succeed.

The outbox is a store of the actor; its layout is in `actors.runtime.outbox.calls`. Only the head of a key's line runs;
one that is parked holds the line up until somebody retries or drops it. What happens when the process dies:

    handler              the record is in the overlay only: it is gone with the message's other writes
    commit               the record is there if, and only if, the message's other writes are
    call                 the record still says what it said before: the next owner makes the call again, with the same
                         idempotency key and a higher fencing token. A task that ends in order writes the outcomes that
                         aren't handled in a last commit, so only a call that is under way then is made again
    success              the record is removed in the commit of what the result's handler writes; before it, as above
    failure              the number of attempts and the time of the next are written; before it, as above

So a call is made at least once, and its result is handled once. After a commit that failed, the task's next takeover
has the outcomes of calls that succeeded from memory, and makes none of these again.

A call with repeat="never" is made at most once, one commit later:

    start                the epoch is written into the record, as soon as the call has its permit; before that is
                         committed, there is no call
    call                 an owner with another epoch makes none: it tells the actor that the outcome is unknown, in the
                         commit that removes the record. A task that ends in order takes back starts without a call

The runner reads the store below the overlays, so it runs committed calls alone. Its other memory is a bounded index
of places in the store, which a walk through the store restores.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from actors._core.keys import place_of
from actors._core.logs import escaping
from actors._core.outside import EXITS
from actors.errors import RecordError, RecordTooLargeError, UsageError, show_bytes
from actors.ports import Clock
from actors.runtime.cancellation import is_closed
from actors.runtime.commands import written_by
from actors.runtime.handlers.effect import Effect, GivenUp, Outcome, Unknown, retry_after_s
from actors.runtime.message.context import Context
from actors.runtime.message.internal_messages import InternalMessage, InternalRecord, Punctuator, refuse_keyless
from actors.runtime.message.outputs import EFFECT_HEADER
from actors.runtime.message.task_state import TaskState
from actors.runtime.meters import TaskMeters
from actors.runtime.outbox.attempts import Attempts, Run, carried
from actors.runtime.outbox.calls import (
    UNKNOWN_EFFECT,
    EffectRecord,
    Head,
    QueriedOutbox,
    call_id,
    decoded,
    line_bounds,
    line_of,
    make_key,
    not_json,
    result_id,
)
from actors.runtime.outbox.queues import Lines
from actors.runtime.quarantine.quarantine import send_dead_letter
from actors.runtime.spec import ActorSpec
from stores._core.overlay import Overlay
from stores._core.record import decode_metadata
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

AT_ONCE = 16
"""How many effects of a partition run at the same time."""
MOST_RUNS = 1_000
"""How many may run or have an outcome that isn't committed."""
MOST_ENDED = 64
"""How many may run or have an outcome that isn't handled, beside one for each lane."""
MOST_WAITING = 10_000
"""How many may wait for permits."""
MESSAGES_AT_ONCE = 100
RESERVE_BYTES = 4_096
"""The room for what a record grows by after the handler wrote it: by its error above all."""
_ERROR_CHARS = 500
_encode = msgspec.json.encode
_CUT_SHORT = "its worker ended before the outcome was committed"


class Effects(Punctuator):
    """Runs the effects of a partition, from a takeover to the next.

    `committed` is the outbox as it is committed, `epoch` the owner's; `wake` ends the task's wait.

    Attributes:
        is_held: whether no call may begin now; calls that run go on.
        held_up: by id, calls that held the event loop for longer than a session, again and again: see `PoisonTracking`.
        succeeded: by id, the outcomes of calls that this one leaves to the task's next takeover, or has from the last.
    """

    def __init__(
        self,
        spec: ActorSpec,
        state: TaskState,
        committed: PartitionStore,
        clock: Clock,
        *,
        epoch: int,
        wake: Callable[[], None],
        meters: TaskMeters,
    ) -> None:
        if spec.effects is None:
            raise AssertionError(f"actor {spec.name} has no store for effects")
        self._spec = spec
        self._store = spec.effects
        self._state = state
        self._clock = clock
        self._epoch = epoch
        self._wake = wake
        self._functions = spec.effect_functions
        self._limit = state.max_record_bytes[spec.effects.name] - RESERVE_BYTES
        self._attempts = Attempts(spec, epoch=epoch, limit=self._limit, threads=AT_ONCE)
        self._is_closed = False
        self._failure: BaseException | None = None
        self._touched: dict[bytes, None] = {}
        self._runs: dict[bytes, Run] = {}
        self._started: dict[bytes, bytes] = {}
        """By line, the store key of a call whose start is written, or will be, and that isn't made yet."""
        self._permits: dict[bytes, Any] = {}
        """By line, the permit of such a call."""
        self._running: dict[asyncio.Task[Any], Run] = {}
        self._ended: deque[Run] = deque()
        self._most_unhandled = MOST_ENDED + spec.concurrency
        self._unhandled = 0
        self._lines = Lines(
            spec, state, committed, clock, is_held=lambda key: key in self._runs or key in self._started
        )
        self._meters = meters
        self.pending = QueriedOutbox(spec.effects).pending
        self.is_held: Callable[[], bool] = lambda: False
        self.held_up: dict[Any, RecordError] = {}
        self.succeeded: dict[str, Outcome] = {}
        if state.scope.source_offset < 0:
            # Nothing is looked for before the first input, and nothing can be there.
            meters.parked_effects = 0

    def call(
        self, ctx: Context, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, then: Any = None
    ) -> str:
        """Record a call with what the message writes: see `Context.effect`.

        Raises:
            UsageError: the actor doesn't list the function, or it doesn't take these arguments.
            RecordTooLargeError: the arguments don't fit into the changelog.
        """
        state = ctx._working("effect")
        refuse_keyless(ctx, "effect")
        effect, methods, tracing = self._effect(function), self._spec.methods, self._spec.tracing
        record = EffectRecord(
            id=call_id(ctx, effect, args, kwargs),
            name=effect.name,
            args=list(args),
            kwargs=dict(kwargs),
            trace=msgspec.UNSET if tracing is None else tracing.carried(),
            then=msgspec.UNSET if then is None or methods is None else methods.name_of(then, "ctx.effect(then=…)"),
        )
        raw = self._encoded(effect, record)
        store_key = make_key(ctx._raw_key, self._next_sequence(state.overlays[self._store], ctx._raw_key))
        if len(store_key) + len(raw) > self._limit:
            raise RecordTooLargeError(
                f"ctx.effect({effect.name}): a call of {len(raw)} bytes for key {show_bytes(ctx._raw_key)} doesn't fit "
                f"into the changelog of store {self._store.name}, which takes {self._limit}: keep what is large in a "
                "store, and pass its key"
            )
        self._store.write_raw(state, store_key, raw)
        return record.id

    def _effect(self, function: Any) -> Effect:
        for effect in self._functions.values():
            # By name, since a test may have put another function in its place.
            is_named = isinstance(function, Effect) and effect.name == function.name
            if is_named or effect.function is function:
                return effect
        raise UsageError(
            f"ctx.effect({getattr(function, 'name', None) or getattr(function, '__name__', function)!s}): actor "
            f"{self._spec.name} doesn't list it: @app.actor(..., effects=[…]) has "
            f"{', '.join(self._functions) or 'none'}"
        )

    def _encoded(self, effect: Effect, record: EffectRecord) -> bytes:
        """Return the record's JSON, after a look whether the same arguments come back from it."""
        try:
            raw = msgspec.json.encode(record)
            back = msgspec.json.decode(raw, type=EffectRecord)
            self._attempts.arguments[effect.name].check(record.args, record.kwargs, (back.args, back.kwargs))
        except Exception as error:
            raise not_json(effect, error) from error
        return raw

    @staticmethod
    def _next_sequence(overlay: Overlay, raw_key: bytes) -> int:
        last = next(overlay.items(*line_bounds(raw_key), reverse=True), None)
        return 1 if last is None else place_of(last[0])[1] + 1

    def retry(self, state: TaskState, raw_key: bytes, *, before: int | None = None) -> int:
        """Let the parked head of a line be tried again, as often as a new one; return how many there were.

        The runner goes on after the commit. With `before`, only a head that input before that offset wrote.
        """
        head = self._first(state, raw_key)
        if head is None or not head.record.parked:
            return 0
        raw = state.overlays[self._store].read(head.store_key)
        written = -1 if raw is None else written_by(decode_metadata(raw), head.record.home_offset)
        if before is not None and written >= before:
            return 0
        again = msgspec.structs.replace(head.record, parked=False, attempts=0, next_ms=0, started=msgspec.UNSET)
        self._write(state, head.store_key, again)
        return 1

    def drop(self, state: TaskState, raw_key: bytes, id: str | None = None) -> int:
        """Remove the parked head of a line, or the call with that id wherever it is in it; return how many there were.

        One that is dropped while it runs may still take place; its result is dropped.
        """
        overlay = state.overlays[self._store]
        if id is None:
            head = self._first(state, raw_key)
            return int(head is not None and head.record.parked and overlay.delete(head.store_key))
        for store_key, raw in overlay.items(*line_bounds(raw_key)):
            record = decoded(raw)
            if record is not None and record.id == id:
                return int(overlay.delete(store_key))
        return 0

    def cancel(self, ctx: Context, id: str) -> bool:
        """Remove a call: see `Context.cancel_effect`."""
        return bool(self.drop(ctx._working("cancel_effect"), ctx._raw_key, id))

    def _first(self, state: TaskState, raw_key: bytes) -> Head | None:
        """Return the head of a line as a message sees it."""
        for store_key, raw in state.overlays[self._store].items(*line_bounds(raw_key)):
            record = decoded(raw)
            return None if record is None else Head(store_key, record)
        return None

    def _write(self, state: TaskState, store_key: bytes, record: EffectRecord) -> None:
        if state.scope.input:
            record = msgspec.structs.replace(record, home_offset=state.home_offset)
        self._store.write_raw(state, store_key, msgspec.json.encode(record))

    @property
    def is_busy(self) -> bool:
        """Return whether an effect runs or is about to, or an outcome waits for its turn."""
        if not self._may_run:
            return False
        return bool(self._running or self._ended or self._failure) or self._lines.is_busy

    def wait_s(self) -> float:
        """Return seconds until an effect is due."""
        if not self._may_run:
            return math.inf
        if self._ended or self._failure is not None or (self._lines.is_ready and self._has_room):
            return 0.0
        if any(raw_key not in self._runs for raw_key in self._started):
            return 0.0
        return self._lines.wait_s()

    def take(self) -> Sequence[InternalMessage]:
        """Return the outcomes that can be handled."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._go_on()
        due: list[InternalMessage] = []
        while self._ended and len(due) < MESSAGES_AT_ONCE:
            run = self._ended.popleft()
            if run.outcome is not None:
                due.append(self._message(run, run.outcome))
        return due

    def before_commit(self) -> None:
        """Note whose lines the commit changes: all that is merged, and nothing that was taken back."""
        lines = (line_of(store_key) for store_key in self._state.overlays[self._store].writes)
        self._touched.update((raw_key, None) for raw_key in lines if raw_key is not None)

    def committed(self) -> None:
        """Review the lines that the commit changed, and start effects."""
        touched, self._touched = self._touched, {}
        for raw_key in touched:
            self._review(raw_key)
        self._go_on()

    async def leave(self) -> None:
        """Cancel all that runs, and write the outcomes that aren't handled: the next owner repeats none of these."""
        await self.close()
        for run in self._runs.values():
            if run.outcome is not None and not (run.is_done or run.outcome.is_start or run.outcome.is_unknown):
                self._keep(run, run.outcome)
        for store_key in self._started.values():
            raw = self._state.overlays[self._store].get(store_key)
            record = None if raw is None else decoded(raw)
            if record is not None and record.started == self._epoch:
                # Nothing was called: the next owner needn't take it for a call whose outcome is unknown.
                self._write(self._state, store_key, msgspec.structs.replace(record, started=msgspec.UNSET))
        self._state.scope.release()

    def _keep(self, run: Run, outcome: Outcome) -> None:
        """Write an outcome that isn't handled; what is told of it waits in its record."""
        state, record, report = self._state, self._recorded(self._state, run), self._report(run, outcome)
        if record is None or report is None:
            self._consume(state, run, outcome, report)
            return
        then = msgspec.UNSET if report.method is None else report.method
        kept = msgspec.structs.replace(record, result=(report.value, list(report.headers)), then=then)
        self._write(state, run.head.store_key, kept)
        if outcome.error is not None:
            self._bury(state, run, record, outcome, is_told=True)

    async def close(self) -> None:
        """Cancel all that runs, and wait for its end. The thread of a plain function goes on. May be called twice."""
        self._is_closed = self._attempts.is_closed = True
        for running in self._running:
            running.cancel()
        while self._running:
            await asyncio.wait(set(self._running))
        for raw_key in list(self._permits):
            self._permits.pop(raw_key).end(None)
        self._attempts.close()
        self.succeeded.update(
            (run.head.record.id, run.outcome)
            for run in self._runs.values()
            if run.outcome is not None and not run.outcome.is_start and self._is_settled(run, run.outcome)
        )
        # Those whose commit took place after all stay behind.
        for id in list(self.succeeded)[:-MOST_RUNS]:
            del self.succeeded[id]

    @staticmethod
    def _is_settled(run: Run, outcome: Outcome) -> bool:
        """Return whether a call isn't made again after that outcome, also if it isn't committed."""
        return outcome.error is None or (run.head.record.started is not msgspec.UNSET and not outcome.is_unknown)

    @property
    def _may_run(self) -> bool:
        # Before the first input there is no offset that an outcome's write could come from.
        return not (self._is_closed or self.is_held()) and self._state.scope.source_offset >= 0

    @property
    def _has_room(self) -> bool:
        # Calls that wait for permits leave their places to others.
        waiting = self._attempts.waiting
        running, runs = len(self._running) - waiting, len(self._runs) - waiting
        has_room = running + len(self._started) < AT_ONCE and runs < MOST_RUNS and waiting < MOST_WAITING
        return has_room and running + self._unhandled < self._most_unhandled

    def _go_on(self) -> None:
        """Start what may run."""
        if not self._may_run:
            return
        self._lines.look()
        self._meters.parked_effects = self._lines.parked
        for raw_key in [raw_key for raw_key in self._started if raw_key not in self._runs]:
            head = self._lines.head(raw_key)
            if head is not None and head.record.started == self._epoch and not head.record.parked:
                self._start(raw_key, head)
            else:
                # It was dropped.
                del self._started[raw_key]
                if raw_key in self._permits:
                    self._permits.pop(raw_key).end(None)
                self._lines.place(raw_key, head)
        while self._has_room and (found := self._lines.take()) is not None:
            self._start(*found)

    def _review(self, raw_key: bytes) -> None:
        """Look at a line that was changed, or whose turn is over: does it stand still as long as it has to?"""
        head, run = self._lines.head(raw_key), self._runs.get(raw_key)
        if run is not None:
            is_same = head is not None and head.mark == run.head.mark
            if is_same or not run.is_done:
                # An outcome that was handled and isn't committed may be dropped with its processor: then the next one
                # makes the attempt again, and this one must not.
                return
            del self._runs[raw_key]
        if raw_key not in self._started:
            self._lines.place(raw_key, head)

    def _start(self, raw_key: bytes, head: Head) -> None:
        run = self._runs[raw_key] = Run(raw_key, head)
        result = head.record.result
        if result is not msgspec.UNSET:
            self._end(run, Outcome(*result))
            return
        effect = self._functions.get(head.record.name)
        if effect is None:
            missing = f"actor {self._spec.name} {UNKNOWN_EFFECT} {head.record.name!r}: was it renamed or removed?"
            self._end(run, Outcome(error=missing, is_final=True))
            return
        if (held_up := self.held_up.pop(head.record.id, None)) is not None:
            # Nothing could be committed while it blocked, so this attempt stands for all of those.
            self._end(run, Outcome(error=held_up.reason))
            return
        succeeded = self.succeeded.pop(head.record.id, None)
        if succeeded is not None:
            self._end(run, succeeded)
            return
        if effect.repeat == "never" and head.record.started != self._epoch:
            if head.record.started is not msgspec.UNSET:
                self._end(run, Outcome(error=_CUT_SHORT, is_final=True, is_unknown=True))
                return
            if effect.permits is None:
                self._started[raw_key] = head.store_key
                self._end(run, Outcome(is_start=True))
                return
        running = asyncio.create_task(self._attempt(run, effect), name=f"effect {effect.name} {head.record.id}")
        self._running[running] = run
        # One that is cancelled before its first step never comes to its end.
        running.add_done_callback(lambda ended: self._running.pop(ended, None))

    def call_in(self, running: asyncio.Task[Any]) -> str | None:
        """Return the id of the call that an asyncio task makes; None if it makes none."""
        run = self._running.get(running)
        return None if run is None else run.head.record.id

    def _end(self, run: Run, outcome: Outcome) -> None:
        if not outcome.is_start:
            self._started.pop(run.raw_key, None)
        run.outcome = outcome
        self._unhandled += 1
        self._ended.append(run)

    async def _attempt(self, run: Run, effect: Effect) -> None:
        running: Any = asyncio.current_task()
        try:
            if effect.repeat == "never" and run.head.record.started is msgspec.UNSET:
                outcome = await self._permitted(run, effect)
            else:
                outcome = await self._made(run, effect)
            # Not at the task's end: that this call has ended leaves room for another.
            self._running.pop(running, None)
            self._end(run, outcome)
            self._go_on()
        except EXITS:
            raise
        except BaseException as error:
            if is_closed(error, running):
                raise
            # The store's: nobody awaits this task, so the processor is told.
            self._failure = error
        finally:
            self._wake()

    def _begin(self, run: Run, effect: Effect) -> bool:
        """Return whether a call may be made: one that waited for its permit may have been dropped meanwhile."""
        # Not before the function is called: a call that is cancelled before its first step wasn't made.
        self._started.pop(run.raw_key, None)
        head = run.head if effect.permits is None else self._lines.head(run.raw_key)
        return head is not None and head.mark == run.head.mark

    async def _permitted(self, run: Run, effect: Effect) -> Outcome:
        """Wait for the permit of a call that is never repeated: one that only waits hasn't begun."""
        permit = await self._attempts.permit(run.head, effect)
        if isinstance(permit, Outcome):
            return permit
        self._permits[run.raw_key], self._started[run.raw_key] = permit, run.head.store_key
        return Outcome(is_start=True)

    async def _made(self, run: Run, effect: Effect) -> Outcome:
        begin, permit = partial(self._begin, run, effect), self._permits.pop(run.raw_key, None)
        attempt = self._attempts.make(run.raw_key, run.head, effect, begin=begin, permit=permit)
        tracing = self._spec.tracing
        return await (attempt if tracing is None else tracing.effect(run.head.record, attempt))

    def _report(self, run: Run, outcome: Outcome) -> _Report | None:
        """Return what the actor is told of an outcome; None for nothing."""
        record, methods = run.head.record, self._spec.methods
        if outcome.error is None:
            then = None if record.then is msgspec.UNSET else record.then
            return None if outcome.value is None else _Report(then, outcome.value, outcome.headers)
        effect = self._functions.get(record.name)
        if effect is None or methods is None or not outcome.is_last(effect, record.attempts + 1):
            return None
        error, method = outcome.error[:_ERROR_CHARS], effect.on_give_up
        value: GivenUp | Unknown = GivenUp(record.name, record.id, record.attempts + 1, error)
        if outcome.is_unknown:
            value, method = Unknown(record.name, record.id, error), effect.on_unknown
        return None if method is None else _Report(method, _encode((methods.told(method, value), {})), carried(record))

    def _message(self, run: Run, outcome: Outcome) -> InternalMessage:
        record, scope, report = run.head.record, self._state.scope, self._report(run, outcome)
        internal_record = InternalRecord(
            offset=scope.source_offset,
            timestamp=max(scope.now_ms, self._clock.wall_ms()),
            key=run.raw_key,
            value=None if report is None else report.value,
            headers=() if report is None else report.headers,
            id=result_id(record.id),
            method=None if report is None else report.method,
        )

        def consume(ctx: Context) -> bool:
            return ctx._state is not None and self._consume(ctx._state, run, outcome, report)

        def handled() -> None:
            run.is_done = True
            self._unhandled -= 1
            if not self._is_closed and self._runs.get(run.raw_key) is run:
                self._review(run.raw_key)
                self._go_on()

        what = f"the outcome of effect {record.name!r} ({record.id})"
        return InternalMessage(internal_record, consume, handled, what)

    def _consume(self, state: TaskState, run: Run, outcome: Outcome, report: _Report | None) -> bool:
        """Write what an outcome says; tell whether there is something to handle."""
        record = self._recorded(state, run)
        if record is None:
            return False
        if outcome.is_start:
            self._write(state, run.head.store_key, msgspec.structs.replace(record, started=self._epoch))
        elif outcome.error is None or report is not None:
            state.overlays[self._store].delete(run.head.store_key)
            if outcome.error is not None:
                self._bury(state, run, record, outcome, is_told=True)
        else:
            self._write(state, run.head.store_key, self._failed(state, run, record, outcome))
        return report is not None

    def _recorded(self, state: TaskState, run: Run) -> EffectRecord | None:
        """Return a call's record as a message sees it; None if it was dropped."""
        raw = state.overlays[self._store].get(run.head.store_key)
        record = None if raw is None else decoded(raw)
        return record if record is not None and record.id == run.head.record.id else None

    def _failed(self, state: TaskState, run: Run, record: EffectRecord, outcome: Outcome) -> EffectRecord:
        """Return the record after a failed attempt, and say so."""
        error = (outcome.error or "")[:_ERROR_CHARS]
        effect = self._functions.get(record.name)
        attempts = record.attempts + (effect is not None)
        if effect is None or outcome.is_last(effect, record.attempts + 1):
            self._bury(state, run, record, outcome, is_told=False)
            return msgspec.structs.replace(record, attempts=attempts, error=error, parked=True)
        wait_s = max(effect.wait_s(attempts), retry_after_s(outcome.cause))
        logger.warning(
            "%s: effect %s (%s) failed in attempt %d: %s; the next is in %g s",
            self._where(run),
            record.name,
            record.id,
            attempts,
            error,
            wait_s,
        )
        now_ms = max(self._state.scope.now_ms, self._clock.wall_ms())
        return msgspec.structs.replace(
            record, attempts=attempts, error=error, next_ms=now_ms + math.ceil(wait_s * 1000), parked=False
        )

    def _bury(self, state: TaskState, run: Run, record: EffectRecord, outcome: Outcome, *, is_told: bool) -> None:
        """Log a call that failed for good, and send a dead letter where the actor has these."""
        attempts = record.attempts + (record.name in self._functions)
        what = "has an unknown outcome" if outcome.is_unknown else f"failed in attempt {attempts}"
        level, follows = logging.WARNING, "Its actor is told, and later effects of its key go on"
        if not is_told:
            level = logging.ERROR
            follows = (
                "It is parked, and later effects of its key wait behind it: try it again with "
                f"`faust parked retry {self._spec.name} KEY`, or give it up with `faust parked drop`"
            )
        error = (outcome.error or "")[:_ERROR_CHARS]
        text, where = "%s: effect %s (%s) %s: %s. %s", self._where(run)
        logger.log(level, text, where, record.name, record.id, what, error, follows, exc_info=outcome.cause)
        letter = InternalRecord(
            offset=state.scope.source_offset,
            timestamp=state.scope.now_ms,
            key=run.raw_key,
            value=msgspec.json.encode({"args": record.args, "kwargs": record.kwargs}),
            headers=[*carried(record), (EFFECT_HEADER, record.name.encode())],
        )
        try:
            send_dead_letter(self._spec, state, letter, reason=f"effect {record.name}: {error}", attempts=attempts)
        except RecordTooLargeError as too_large:
            logger.error("%s: effect %s (%s): no dead letter: %s", where, record.name, record.id, too_large)

    def _where(self, run: Run) -> str:
        return f"actor {self._spec.name}, partition {self._state.partition}, key {show_bytes(run.raw_key)}"


@dataclass(frozen=True, slots=True)
class _Report:
    """The arguments of the method that is told an outcome, or a message where `method` is None."""

    method: str | None
    value: bytes
    headers: Sequence[tuple[str, bytes]]
