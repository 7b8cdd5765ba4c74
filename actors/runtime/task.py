"""One partition of one actor: its takeover, its messages, its commits.

What happens when the process dies, step by step:

    fence .. restore     nothing was emitted; the next owner takes over by the same steps. The store holds
                         a prefix of the committed changelog with its own position
    claim                a transaction of its own: either the new epoch is in the offset's metadata and in the owners'
                         registry, or in neither
    handling             writes and outputs are in memory only: the committed offset is before them
    commit, before or    the transaction isn't complete: the next fence aborts it, the inputs are handled again
    inside it
    commit, after it     Kafka has everything, the store lacks the last batch: the restore reads it from the changelog
    store write          one atomic batch with its position: it is there or it isn't

The store is never ahead of Kafka because it is written after the transaction's end was acknowledged, and by nobody but
the run loop of the task, which waits for the end of its predecessor on the same partition first.

A commit that fails in whatever way has an unknown outcome. The overlay is dropped and the takeover looks: it never
matters here whether the broker went through with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from actors._core.commit import CommitMark, parse_mark
from actors._core.lifecycle import Event, State, advance
from actors._core.takeover import (
    Contradiction,
    InputFacts,
    decide_start,
    next_epoch,
)
from actors.errors import (
    ActorsError,
    CommitRefusedError,
    MigratedError,
    RecordError,
    RefusedRecordError,
    RestoreError,
    TakeoverRefusedError,
    TaskError,
)
from actors.ports import CommitBatch, Committed, Identity, InputRecord, TaskLog, TopicPartition
from actors.runtime.context import Context, Store, TaskState, enter_message
from actors.runtime.expiry import Sweeper
from actors.runtime.failures import raise_as_handlers, refused, undecodable
from actors.runtime.spec import ActorSpec, TaskServices, TaskSettings
from actors.runtime.state import Restored
from actors.runtime.threads import finish_in_thread
from stores._core.overlay import MessageScope, Overlay, stamped
from stores.errors import StoreCorruptedError, StoreError

logger = logging.getLogger(__name__)

YIELD_EVERY_S = 0.005
"""How long a task handles records before other tasks and the heartbeat get their turn."""
HALT_REMINDER_S = 60.0
PREDECESSOR_REMINDER_S = 10.0
SWEEP_AGAIN_S = 60.0
_SIZE_MASK = 15
"""How much is held is looked at every 16 messages."""


class Task:
    """Owns one partition of one actor from `start` to `stop`."""

    def __init__(
        self,
        spec: ActorSpec,
        partition: int,
        *,
        identity: Identity,
        log: TaskLog,
        services: TaskServices,
        settings: TaskSettings,
        predecessor: Task | None = None,
    ) -> None:
        self.spec = spec
        self.partition = partition
        self.source = TopicPartition(spec.topic, partition)
        self.state = State.FENCING
        self.epoch = 0
        self.failure: BaseException | None = None
        self.halted_by: ActorsError | None = None
        self._identity = identity
        self._log = log
        self._services = services
        self._settings = settings
        self._predecessor = predecessor
        self._scope = MessageScope()
        self._stores: list[Restored] = []
        self._overlays: list[tuple[Store[Any, Any], Overlay]] = []
        self._messages: TaskState | None = None
        self._queue: deque[Sequence[InputRecord]] = deque()
        self._queued = 0
        self._wake = asyncio.Event()
        self._stopping = False
        self._next_offset = 0
        self._committed_offset = 0
        self._oldest_s = 0.0
        self._rested_s = 0.0
        self._refreshed_s = 0.0
        self._sweeper: Sweeper | None = None
        self._sweep_after_s = 0.0
        self._transaction = 0
        self._failures = 0
        self._doubt: str | None = None
        self._careful_until = 0
        self._run_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Task {self.spec.name} {self.source} {self.state.value} epoch {self.epoch}>"

    # --- from the worker -------------------------------------------------------------------------------------------

    def start(self, on_end: Callable[[Task], None]) -> None:
        """Begin the takeover. `on_end` is called when the task ended, with `failure` set if by a defect."""
        self._run_task = asyncio.create_task(self._run(), name=f"actor {self.spec.name} {self.source}")
        self._run_task.add_done_callback(lambda _: on_end(self))

    @property
    def has_room(self) -> bool:
        """Whether records should be fetched for this task."""
        running = self.state is State.RUNNING or self.state is State.COMMITTING
        return running and not self._stopping and self._queued < self._settings.queue_records

    def offer(self, records: Sequence[InputRecord]) -> None:
        """Take records in offset order; what comes while the task isn't running is dropped, and fetched again later."""
        if self._stopping or (self.state is not State.RUNNING and self.state is not State.COMMITTING):
            return
        self._queue.append(records)
        self._queued += len(records)
        self._wake.set()

    def is_settled(self, end: int) -> bool:
        """Whether all before offset `end` is handled and committed, and nothing is under way."""
        return self.state is State.RUNNING and self._next_offset >= end and self._is_clean()

    def look_again(self, reason: str) -> None:
        """Make the task take over again, because of what its input said."""
        self._doubt = reason
        self._wake.set()

    def request_stop(self) -> None:
        """Ask the task to commit what it has handled and to end."""
        self._stopping = True
        self._wake.set()
        # A task that waits for its predecessor is the only link between that one and the next: it ends after it.
        is_waiting = self._predecessor is not None
        if not is_waiting and self.state not in (State.RUNNING, State.COMMITTING) and self._run_task is not None:
            self._run_task.cancel()

    async def stopped(self, timeout_s: float) -> bool:
        """Wait for the end of a task that was asked to stop; after the time a waiting handler is cancelled.

        A commit that is under way isn't: it has its own deadline, and the next task of the partition waits for it.
        """
        if self._run_task is None:
            return True
        done, _ = await asyncio.wait([self._run_task], timeout=timeout_s)
        if not done and self.state is State.RUNNING:
            logger.warning("%s: the handler of actor %s didn't end in time: cancelled", self.source, self.spec.name)
            self._run_task.cancel()
        return bool(done)

    async def is_over(self, timeout_s: float) -> bool:
        """Wait so long for the task to touch nothing any more, and tell whether it does."""
        if self._run_task is not None:
            await asyncio.wait([self._run_task], timeout=timeout_s)
        return self._run_task is None or self._run_task.done()

    def abandon(self) -> None:
        """Cancel the task wherever it is. What it was committing may or may not have happened."""
        if self._run_task is not None:
            self._run_task.cancel()

    # --- the run loop ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._wait_for_predecessor()
            while not self._stopping:
                await self._one_tenure()
        except asyncio.CancelledError as error:
            if not self._stopping:
                self.failure = RuntimeError(f"{self!r} was cancelled by somebody else")
                self.failure.__cause__ = error
        except MigratedError as error:
            logger.info("%s: %s", self.source, error)
        except Exception as error:
            self.failure = error
        finally:
            self._drop_work()
            self.state = State.CLOSED
            try:
                await self._log.close()
            except Exception as error:
                self.failure = self.failure or error

    async def _wait_for_predecessor(self) -> None:
        """Wait until the partition's last task touches nothing any more: its last commit may still be on its way."""
        while self._predecessor is not None:
            if await self._predecessor.is_over(PREDECESSOR_REMINDER_S):
                self._predecessor = None
            else:
                logger.warning("%s: waiting for the end of %r", self.source, self._predecessor)

    async def _one_tenure(self) -> None:
        """Take over and work until something makes it necessary to look again."""
        try:
            await self._take_over()
            await self._work()
        except TakeoverRefusedError as error:
            self._advance(Event.CONTRADICTED)
            await self._stand_still(error)
        except RecordError as error:
            self._advance(Event.BAD_RECORD)
            await self._stand_still(error)
        except MigratedError:
            raise
        except (TaskError, StoreError, OSError) as error:
            if isinstance(error, CommitRefusedError):
                # The record that is refused is found by committing each one alone.
                self._careful_until = max(self._careful_until, self._next_offset)
            await self._look_again(error)

    async def _stand_still(self, error: ActorsError) -> None:
        """Keep the partition, so that no other worker fails on the same, and say so until somebody acts."""
        self._services.sink.stop_delivery(self.source)
        self._drop_work()
        self.halted_by = error
        logger.error("actor %s is stopped on %s: %s", self.spec.name, self.source, error, exc_info=error.__cause__)
        while not self._stopping:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), HALT_REMINDER_S)
            except TimeoutError:
                logger.warning("actor %s is still stopped on %s: %s", self.spec.name, self.source, error)

    async def _look_again(self, error: Exception) -> None:
        self._advance(Event.UNKNOWN)
        self._services.sink.stop_delivery(self.source)
        self._drop_work()
        self._failures += 1
        delay_s = self._settings.backoff.delay_s(self._failures)
        logger.warning("%s: %s; taking over again in %.2f s", self.source, error, delay_s)
        if isinstance(error, StoreError):
            await self._mend_stores(error)
        if not self._stopping:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()

    async def _mend_stores(self, error: StoreError) -> None:
        for store in self.spec.stores:
            if isinstance(error, StoreCorruptedError):
                await self._services.stores.discard(store.name, self.partition)
            else:
                await self._services.stores.reopen(store.name, self.partition)

    def _drop_work(self) -> None:
        self._scope.undo.clear()
        for _, overlay in self._overlays:
            overlay.discard()
        if self._messages is not None:
            self._messages.outputs.clear()
            self._messages.output_bytes = 0
        self._queue.clear()
        self._queued = 0

    def _advance(self, event: Event) -> None:
        self.state = advance(self.state, event)

    # --- takeover --------------------------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        await self._confirm()
        await self._log.fence()
        self._advance(Event.FENCED)
        await self._confirm()
        self._advance(Event.CONFIRMED)
        committed = await self._services.group.committed(self.source)
        bounds = await self._services.logs.bounds(self.source)
        self._advance(Event.LOOKED)
        self._stores = [await self._restore(store) for store in self.spec.stores]
        self._advance(Event.RESTORED)
        facts = InputFacts(
            committed=None if committed is None else committed.offset,
            bounds=bounds,
            state_source_offset=max(
                (held.position.source_offset for held in self._stores if not held.is_empty), default=None
            ),
        )
        decision = decide_start(facts, self._settings.rules)
        if isinstance(decision, Contradiction):
            raise TakeoverRefusedError(
                f"actor {self.spec.name}, {self.source}: {decision.reason}. {decision.remedy} "
                "(nothing is processed until then)"
            )
        await self._claim(decision.offset, await self._new_epoch(committed))
        self._advance(Event.CLAIMED)
        self._begin(decision.offset)

    async def _confirm(self) -> None:
        """Ask whether the task is still ours. Before fencing it spares the new owner a fence; after it, it decides."""
        if not await self._services.group.is_member(self._identity):
            raise MigratedError(
                f"the group doesn't know {self._identity.member_id} in generation {self._identity.generation} any more"
            )

    async def _restore(self, store: Store[Any, Any]) -> Restored:
        held = await self._services.stores.open(store.name, self.partition)
        return await self._services.restorer.restore(held, self.spec.changelogs[store.name], self.partition)

    async def _new_epoch(self, committed: Committed | None) -> int:
        """Give the next epoch. The registry is asked only when the offset has no mark: both are written together."""
        mark = parse_mark(committed.metadata) if committed is not None else None
        known = [held.position.epoch for held in self._stores]
        if mark is not None:
            known.append(mark.epoch)
        else:
            owner = await self._services.owners.latest(self.spec.name, self.partition)
            known.append(owner.epoch if owner is not None else 0)
        return next_epoch(known)

    async def _claim(self, offset: int, epoch: int) -> None:
        record = self._settings.owner_record(self.spec.name, self.partition, epoch, self._services.clock.wall_ms())
        self.epoch, self._transaction = epoch, 0
        await self._log.commit(
            CommitBatch(
                source=self.source,
                next_offset=offset,
                metadata=self._mark(),
                outputs=[self._services.encode_owner(record)],
            )
        )
        for held in self._stores:
            position = replace(held.position, source_offset=offset, epoch=epoch)
            await finish_in_thread(held.store.apply, [], position)
        self._stores = [
            replace(held, position=replace(held.position, source_offset=offset, epoch=epoch)) for held in self._stores
        ]

    def _mark(self) -> str:
        self._transaction += 1
        return CommitMark(self.epoch, self._transaction, uuid.uuid4().hex[:12]).encode()

    def _begin(self, offset: int) -> None:
        scope = self._scope
        scope.epoch = self.epoch
        scope.now_ms = max([scope.now_ms, *(held.position.wall_time_ms for held in self._stores)])
        self._overlays = [
            (store, Overlay(held.store, scope)) for store, held in zip(self.spec.stores, self._stores, strict=True)
        ]
        self._messages = TaskState(
            actor=self.spec.name,
            source=self.source,
            partition=self.partition,
            partition_count=self.spec.partition_count,
            scope=scope,
            overlays=dict(self._overlays),
            max_record_bytes={name: log.max_record_bytes for name, log in self.spec.changelogs.items()},
            resolve_output=self._services.resolve_output,
            outputs=[],
        )
        held = [restored.store for restored in self._stores]
        self._sweeper = Sweeper.over(self._overlays, held, self._services.clock)
        if self._sweeper is not None and self._sweep_after_s:
            self._sweeper.pause(self._sweep_after_s - self._services.clock.monotonic())
        self._refreshed_s = self._services.clock.monotonic()
        self._next_offset = self._committed_offset = offset
        logger.info("actor %s owns %s from offset %d in epoch %d", self.spec.name, self.source, offset, self.epoch)
        self._services.sink.start_from(self.source, offset)

    # --- messages --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        self._doubt = None
        while not self._stopping:
            if self._doubt is not None:
                raise RestoreError(self._doubt)
            if self._queue:
                records = self._queue.popleft()
                was_full = self._queued >= self._settings.queue_records
                self._queued -= len(records)
                if was_full and self.has_room:
                    self._services.sink.has_room()
                await self._handle_or_halt(records)
                if self._sweeper is not None and not self._sweeper.wait_s():
                    await self._sweep(self._sweeper)
            elif self._is_clean():
                await self._idle()
            elif not await self._rests():
                await self._commit()
        if not self._is_clean():
            await self._commit()

    def _is_clean(self) -> bool:
        """Whether nothing is left to commit."""
        if self._next_offset > self._committed_offset:
            return False
        return not self._started().outputs and not any(overlay.writes for _, overlay in self._overlays)

    async def _rests(self) -> bool:
        """Wait for records as long as no commit may begin yet; tell whether there was something to wait for."""
        left_s = self._rested_s - self._services.clock.monotonic()
        if left_s <= 0.0:
            return False
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._wake.wait()
        return True

    async def _idle(self) -> None:
        self._wake.clear()
        wait_s = self._refreshed_s + self._settings.checkpoint_refresh_s - self._services.clock.monotonic()
        sweeper = self._sweeper
        try:
            await asyncio.wait_for(self._wake.wait(), wait_s if sweeper is None else min(wait_s, sweeper.wait_s()))
        except TimeoutError:
            if sweeper is not None and not sweeper.wait_s():
                await self._sweep(sweeper)
            else:
                await self._refresh_checkpoints()

    async def _sweep(self, sweeper: Sweeper) -> None:
        """Remove some of what has expired in a commit of its own, so that no message is blamed if it is refused."""
        if not self._is_clean():
            await self._commit()
        await sweeper.sweep(self._started(), self._next_offset, lambda: self._stopping or self._is_large())
        try:
            if not self._is_clean():
                await self._commit()
        except CommitRefusedError:
            self._sweep_after_s = self._services.clock.monotonic() + SWEEP_AGAIN_S
            again = f"they are tried again in {SWEEP_AGAIN_S:.0f} s"
            logger.exception("%r: the broker refuses what expired keys led to: %s", self, again)
            raise

    async def _refresh_checkpoints(self) -> None:
        """Note that the checkpoint is still the truth, so that an idle worker isn't taken for one that was away.

        Only while the group knows us: a zombie's checkpoint is not the truth. The time is from before the question.
        The committed offset moves past what is no record (markers, aborted transactions): else it would lie before the
        log's start when retention has removed them, and look like input that was lost.
        """
        reached = self._services.sink.position(self.source)
        if reached is not None and reached > self._next_offset and not self._queue:
            self._next_offset = reached
            await self._commit()
        asked_ms = self._services.clock.wall_ms()
        await self._confirm()
        for held in self._stores:
            position = held.store.position()
            if position is not None:
                await finish_in_thread(held.store.apply, [], replace(position, wall_time_ms=asked_ms))
        self._refreshed_s = self._services.clock.monotonic()

    async def _handle_or_halt(self, records: Sequence[InputRecord]) -> None:
        try:
            await self._handle(records)
        except RefusedRecordError:
            raise
        except RecordError:
            if self._next_offset > self._committed_offset:
                await self._commit()
            raise

    async def _handle(self, records: Sequence[InputRecord]) -> None:
        """Handle records one after the other. Hot: what can be is in a local variable, what is seldom in a call."""
        messages, scope, handler = self._started(), self._scope, self.spec.handler
        decode_key, decode_value = self.spec.decode_key, self.spec.decode_value
        undo, monotonic, count = scope.undo, self._services.clock.monotonic, 0
        scope.now_ms = max(scope.now_ms, self._services.clock.wall_ms())
        if self._next_offset == self._committed_offset:
            self._oldest_s = monotonic()
        outputs, pause_s = messages.outputs, self._next_pause_s()
        for record in records:
            offset, raw_key, raw_value = record.offset, record.key, record.value
            if offset < self._next_offset:
                continue
            try:
                key, value = decode_key(raw_key), decode_value(raw_value)  # type: ignore[arg-type]
            except Exception as error:
                raise undecodable(self.source, record, error) from error
            if raw_key is None or raw_value is None:
                raise undecodable(self.source, record, None)
            scope.source_offset = offset
            ctx = Context(messages, record, key, raw_key)
            enter_message(ctx)
            sent = len(outputs)
            try:
                await handler(ctx, value)
            except BaseException as error:
                ctx._state = None
                scope.rollback()
                del outputs[sent:]
                raise_as_handlers(error, self.spec.name, self.source, record, is_ending=self._stopping)
            ctx._state = None
            if undo:
                undo.clear()
            self._next_offset = offset + 1
            count += 1
            if monotonic() >= pause_s or (not count & _SIZE_MASK and self._is_large()):
                await self._pause(record)
                outputs, pause_s = messages.outputs, self._next_pause_s()
            if self._stopping:
                return

    def _next_pause_s(self) -> float:
        """Give the time after which the run of messages is interrupted: for a commit, or to let others run."""
        if self._next_offset < self._careful_until:
            return 0.0
        commit_s = self._oldest_s + self._settings.policy.interval_s
        return min(commit_s, self._services.clock.monotonic() + YIELD_EVERY_S)

    async def _pause(self, record: InputRecord) -> None:
        if record.offset < self._careful_until:
            await self._commit_alone(record)
            return
        if (
            self._services.clock.monotonic() - self._oldest_s < self._settings.policy.interval_s
            and not self._is_large()
        ):
            await self._services.clock.sleep(0)
            return
        await self._commit()
        self._oldest_s = self._services.clock.monotonic()

    async def _commit_alone(self, record: InputRecord) -> None:
        """Commit what one record led to; if the broker refuses that again, the record is the reason."""
        try:
            await self._commit()
        except CommitRefusedError as error:
            await self._log.fence()
            raise refused(self.spec.name, self.source, record, error) from error

    def _started(self) -> TaskState:
        if self._messages is None:
            raise AssertionError("a task handles and commits nothing before its takeover is done")
        return self._messages

    def _is_large(self) -> bool:
        """Tell whether so much is held that it has to be committed before the interval is over."""
        held = self._started().output_bytes
        for _, overlay in self._overlays:
            held += overlay.bytes_held
        return held >= self._settings.policy.max_bytes

    # --- commit ----------------------------------------------------------------------------------------------------

    async def _commit(self) -> None:
        messages = self._started()
        self._advance(Event.COMMIT)
        began_ms, began_s = self._services.clock.wall_ms(), self._services.clock.monotonic()
        frozen = [
            (held, overlay, overlay.freeze()) for held, (_, overlay) in zip(self._stores, self._overlays, strict=True)
        ]
        outputs, messages.outputs, messages.output_bytes = messages.outputs, [], 0
        next_offset = self._next_offset
        changelogs = {
            self.spec.changelogs[store.name].topic: writes
            for (store, _), (_, _, writes) in zip(self._overlays, frozen, strict=True)
            if writes
        }
        receipt = await self._log.commit(
            CommitBatch(
                source=self.source,
                next_offset=next_offset,
                metadata=self._mark(),
                changelogs=changelogs,
                outputs=outputs,
            )
        )
        for (store, _), (held, overlay, writes) in zip(self._overlays, frozen, strict=True):
            topic = self.spec.changelogs[store.name].topic
            await held.write(
                ((key, stamped(entry)) for key, entry in writes.items()),
                len(writes),
                source_offset=next_offset,
                changelog_offset=receipt.changelog_offsets.get(topic),
                wall_time_ms=began_ms,
                epoch=self.epoch,
            )
            overlay.settle()
        self._committed_offset = next_offset
        self._failures = 0
        ended_s = self._services.clock.monotonic()
        self._rested_s = ended_s + self._settings.policy.rest_s(ended_s - began_s)
        self._advance(Event.COMMITTED)
