"""One message to its end: the handler, and when it raises what the actor's policy says."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, field
from typing import Any

from mypy_extensions import mypyc_attr

from actors._core.logs import escaping, text_of
from actors._core.outside import caused
from actors.errors import (
    CommitRefusedError,
    HandlerFailedError,
    LateRecordError,
    NewerProgramError,
    RecordError,
    RecordTooLargeError,
    RefusedRecordError,
    Rejected,
    UndecodableRecordError,
    UnreadableRecordError,
    UnresolvedSchemaError,
    show_bytes,
)
from actors.ports import InputRecord, RefusedRecord, TopicPartition
from actors.runtime.cancellation import running_task
from actors.runtime.commands import is_command
from actors.runtime.inputs.time_order import waits_its_turn
from actors.runtime.message.context import Context, enter_message
from actors.runtime.message.failures import (
    NULL_KEY,
    NULL_VALUE,
    PartlyFailedError,
    as_record_error,
    cause_of,
    failures_of,
    refused,
    undecodable,
)
from actors.runtime.message.internal_messages import InternalMessage, InternalRecord
from actors.runtime.message.task_state import TaskState
from actors.runtime.message.unresolved import await_schema
from actors.runtime.quarantine.quarantine import Parked, describe, send_dead_letter
from actors.runtime.spec import ActorSpec, InputSpec
from actors.runtime.task.context import MessageId, PoisonTracking
from actors.runtime.timers.timers import Timers

logger = escaping(logging.getLogger(__name__))

_LASTING = UndecodableRecordError | NewerProgramError | LateRecordError
"""Errors that a further attempt would meet again."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True)
class Handling:
    """How messages of one partition are handled, from a takeover to the next.

    `parked` is None if the actor takes no commands. `timers` tell whether they can go by a record's time. `wait` lets
    so many seconds pass, with nothing of the message held; it raises GivenBack if the task ends.

    Attributes:
        poisoned: by `identity`, why a message isn't handled again.
        dropped: the internal messages that an operator gave up.
        concerns: returns whether a record is, or may be, one for `intercept`.
        intercept: carries out a command, or puts a message behind the parked ones of its key; returns whether it did.
        internal_id: the internal message that is handled now.
        runners: the asyncio tasks in which handlers run.
    """

    spec: ActorSpec
    parked: Parked | None
    poison: PoisonTracking
    is_ending: Callable[[], bool]
    wait: Callable[[float], Awaitable[None]]
    timers: Timers | None = None
    poisoned: dict[MessageId, RecordError] = field(init=False)
    dropped: Container[MessageId] = field(init=False)
    inputs: dict[str, InputSpec] = field(init=False)
    concerns: Callable[[InputRecord], bool] = field(init=False)
    intercept: Callable[..., Awaitable[bool]] = field(init=False)
    internal_id: MessageId | None = None
    runners: Container[Any] = ()

    def __post_init__(self) -> None:
        self.poisoned, self.dropped = self.poison.poisoned, self.poison.dropped
        self.runners = (running_task(),)
        self.inputs = {one.topic: one for one in self.spec.inputs}
        self.concerns, self.intercept = is_command, self._skip_command
        if self.parked is not None:
            self.concerns, self.intercept = self.parked.may_concern, self.parked.intercept

    async def message(self, state: TaskState, record: InputRecord, internal: InternalMessage | None = None) -> None:
        """Handle a message whose key nobody else is handling.

        Raises:
            RecordError: the partition has to stop in front of it.
        """
        if state.newer is not None:
            raise state.newer
        if isinstance(record, RefusedRecord):
            await self._refuse(state, record)
        elif not (
            ((self.poisoned or self.dropped) and self._settle_known(state, record, internal))
            or (self.concerns(record) and await self._intercept(state, record, internal))
        ):
            sent = len(state.outputs)
            try:
                await self.once(state, record, internal)
            except BaseException as error:
                await self.recover(state, record, error, sent, internal)
            state.scope.release()

    async def _refuse(self, state: TaskState, record: RefusedRecord) -> None:
        """Do what the policy says about a record that can't be a message, or put it behind the parked ones of its key.

        Raises:
            RecordError: the partition has to stop. Records without readable keys can't be parked: later messages of
                their keys couldn't wait.
        """
        failed, original = record.error, record.original
        failed.topic, failed.partition = state.source
        if record.stops or (original is None and self.spec.then_for(record, failed) == "park"):
            raise failed
        original = original or record
        # What is wrong with it is found again when its turn comes, unless the client lost a part of it.
        may_wait = not isinstance(failed, UnreadableRecordError) and self.concerns(original)
        if not self._settle_known(state, original) and not (may_wait and await self._intercept(state, original)):
            await self.recover(state, original, failed, len(state.outputs))

    def _settle_known(self, state: TaskState, record: InputRecord, internal: InternalMessage | None = None) -> bool:
        """Settle a message that is known to fail, or that an operator dropped; return whether it is one."""
        id = identity(state.source, record)
        if internal is not None and id in self.dropped:
            logger.warning("%s key %s: %s is dropped on command", state.source, show_bytes(record.key), internal.what)
            self._consume(state, record, internal, len(state.outputs))
            state.scope.release()
            return True
        # It stays known until that is committed: the broker may refuse the dead letter too.
        failed = self.poisoned.get(id)
        if failed is not None:
            failed.offset, failed.key = record.offset, record.key
            self.give_up(state, record, failed, 1, internal)
        return failed is not None

    async def _intercept(self, state: TaskState, record: InputRecord, internal: InternalMessage | None = None) -> bool:
        # A record that has yet to come to its turn goes behind the parked ones of its key then.
        is_early = internal is None and self.spec.order is not None and waits_its_turn(record)
        if is_early or (internal is not None and internal.handle is not None):
            return False
        return await self.intercept(state, record, self, internal)

    async def _skip_command(
        self, state: TaskState, record: InputRecord, _: Handling, internal: InternalMessage | None
    ) -> bool:
        """Skip a command to an actor that parks nothing and has no effects."""
        if internal is None:
            text = "%s offset %d: a control record is skipped: actor %s has nothing that it could be about"
            logger.warning(text, state.source, record.offset, self.spec.name)
        return internal is None

    async def once(self, state: TaskState, record: InputRecord, internal: InternalMessage | None = None) -> None:
        """Call the handler; what it wrote can still be taken back. When it raises, it has to be: see `undone`."""
        at = self.inputs[state.source.topic]
        ctx = Context(state, record, None, record.key or b"")
        try:
            if internal is not None:
                self.internal_id = identity(state.source, record)
                enter_message(ctx)
                is_wanted = internal.consume(ctx)
                if is_wanted and internal.handle is not None:
                    await internal.handle(ctx)
                    is_wanted = False
                if not is_wanted:
                    return
            if type(record) is InternalRecord and record.method is not None:
                await self._call(ctx, at, record)
            else:
                ctx.key, value = self._read(state, at, record)
                enter_message(ctx)
                await at.handler(ctx, value)
            if state.newer is not None:
                raise state.newer
        finally:
            self.internal_id = None
            ctx._state = None

    async def _call(self, ctx: Context, at: InputSpec, record: InternalRecord) -> None:
        """Call a private method of the actor."""
        if self.spec.methods is None:
            raise AssertionError(f"actor {self.spec.name} has no methods")
        ctx.key = None if record.key is None else at.decode_key(record.key)
        enter_message(ctx)
        await self.spec.methods.handle(ctx, record.value)

    def _read(self, state: TaskState, at: InputSpec, record: InputRecord) -> tuple[Any, Any]:
        """Return the key and the value of a message.

        Raises:
            RecordError: it isn't what the input declares, or its time is one that timers can't go by.
        """
        raw_key, raw_value = record.key, record.value
        if raw_value is None and not at.tombstones:
            raise undecodable(state.source, record, NULL_VALUE)
        if raw_key is None and self.spec.needs_key and not at.is_keyless:
            raise undecodable(state.source, record, NULL_KEY)
        try:
            key = None if raw_key is None else at.decode_key(raw_key)
            value = None if raw_value is None else at.decode_value(raw_value)
        except UnresolvedSchemaError:
            raise
        except BaseException as error:
            raise caused(undecodable(state.source, record, error), error) from error
        if self.timers is not None:
            self.timers.check(state.source, record)
        return key, value

    def undone(
        self, state: TaskState, record: InputRecord, error: BaseException, sent: int, *, written: int = 0
    ) -> RecordError:
        """Take back what an attempt wrote and sent, and give why it failed, as an error that names the message.

        The first `written` writes that could be taken back aren't the attempt's: they stay.

        Raises:
            NewerProgramError: the attempt met data of a newer program: that is no failure of the message's, and no
                policy is asked. Only a message of an unknown type is parked where the actor parks: nothing is lost.
            BaseException: `error` itself, if it is the store's, or the end of the task.
        """
        state.scope.rollback(written)
        del state.outputs[sent:]
        newer = state.newer
        if newer is not None and newer.offset == record.offset:
            # That of an earlier record stays: what its handler made of the error is held, and must not be committed.
            state.newer = None
        # A coroutine that somebody closes doesn't run: only a handler that does can have raised what ends it.
        is_ending = running_task() not in self.runners if isinstance(error, GeneratorExit) else self.is_ending()
        failed = as_record_error(error, self.spec.name, state.source, record, is_ending=is_ending)
        if newer is not None:
            raise newer
        if isinstance(failed, NewerProgramError):
            is_parked = failed.is_message and self.spec.then_for(record, failed) == "park"
            if not is_parked:
                raise failed
        return failed

    async def recover(
        self,
        state: TaskState,
        record: InputRecord,
        error: BaseException,
        sent: int,
        internal: InternalMessage | None = None,
    ) -> None:
        """Do what the policy says after an attempt that raised; when it returns, the message is done with.

        Raises:
            RecordError: the partition has to stop in front of the message.
        """
        policy, attempts = self.spec.on_error, 1
        while True:
            if isinstance(error, UnresolvedSchemaError):
                state.scope.rollback()
                del state.outputs[sent:]
                await await_schema(error, self.wait)
                attempts = 1
            else:
                failed = self.undone(state, record, error, sent)
                if self.is_rejected(failed):
                    self.reject(state, record, failed, internal)
                    break
                retries = 0 if isinstance(failed, _LASTING) else policy.retries_for(cause_of(failed))
                if attempts > retries:
                    self.give_up(state, record, failed, attempts, internal)
                    return
                logger.warning("%s; attempt %d of %d", failed.reason, attempts, retries + 1)
                await self.wait(policy.wait_s(attempts))
                state.scope.now_ms = state.tools.now_ms(state.scope.now_ms)
                attempts += 1
            sent = len(state.outputs)
            try:
                await self.once(state, record, internal)
            except BaseException as again:
                error = again
            else:
                break
        state.scope.release()

    def is_rejected(self, failed: RecordError) -> bool:
        """Return whether the error of an attempt is one by which a handler refuses a message."""
        return isinstance(failed, HandlerFailedError) and isinstance(
            failed.__cause__, (Rejected, *self.spec.on_error.reject)
        )

    def give_up(
        self,
        state: TaskState,
        record: InputRecord,
        failed: RecordError,
        attempts: int,
        internal: InternalMessage | None = None,
    ) -> None:
        """Stop, skip or park, as the policy says.

        Raises:
            RecordError: it says stop, or the message is too large to be parked.
        """
        then, sent = self.spec.then_for(record, failed), len(state.outputs)
        if internal is not None:
            failed.internal = (self.spec.name, str(identity(state.source, record)))
        can_wait = internal is None or internal.handle is None
        is_final = isinstance(failed, RefusedRecordError) and failed.is_final
        stops = then == "stop" or isinstance(failed, LateRecordError)
        if stops or is_final or (then == "park" and not can_wait):
            raise failed
        if then == "park" and self.parked is not None and self.spec.parked is not None:
            # Before all else: it raises where there is no room, and nothing else may have been sent then.
            self.parked.park(state, record, failed, attempts)
        else:
            self._skip(state, record, failed, attempts)
        self._consume(state, record, internal, sent)
        if self.spec.answers is not None:
            self.spec.answers.failed(state, record, failed)
        state.scope.release()

    def _skip(self, state: TaskState, record: InputRecord, failed: RecordError, attempts: int) -> None:
        """Log what is skipped, for each actor that it is skipped for, and send the others what is for them."""
        where = f"{failed.topic}[{failed.partition}] offset {failed.offset}"
        if isinstance(failed.__cause__, PartlyFailedError):
            state.outputs += failed.__cause__.kept
        for actor, one in failures_of(self.spec.name, failed, state.source, record).items():
            text, about = "%s: %s: skipped after %d attempts", {"about": one}
            logger.error(text, where, one.reason, attempts, exc_info=one.__cause__, extra=about)
            self._send_dead_letter(state, record, actor, one, attempts)

    def _send_dead_letter(
        self, state: TaskState, record: InputRecord, actor: str, failed: RecordError, attempts: int
    ) -> None:
        """Send what is skipped to the dead letters, if the policy wants that; one that doesn't fit is only logged."""
        if not self.spec.on_error.dead_letters:
            return
        try:
            send_dead_letter(self.spec, state, record, actor=actor, reason=describe(failed), attempts=attempts)
        except RecordTooLargeError as error:
            logger.error("%s offset %d: no dead letter: %s", state.source, record.offset, error)

    def reject(
        self, state: TaskState, record: InputRecord, failed: RecordError, internal: InternalMessage | None
    ) -> None:
        """Answer the client that the handler refused the message, which is thereby handled."""
        self._consume(state, record, internal, len(state.outputs))
        rejected = cause_of(failed)
        if self.spec.answers is not None:
            self.spec.answers.rejected(state, record, rejected)
        logger.info("%s offset %d: rejected: %s", state.source, record.offset, text_of(rejected))

    def _consume(self, state: TaskState, record: InputRecord, internal: InternalMessage | None, sent: int) -> None:
        """Take an internal message's entry out of its store, though the message isn't handled.

        Raises:
            RecordError: it can't be taken out. The partition has to stop, since the message would come again.
        """
        if internal is None:
            return
        ctx = Context(state, record, None, record.key or b"")
        try:
            internal.consume(ctx)
        except Exception as error:
            raise caused(self.undone(state, record, error, sent), error) from error
        finally:
            ctx._state = None


def blame(
    spec: ActorSpec, poison: PoisonTracking, source: TopicPartition, record: InputRecord, error: CommitRefusedError
) -> tuple[RecordError, bool]:
    """Return the error of a record that was committed alone and is refused, and whether the record is given up.

    One that is given up is tried again with all that wasn't committed, and dealt with as the actor's policy says.
    """
    who, given_up = identity(source, record), poison.given_up
    found = refused(spec.name, source, record, error, is_final=who in given_up)
    if (internal_id := getattr(record, "id", None)) is not None:
        found.internal = (spec.name, internal_id)
    found.is_passed = spec.concurrency > 1
    gives_up = who not in poison.poisoned and (spec.then_for(record, found) != "stop" or spec.concurrency > 1)
    if gives_up:
        poison.poisoned[who] = found
        given_up.add(who)
    return found, gives_up


def identity(source: TopicPartition, record: InputRecord) -> MessageId:
    """Return what tells a message of a task from all others; `source` is where it came from."""
    own: str | None = getattr(record, "id", None)
    if own is None and isinstance(record, InternalRecord) and record.what:
        # It waited for its turn, and is named in commands.
        own = f"{source.topic}-{record.offset}"
    return own or (source.topic, record.offset)
