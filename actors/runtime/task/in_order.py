"""Messages one after the other, in the order of their inputs: the executor of actors without `concurrency`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from actors.errors import RecordError, UnresolvedSchemaError
from actors.ports import InputRecord, Output, TopicPartition
from actors.runtime.cancellation import GivenBack
from actors.runtime.commands import is_command
from actors.runtime.inputs.progress import InputProgress, Run
from actors.runtime.message.context import Context, enter_message
from actors.runtime.message.failures import undecodable
from actors.runtime.task.context import MessageId
from actors.runtime.task.handling import identity
from actors.runtime.task.processor import Executor, TaskProcessor

YIELD_EVERY_S = 0.005
"""How long a task handles records before other tasks and the heartbeat get their turn."""
DUE_S, MOST_DUE_S = 0.001, 0.01
"""How long what is due has its turn: as long as the records before it took, within these bounds."""
LOOPS_BETWEEN_DUE = 6  # iterations of the event loop: a fetch takes several, and must not wait for turns in each
_SIZE_MASK = 15  # how much is held is looked at every 16 messages


class InOrder(Executor):
    """Handles one message at a time."""

    def __init__(self, processor: TaskProcessor) -> None:
        super().__init__(processor)
        self._pause_s = 0.0
        inputs, timers, time = processor.inputs, self._handling.timers, processor.time
        # By input, what a record's time moves on, which returns whether something is due; None where nothing ever is.
        moves_time: Sequence[Callable[[int], bool] | None]
        moves_time = time.saw if time else [None if timers is None else timers.saw] * len(inputs)
        specs = [one.spec for one in inputs]
        self._ways = [
            (spec.handler, spec.decode_key, spec.decode_value, moves_time[index]) for index, spec in enumerate(specs)
        ]

    async def advance(self) -> bool:
        """Handle the records that wait, or what is due; return whether there was any."""
        processor = self._processor
        if self._inbox.is_paused:
            return False
        if self._inbox:
            began_s = processor.clock.monotonic()
            await self.handle(processor.runs())
            await processor.punctuate(processor.clock.monotonic() - began_s)
        elif processor.is_clean or not await processor.punctuate():
            return False
        else:
            for _ in range(LOOPS_BETWEEN_DUE):
                await processor.clock.sleep(0)
        return True

    async def handle(self, runs: Iterable[Run]) -> None:
        """Handle records, up to one that stops the partition."""
        processor = self._processor
        processor.begin()
        try:
            if self._is_due():
                # A former owner committed the record that made a timer due.
                await self._handle_timers(processor.at)
            await self._handle(runs)
        finally:
            self._go_home()

    def _is_due(self) -> bool:
        """Return whether something is due without another record: no record has the time -1."""
        return any(moves_time is not None and moves_time(-1) for _, _, _, moves_time in self._ways)

    async def _handle(self, runs: Iterable[Run]) -> None:
        """Handle records one after the other. Hot: what can be is in a local variable, what is seldom in a call."""
        processor = self._processor
        inbox = self._inbox
        messages = processor.messages
        scope = processor.scope
        undo = scope.undo
        monotonic = processor.clock.monotonic
        is_watched = self._is_watched
        is_special = self._is_special if is_watched else is_command
        outputs = messages.outputs
        pause_s = self._next_pause_s()
        is_due = False
        for one, records in runs:
            self._turn_to(one)  # once a record where inputs take turns
            handler, decode_key, decode_value, moves_time = self._ways[one.index]
            for record in records:
                offset, raw_key, raw_value = record.offset, record.key, record.value
                if offset < one.next_offset:
                    continue
                scope.source_offset = offset
                if raw_key is None or raw_value is None or ((is_watched or record.headers) and is_special(record)):
                    outputs = await self._handle_special(record)
                else:
                    sent = len(outputs)
                    ctx = None
                    try:
                        key, value = decode_key(raw_key), decode_value(raw_value)
                        ctx = Context(messages, record, key, raw_key)
                        enter_message(ctx)
                        await handler(ctx, value)
                    except BaseException as error:
                        outputs = await self._recover(record, ctx, error, sent)
                    else:
                        ctx._state = None
                        undo.clear()
                one.next_offset = offset + 1
                processor.handled += 1
                if moves_time is not None and not (record.headers and is_command(record)):
                    is_due = moves_time(record.timestamp)
                if (
                    is_due  # before the next record, which could replace a timer
                    or monotonic() >= pause_s
                    or (not processor.handled & _SIZE_MASK and processor.is_large())
                ):
                    outputs = await self._pause(one, record, is_due)
                    pause_s = self._next_pause_s()
                    is_due = False
                if inbox.stopping:
                    return

    def _turn_to(self, one: InputProgress) -> None:
        """Note which input the next record is of."""
        processor, messages, scope = self._processor, self._processor.messages, self._processor.scope
        if one is not processor.at:
            processor.at, scope.input, scope.source_offset = one, one.index, one.next_offset - 1
        messages.source, messages.message_tag = one.source, one.topics.message_tag
        messages.home_offset = processor.inputs[0].next_offset

    def _go_home(self) -> None:
        """Note that what comes next belongs to no record, so to the first input."""
        messages, home = self._processor.messages, self._processor.inputs[0]
        messages.source, messages.message_tag = home.source, home.topics.message_tag
        messages.home_offset = home.next_offset

    async def _recover(self, record: InputRecord, ctx: Context | None, error: BaseException, sent: int) -> list[Output]:
        """Do with a message that failed what the policy says; return the outputs, which a commit may have renewed."""
        messages = self._processor.messages
        if ctx is not None:
            ctx._state = None
        elif not isinstance(error, UnresolvedSchemaError):
            error = undecodable(messages.source, record, error)
        await self._handling.recover(messages, record, error, sent)
        return messages.outputs

    @property
    def _is_watched(self) -> bool:
        """Return whether anything has to be asked about each record before its handler is called."""
        handling = self._handling
        if handling.poisoned or handling.parked is not None or handling.timers is not None:
            return True
        return any(one.completed.finished for one in self._processor.inputs)

    def _is_special(self, record: InputRecord) -> bool:
        """Return whether it may wait behind a parked one, or is a command, poisoned, finished or far ahead."""
        at, handling = self._processor.at, self._handling
        if handling.poisoned and identity(at.source, record) in handling.poisoned:
            return True
        timers = handling.timers
        is_known = record.offset in at.completed.finished or (timers is not None and timers.may_refuse(record))
        return is_known or handling.concerns(record)

    async def _handle_timers(self, one: InputProgress) -> list[Output]:
        """Handle all that is due; return the outputs, which a commit may have renewed.

        So which of a key's records finds a timer fired doesn't depend on the batches in which they came.
        """
        processor, inbox = self._processor, self._inbox
        self._go_home()
        while processor.may_take and not inbox.stopping and processor.due.take():
            await self.handle_due(MOST_DUE_S)
            await self._yield()
        self._turn_to(one)
        return processor.messages.outputs

    async def _handle_special(self, record: InputRecord) -> list[Output]:
        """Handle a message with all precautions; return the outputs, which a commit may have renewed."""
        messages = self._processor.messages
        # An earlier owner, who handled keys side by side, may have finished it.
        if record.offset not in self._processor.at.completed.finished:
            await self._handling.message(messages, record)
        return messages.outputs

    async def handle_due(self, took_s: float) -> None:
        """Handle what is due as if it were messages behind the last one, until it is the records' turn again."""
        processor, messages, monotonic = self._processor, self._processor.messages, self._processor.clock.monotonic
        processor.begin()
        began_s, home = monotonic(), processor.inputs[0].source
        for internal in processor.due:
            is_careful = monotonic() < processor.context.poison.careful_internal_s
            if is_careful:
                # It isn't to blame for what was handled before.
                await processor.commit()
            processor.scope.source_offset, messages.source = processor.reached - 1, internal.source or home
            failure = None
            try:
                await self._handling.message(messages, internal.record, internal)
            except RecordError as error:
                # It isn't raised here: see `work` of the processor.
                failure = error
            finally:
                messages.source = home
            if failure is not None:
                await processor.commit()
                raise failure
            internal.handled()
            await processor.commit_if_due(internal.record, is_careful=is_careful)
            inbox, took_most_s = self._inbox, min(max(took_s, DUE_S), MOST_DUE_S)
            if inbox.stopping or inbox.is_paused or monotonic() - began_s >= took_most_s:
                return

    async def let_pass(self, seconds: float) -> None:
        """Commit what is before a message, and wait before it is tried again; raise GivenBack if the task ends."""
        processor, inbox = self._processor, self._inbox
        await processor.commit()
        until_s = processor.clock.monotonic() + seconds
        while (left_s := until_s - processor.clock.monotonic()) > 0.0 or inbox.is_paused:
            if inbox.stopping:
                raise GivenBack
            await (processor.stay_paused() if inbox.is_paused else inbox.wait(left_s))

    def _next_pause_s(self) -> float:
        """Return the time after which the run of messages is interrupted: for a commit, or to let others run."""
        processor = self._processor
        is_careful = processor.context.poison.careful_until
        if is_careful and any(processor.is_suspect(one, one.next_offset) for one in processor.inputs):
            return 0.0
        now_s = processor.clock.monotonic()
        if now_s >= self._pause_s:  # what comes in small batches asks for each of them
            self._pause_s = min(processor.commit_at_s(now_s), now_s + YIELD_EVERY_S)
        return self._pause_s

    async def _pause(self, one: InputProgress, record: InputRecord, is_due: bool) -> list[Output]:
        """Commit if it is time, let others run, then handle what is due; return the outputs, which may be renewed.

        What is due comes last, as a record that the broker may refuse is committed alone.
        """
        processor = self._processor
        await processor.commit_if_due(record, is_careful=processor.is_suspect(one, record.offset))
        await self._yield()
        return await self._handle_timers(one) if is_due else processor.messages.outputs

    async def _yield(self) -> None:
        processor = self._processor
        await (processor.stay_paused() if self._inbox.is_paused else processor.clock.sleep(0))

    @property
    def in_hand(self) -> tuple[TopicPartition, int] | None:
        """The input record that is being handled, with its offset; None if there is none."""
        at, offset = self._processor.at, self._processor.scope.source_offset
        return (at.source, offset) if offset >= at.next_offset else None

    def message_in(self, running: asyncio.Task[object], *, is_loop: bool) -> MessageId | None:
        """Return the message that is being handled if the asyncio task is the one that runs `work`."""
        if not is_loop:
            return None
        return self._handling.internal_id if (at := self.in_hand) is None else (at[0].topic, at[1])
