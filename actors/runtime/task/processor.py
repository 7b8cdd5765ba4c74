"""What a task does from one takeover to the next: messages, what comes due between them, and commits.

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
from collections.abc import Iterable, Sequence

from actors._core.logs import escaping
from actors._core.task.lifecycle import Event
from actors.errors import (
    ActorsError,
    CommitRefusedError,
    LogWentBackError,
    NewerVersionError,
    RecordError,
    RefusedRecordError,
    RestoreError,
)
from actors.ports import CommitBatch, InputRecord, Output, TopicPartition
from actors.runtime.cancellation import GivenBack
from actors.runtime.commands import is_command
from actors.runtime.handlers.expiry import Sweeper
from actors.runtime.inputs.inbox import take_in_order
from actors.runtime.inputs.misplaced import PlacedRecords
from actors.runtime.inputs.progress import InputProgress, Run
from actors.runtime.message.context import Context, enter_message
from actors.runtime.message.failures import undecodable
from actors.runtime.message.internal_messages import DueMessages
from actors.runtime.message.store import Store
from actors.runtime.state.restore import Restored
from actors.runtime.state.stores import note_time, store_commit
from actors.runtime.task.context import MessageId, TaskContext
from actors.runtime.task.handling import Handling, blame, identity
from actors.runtime.task.tools import make_state, make_time, make_tools
from actors.runtime.timers.backlog import Backlog
from stores._core.overlay import KEPT_VALUES, MessageScope, Overlay, Writes

logger = escaping(logging.getLogger(__name__))

YIELD_EVERY_S = 0.005
"""How long a task handles records before other tasks and the heartbeat get their turn."""
DUE_S, MOST_DUE_S = 0.001, 0.01
"""How long what is due has its turn: as long as the records before it took, within these bounds."""
LOOPS_BETWEEN_DUE = 6  # iterations of the event loop: a fetch takes several, and must not wait for turns in each
SWEEP_AGAIN_S = 60.0
_ROUNDING_S = 0.001
_SIZE_MASK = 15  # how much is held is looked at every 16 messages


class TaskProcessor:
    """Handles the messages of a partition that was just taken over, one at a time."""

    def __init__(self, context: TaskContext, stores: Sequence[Restored], inputs: Sequence[InputProgress]) -> None:
        self.inputs = inputs
        # What is due between messages goes with the last one, so with an input of which one was handled.
        self._at = next((one for one in inputs if one.reached > 0), inputs[0])
        self._under_way: asyncio.Task[None] | None = None
        self._under_way_bytes, self._is_ended = 0, False
        self._context = context
        self._spec = spec = context.spec
        self._name = ", ".join(str(one.source) for one in inputs)
        self._inbox, self._services, self._clock = context.inbox, context.services, context.clock
        self._policy, self._poison = context.settings.policy, context.poison
        placed = (PlacedRecords(spec, one, context.meters, context.services.clock) for one in inputs)
        self._placed = list(placed) if spec.misplaced else []
        self._scope = scope = MessageScope(context.epoch, self.reached - 1, self._clock.wall_ms())
        scope.input = self._at.index if len(inputs) > 1 else None
        self._overlays: list[tuple[Store[object, object], Overlay]] = [
            (store, Overlay(held.store, scope, KEPT_VALUES)) for store, held in zip(spec.stores, stores, strict=True)
        ]
        topics = {name: changelog.topic for name, changelog in spec.changelogs.items()}
        self._parts = [
            (topics[store.name], held, overlay) for (store, overlay), held in zip(self._overlays, stores, strict=True)
        ]
        self._published = {topics[name]: publication for name, publication in spec.published.items()}
        self._parked_topic = None if spec.parked is None else topics[spec.parked.name]
        self._messages = make_state(context, inputs[0], scope, overlays=dict(self._overlays))
        tools = make_tools(context, self._messages, [held.store for held in stores])
        self.time = make_time(context, inputs, tools)
        self._messages.tools, self._due = tools.tools, DueMessages(tools.punctuators, self.time)
        self._handling = Handling(spec, tools.parked, self._poison.poisoned, self._is_ending, self._let_pass)
        self._handling.dropped, self._handling.timers = self._poison.dropped, tools.timers
        self._saw = self.time.saw if self.time else [] if tools.timers is None else [tools.timers.saw] * len(inputs)
        sink, clock = self._services.sink, self._clock
        self.backlogs = [Backlog(one.source, one.backlog_end, lambda at: sink.position(at), clock) for one in inputs]
        if tools.timers is not None:
            tools.timers.backlog_ms = self._backlog_ms
        self._handled, self._oldest_s, self._pause_s, self._refreshed_s = 0, 0.0, 0.0, self._clock.monotonic()
        after_s = self._poison.sweep_after_s
        self._sweeper = Sweeper.over(self._overlays, [held.store for held in stores], self._clock, after_s)

    async def work(self) -> None:
        """Work until the task is asked to stop; what was handled is committed then.

        Raises:
            RecordError: a message can't be handled; all before it is committed.
            TaskError: the task has to take over again.
        """
        try:
            await self._work()
        except (GivenBack, NewerVersionError, RecordError) as error:
            await self._end_before(error)
            raise

    async def _end_before(self, error: ActorsError | GivenBack) -> None:
        """Commit what was handled before what stops the task; what the broker refuses is still held."""
        if isinstance(error, GivenBack):
            await self._leave()
        elif isinstance(error, NewerVersionError):
            # A task that stands still is read: its stores have to have all that is committed.
            await self._commit_ended()
        elif not isinstance(error, RefusedRecordError):
            await self._end_in_order()

    async def _work(self) -> None:
        inbox = self._inbox
        while not inbox.stopping:
            await self._check()
            if inbox.is_paused:
                await self._stay_paused()
            elif inbox:
                began_s = self._clock.monotonic()
                await self._handle_or_halt(self._runs())
                await self._punctuate(self._clock.monotonic() - began_s)
            elif self.is_clean:
                await self._idle()
            elif await self._punctuate():
                for _ in range(LOOPS_BETWEEN_DUE):
                    await self._clock.sleep(0)
            elif not await self._rests():
                await self._begin_commit()
        await self._leave()

    async def _stay_paused(self) -> None:
        """Commit what was handled, and nothing else until the pause is over: queries and checkpoints go on."""
        await self._commit()
        while self._inbox.is_paused and not self._inbox.stopping:
            await self._check()
            if not await self._inbox.wait(self._refresh_in_s()):
                await self._refresh_checkpoints()

    async def _leave(self) -> None:
        """Commit what was handled, and how far the input is known to be finished.

        Markers and aborted transactions behind the last record are passed: when retention has removed them, an offset
        before them would look like input that was lost. The registry keeps the offset for longer than the group does.
        """
        for one, queue in zip(self.inputs, self._inbox.queues, strict=True):
            if queue.left_at is not None and queue.left_at > one.next_offset >= queue.delivered:
                self._skip_to(one, queue.left_at)
                one.next_offset = queue.left_at
        if (owner := self._context.last_owner(self.inputs)) is not None:
            self._messages.outputs.append(self._services.encode_owner(owner))
        await self._end_in_order()

    async def _end_in_order(self) -> None:
        """Commit what was handled, then end what runs beside and commit what came of it, if anything did."""
        self._is_ended = True
        await self._commit()
        self._scope.source_offset = self.reached - 1
        await self._due.leave()
        await self._commit()

    async def close(self) -> None:
        """Drop what isn't committed, and end what runs beside. May be called twice."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
        self._scope.undo.clear()
        for _, overlay in self._overlays:
            overlay.discard()
        self._messages.outputs.clear()
        self._messages.output_bytes = 0
        await self._due.close()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left to commit but what is under way."""
        if self.time is not None and self.time.is_dirty:
            return False
        for one in self.inputs:
            if one.next_offset > one.handed_in_offset:
                return False
        return not self._messages.outputs and not any(overlay.writes for _, overlay in self._overlays)

    @property
    def held_bytes(self) -> int:
        """About how much is held that isn't committed."""
        return self._under_way_bytes + self._new_bytes

    @property
    def _new_bytes(self) -> int:
        return self._messages.output_bytes + sum(overlay.bytes_held for _, overlay in self._overlays)

    @property
    def in_hand(self) -> tuple[TopicPartition, int] | None:
        """The oldest input record that isn't finished, with its offset; None if there is none."""
        at, offset = self._at, self._scope.source_offset
        return (at.source, offset) if offset >= at.next_offset else None

    def message_in(self, running: asyncio.Task[object], *, is_loop: bool) -> MessageId | None:
        """See `Task.message_in`; `is_loop`: it is the one that runs `work`."""
        if not is_loop:
            return None if (effects := self._messages.tools.effects) is None else effects.call_in(running)
        return self._handling.internal_id if (at := self.in_hand) is None else (at[0].topic, at[1])

    @property
    def reached(self) -> int:
        """The offset behind the last record that was handled, in its input."""
        return self._at.reached

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left to do now, but for a commit that may be under way."""
        return self.is_clean and not (self._is_ended or self._due.is_busy)

    def _backlog_ms(self) -> float:
        parts = zip(self.backlogs, self.inputs, self._inbox.queues, strict=True)
        return min(backlog.lowest_ms(one.next_offset, queue.records()) for backlog, one, queue in parts)

    async def _check(self) -> None:
        """Raise what a commit failed with, or why the task has to take over again."""
        if self._under_way is not None and self._under_way.done():
            await self._commit_ended()
        if self.time is not None:
            self.time.follow()
        doubt, self._inbox.doubt = self._inbox.doubt, None
        if doubt is not None:
            raise RestoreError(doubt)

    def _runs(self) -> Iterable[Run]:
        return take_in_order(self._inbox, self.inputs, self._placed, self._spec.turns)

    def _is_ending(self) -> bool:
        return self._inbox.stopping

    def _rest_s(self) -> float:
        return math.inf if self._under_way is not None else self._context.log.ready_in_s()

    async def _rests(self) -> bool:
        """Wait for records as long as no commit may begin yet; tell whether there was something to wait for."""
        if (left_s := self._rest_s()) > 0.0:
            await self._inbox.wait(left_s)
        return left_s > 0.0

    async def _idle(self) -> None:
        if await self._inbox.wait(min(self._refresh_in_s(), self._due_in_s())):
            # What runs beside wakes a task too.
            await self._punctuate()
        elif not await self._punctuate() and self._refresh_in_s() <= _ROUNDING_S:
            await self._refresh_checkpoints()

    def _refresh_in_s(self) -> float:
        return self._refreshed_s + self._context.settings.checkpoint_refresh_s - self._clock.monotonic()

    def _due_in_s(self) -> float:
        wait_s = self._inbox.wait_s
        if self._sweeper is not None:
            wait_s = min(wait_s, self._sweeper.wait_s())
        if self._may_take:
            wait_s = min(wait_s, self._due.wait_s())
        return self._clock.rest_s(wait_s)

    @property
    def _may_take(self) -> bool:
        """Whether internal messages can be handled: before the first input a write has no offset to come from."""
        return self.reached > 0

    async def _punctuate(self, took_s: float = 0.0) -> bool:
        """Do some of what is due, after records that took so long; tell whether anything was due."""
        if self._inbox.is_paused:
            return False
        was_due = self._may_take and not self._inbox.stopping and self._due.take()
        if was_due:
            await self._handle_due(took_s)
        if (sweeper := self._sweeper) is not None and not sweeper.wait_s():
            was_due = True
            await self._sweep(sweeper)
        return was_due

    async def _sweep(self, sweeper: Sweeper) -> None:
        """Remove some of what has expired in a commit of its own, so that no message is blamed if it is refused."""
        await self._commit()

        def is_over() -> bool:
            # What was taken back still counts as held until the next commit, which there is only after a write.
            return self._inbox.stopping or (not self.is_clean and self._is_large())

        await sweeper.sweep(self._messages, self.reached, is_over, self._is_busy)
        try:
            await self._commit()
        except CommitRefusedError:
            self._poison.sweep_after_s = self._clock.monotonic() + SWEEP_AGAIN_S
            text = "%s: the broker refuses what expired keys led to: they are tried again in %.0f s"
            logger.exception(text, self._name, SWEEP_AGAIN_S)
            raise

    def _is_busy(self, _: bytes) -> bool:
        """Whether a message of the key is being handled."""
        return False

    async def _refresh_checkpoints(self) -> None:
        """Note that the checkpoint is still the truth, so that an idle worker isn't taken for one that was away.

        Only while the group knows us: a zombie's checkpoint is not the truth. The time is from before the question.
        The committed offset moves past markers and aborted transactions, as in `_leave`.
        """
        for one, queue in zip(self.inputs, self._inbox.queues, strict=True):
            reached = self._services.sink.position(one.source)
            # A task may be paused in the middle of what it took, and hold records that aren't handled.
            if reached is not None and reached > one.next_offset >= queue.delivered:
                self._skip_to(one, reached)
        await self._commit()
        self._note_time()
        asked_ms = self._services.clock.wall_ms()
        await self._context.confirm()
        await note_time([held.store for _, held, _ in self._parts], asked_ms)
        self._refreshed_s = self._clock.monotonic()

    def _skip_to(self, one: InputProgress, offset: int) -> None:
        """Go on at `offset`: there is no record before it that isn't finished."""
        one.next_offset = offset

    async def _handle_or_halt(self, runs: Iterable[Run]) -> None:
        """Handle records, up to one that stops the partition."""
        self._note_time()
        if self.is_clean:
            self._oldest_s = self._clock.monotonic()
        messages, home = self._messages, self.inputs[0]
        try:
            if any(saw is not None and saw(-1) for saw in self._saw):
                # A former owner committed the record that made a timer due.
                await self._handle_timers(self._at)
            await self._handle(runs)
        finally:
            messages.source, messages.message_tag = home.source, home.topics.message_tag
            messages.home_offset = home.next_offset

    async def _handle(self, runs: Iterable[Run]) -> None:
        """Handle records one after the other. Hot: what can be is in a local variable, what is seldom in a call."""
        messages, scope, inbox = self._messages, self._scope, self._inbox
        undo, monotonic = scope.undo, self._clock.monotonic
        is_watched, outputs, pause_s = self._is_watched, messages.outputs, self._next_pause_s()
        is_special = self._is_special if is_watched else is_command
        for one, records in runs:
            self._turn_to(one)  # once a record where inputs take turns
            handler, decode_key, decode_value = one.spec.handler, one.spec.decode_key, one.spec.decode_value
            saw = self._saw[one.index] if self._saw else None
            for record in records:
                offset, raw_key, raw_value = record.offset, record.key, record.value
                if offset < one.next_offset:
                    continue
                scope.source_offset = offset
                if raw_key is None or raw_value is None or ((is_watched or record.headers) and is_special(record)):
                    outputs = await self._handle_special(record)
                else:
                    sent, ctx = len(outputs), None
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
                self._handled += 1
                is_due = saw is not None and not (record.headers and is_command(record)) and saw(record.timestamp)
                if monotonic() >= pause_s or (not self._handled & _SIZE_MASK and self._is_large()):
                    await self._pause(record)
                    outputs, pause_s = messages.outputs, self._next_pause_s()
                if is_due:  # after the pause, in which a record that the broker may refuse is committed alone
                    outputs, pause_s = await self._handle_timers(one), self._next_pause_s()
                if inbox.stopping:
                    return

    def _turn_to(self, one: InputProgress) -> None:
        """Note which input the next record is of."""
        messages, scope = self._messages, self._scope
        if one is not self._at:
            self._at, scope.input, scope.source_offset = one, one.index, one.next_offset - 1
        messages.source, messages.message_tag = one.source, one.topics.message_tag
        messages.home_offset = self.inputs[0].next_offset

    async def _recover(self, record: InputRecord, ctx: Context | None, error: BaseException, sent: int) -> list[Output]:
        """Do with a message that failed what the policy says; return the outputs, which a commit may have renewed."""
        if ctx is not None:
            ctx._state = None
        else:
            error = undecodable(self._at.source, record, error)
        await self._handling.recover(self._messages, record, error, sent)
        return self._messages.outputs

    @property
    def _is_watched(self) -> bool:
        """Whether anything has to be asked about each record before its handler is called, or told after it."""
        is_known = bool(self._poison.poisoned) or any(one.completed.finished for one in self.inputs)
        return is_known or self._handling.parked is not None or self._handling.timers is not None

    def _is_special(self, record: InputRecord) -> bool:
        """Whether it may have to wait behind a parked one, is a command, refused by the broker, finished, far ahead."""
        at, parked, timers, poisoned = self._at, self._handling.parked, self._handling.timers, self._poison.poisoned
        if poisoned and identity(at.source, record) in poisoned:
            return True
        is_known = record.offset in at.completed.finished or (timers is not None and timers.may_refuse(record))
        return is_known or (is_command(record) if parked is None else parked.may_concern(record))

    async def _handle_timers(self, one: InputProgress) -> list[Output]:
        """Handle all that is due; return the outputs, which a commit may have renewed.

        So which of a key's records finds a timer fired doesn't depend on the batches in which they came.
        """
        messages, home = self._messages, self.inputs[0]
        messages.source, messages.message_tag = home.source, home.topics.message_tag
        while self._may_take and not self._inbox.stopping and self._due.take():
            await self._handle_due(MOST_DUE_S)
            await (self._stay_paused() if self._inbox.is_paused else self._clock.sleep(0))
        self._turn_to(one)
        return messages.outputs

    async def _handle_special(self, record: InputRecord) -> list[Output]:
        """Handle a message with all precautions; return the outputs, which a commit may have renewed."""
        # An earlier owner, who handled keys side by side, may have finished it.
        if record.offset not in self._at.completed.finished:
            await self._handling.message(self._messages, record)
        return self._messages.outputs

    async def _handle_due(self, took_s: float) -> None:
        """Handle what is due as if it were messages behind the last one, until it is the records' turn again."""
        messages, inbox, monotonic = self._messages, self._inbox, self._clock.monotonic
        self._note_time()
        began_s = monotonic()
        if self.is_clean:
            self._oldest_s = began_s
        for internal in self._due:
            is_careful = monotonic() < self._poison.careful_internal_s
            if is_careful:
                # It isn't to blame for what was handled before.
                await self._commit()
            self._scope.source_offset, messages.source = self.reached - 1, internal.source or self.inputs[0].source
            try:
                await self._handling.message(messages, internal.record, internal)
            except RecordError:
                await self._commit()
                raise
            finally:
                messages.source = self.inputs[0].source
            internal.handled()
            await self._commit_if_due(internal.record, is_careful=is_careful)
            if inbox.stopping or inbox.is_paused or monotonic() - began_s >= min(max(took_s, DUE_S), MOST_DUE_S):
                return

    async def _let_pass(self, seconds: float) -> None:
        """Wait before a message is tried again; what is before it needn't wait for a commit."""
        await self._commit()
        until_s = self._clock.monotonic() + seconds
        while (left_s := until_s - self._clock.monotonic()) > 0.0 or self._inbox.is_paused:
            if self._inbox.stopping:
                raise GivenBack
            await (self._stay_paused() if self._inbox.is_paused else self._inbox.wait(left_s))

    def _next_pause_s(self) -> float:
        """Return the time after which the run of messages is interrupted: for a commit, or to let others run."""
        if self._poison.careful_until and any(self._is_suspect(one, one.next_offset) for one in self.inputs):
            return 0.0
        now_s = self._clock.monotonic()
        if now_s >= self._pause_s:  # what comes in small batches asks for each of them
            self._pause_s = min(self._commit_at_s(now_s), now_s + YIELD_EVERY_S)
        return self._pause_s

    def _commit_at_s(self, now_s: float) -> float:
        """Return when what was handled is to be committed at the latest."""
        return self._policy.at_s(self._oldest_s, now_s + self._context.log.ready_in_s())

    def _is_suspect(self, one: InputProgress, offset: int) -> bool:
        """Whether the broker refused a commit with messages behind this offset of an input."""
        return offset < self._poison.careful_until.get(one.source.topic, 0)

    def _note_time(self) -> None:
        self._scope.now_ms = max(self._scope.now_ms, self._clock.wall_ms())

    async def _pause(self, record: InputRecord) -> None:
        await self._commit_if_due(record, is_careful=self._is_suspect(self._at, record.offset))
        await (self._stay_paused() if self._inbox.is_paused else self._clock.sleep(0))

    async def _commit_if_due(self, record: InputRecord, *, is_careful: bool) -> None:
        """Commit if it is time, or if the record that was handled last is to be committed alone."""
        # Handlers may be slow: those of one batch don't all run at the time at which it began.
        self._note_time()
        if is_careful:
            await self._commit_alone(record, self._messages.source)
        elif self._is_large() or self._commit_at_s(now_s := self._clock.monotonic()) <= now_s:
            await self._begin_commit()
            self._oldest_s = self._clock.monotonic()

    async def _commit_alone(self, record: InputRecord, source: TopicPartition) -> None:
        """Commit what one record of `source` led to; if the broker refuses that again, the record is the reason."""
        try:
            await self._commit()
        except CommitRefusedError as error:
            found, is_given_up = blame(self._spec, self._poison, source, record, error)
            if is_given_up:
                # Its work is dropped with all that isn't committed, so it is given up when its turn comes again; where
                # keys are handled side by side, the partition stops when all before it is finished.
                raise
            await self._context.log.fence()
            raise found from error
        self._poison.poisoned.pop(identity(source, record), None)

    def _is_large(self) -> bool:
        """Tell whether so much is held that it has to be committed before the interval is over."""
        return self._new_bytes >= self._policy.max_bytes

    async def _commit(self) -> None:
        """Commit all that was handled, and wait for the end."""
        if not self.is_clean:
            await self._begin_commit()
        await self._commit_ended()

    async def _begin_commit(self) -> None:
        """Hand in what was handled, as soon as the commit that is under way has ended."""
        await self._commit_ended()
        self._under_way = asyncio.create_task(self._carry_out(*self._freeze()), name=f"commit of {self._name}")
        self._under_way.add_done_callback(lambda _: self._inbox.wake())

    async def _commit_ended(self) -> None:
        """Wait for the end of the commit that is under way, if there is one, and raise what it failed with."""
        under_way = self._under_way
        if under_way is None:
            return
        if not under_way.done():
            self._context.waits_for_commit = True
            try:
                await asyncio.wait([under_way])
            finally:
                self._context.waits_for_commit = False
        self._under_way = None
        under_way.result()

    def _freeze(self) -> tuple[CommitBatch, list[Writes], list[int], int]:
        """Return a batch with all that was handled, the writes of each store, where they lead to, and of how many."""
        context, messages, scope = self._context, self._messages, self._scope
        if messages.newer is not None:
            # Its handler went on as if nothing had been there.
            raise messages.newer
        # What goes with a commit comes from what is handled, not from a message that failed or waits for a retry.
        offset, scope.source_offset = scope.source_offset, self.reached - 1
        self._due.before_commit()
        scope.source_offset = offset
        context.advance(Event.COMMIT)
        self._under_way_bytes = size = self._new_bytes
        frozen = [overlay.freeze() for _, _, overlay in self._parts]
        changelogs = {topic: writes for (topic, _, _), writes in zip(self._parts, frozen, strict=True) if writes}
        batch = context.batch(messages, self.inputs, published=self._published, writes=changelogs, size=size)
        for one in self.inputs:
            one.handed_in_offset = batch.offsets[one.source].offset
        handled, self._handled = self._handled, 0
        return batch, frozen, [one.completed.reached for one in self.inputs], handled

    async def _carry_out(self, batch: CommitBatch, frozen: list[Writes], offsets: list[int], handled: int) -> None:
        """Commit a batch: to Kafka, then to the stores."""
        context, clock = self._context, self._clock
        began_ms, began_s = self._services.clock.wall_ms(), clock.monotonic()
        receipt = await context.log.commit(batch)
        context.is_storing = True
        for (topic, held, overlay), writes in zip(self._parts, frozen, strict=True):
            end = receipt.changelog_offsets.get(topic)
            try:
                await store_commit(held.store, writes, offsets, end, began_ms, context.epoch, context.transaction)
            except LogWentBackError as error:
                self._poison.went_back[topic] = str(error)
                raise
            overlay.settle()
        for one in self.inputs:
            one.committed_offset = batch.offsets[one.source].offset
        context.failures, self._under_way_bytes = 0, 0
        seconds = clock.monotonic() - began_s
        context.meters.committed(batch, records=handled, seconds=seconds, at_ms=began_ms, parked=self._parked_topic)
        context.advance(Event.COMMITTED)
        self._due.committed()
