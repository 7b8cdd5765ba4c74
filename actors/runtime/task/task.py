"""One partition of one actor: its takeovers, and what ends them.

What happens when the process dies, step by step:

    fence .. restore     nothing was emitted; the next owner takes over by the same steps. The store holds
                         a prefix of the committed changelog with its own position
    claim                a transaction of its own: either the new epoch is in the offset's metadata and in the owners'
                         registry, or in neither
    processing           see `actors.runtime.task.processor`

A commit that fails in whatever way has an unknown outcome. The overlay is dropped and the takeover looks: it never
matters here whether the broker went through with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from actors._core.logs import Reminders, escaping
from actors._core.task.commit import CommitMark, parse_mark
from actors._core.task.completed import CompletedOffsets, decode_finished
from actors._core.task.lifecycle import Event, State
from actors._core.task.takeover import Contradiction, decide_start, next_epoch
from actors.errors import (
    ActorsError,
    CommitRefusedError,
    LostChangelogError,
    MigratedError,
    NewerVersionError,
    OutcomeUnknownError,
    RecordError,
    TakeoverRefusedError,
    TaskError,
    UnreadableLogError,
)
from actors.ports import (
    CommitBatch,
    Committed,
    InputRecord,
    OwnerRecord,
    TaskLog,
    TopicPartition,
)
from actors.runtime.cancellation import is_cancelled
from actors.runtime.commands import RefusedCommandError
from actors.runtime.committer import Membership
from actors.runtime.message.failures import REMIND_S, is_repeated
from actors.runtime.message.store import Store
from actors.runtime.meters import TaskMeters
from actors.runtime.spec import ActorSpec, TaskServices, TaskSettings
from actors.runtime.state.restore import Restored
from actors.runtime.task.context import Inbox, PoisonTracking, TaskContext
from actors.runtime.task.former_owners import settled_offset, settled_owner
from actors.runtime.task.identity import agreed, continued, identify, input_facts, require_unchanged
from actors.runtime.task.keyed_processor import KeyedProcessor
from actors.runtime.task.lost_changelog import explained, last_commit, require_changelogs, write_to_changelog
from actors.runtime.task.processor import CAREFUL_INTERNAL_S, TaskProcessor
from actors.runtime.threads import finish_in_thread
from stores._core.record import Position
from stores.errors import ForeignDatabaseError, StoreError
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

_READABLE = (State.RUNNING, State.COMMITTING, State.HALTED)
HALT_REMINDER_S = 60.0
HALT_LOOK_S = 5.0
"""How often a task that a timer stopped looks for a command that gives the timer up."""
PREDECESSOR_REMINDER_S = 10.0
AHEAD_MS = 5_000
"""Clocks that differ by less aren't worth a warning."""


class Task:
    """Owns one partition of one actor from `start` to `stop`."""

    def __init__(
        self,
        spec: ActorSpec,
        partition: int,
        *,
        member: Membership,
        log: TaskLog,
        services: TaskServices,
        settings: TaskSettings,
        predecessor: Task | None = None,
        meters: TaskMeters | None = None,
        refusal: TakeoverRefusedError | None = None,
    ) -> None:
        self.spec = spec
        self.partition = partition
        self.source = TopicPartition(spec.topic, partition)
        self.failure: BaseException | None = None
        self.halted_by: ActorsError | None = None
        self.is_abandoned = False
        self.inbox = Inbox(settings.queue_records, lambda: services.sink.has_room())
        self.context = TaskContext(
            spec=spec,
            partition=partition,
            member=member,
            log=log,
            services=services,
            settings=settings,
            inbox=self.inbox,
            meters=TaskMeters() if meters is None else meters,
        )
        self.meters = self.context.meters
        self._log = log
        self._services = services
        self._settings = settings
        self._predecessor = predecessor
        self.refusal = refusal
        self._stores: list[Restored] = []
        self._processor: TaskProcessor | None = None
        self._run_task: asyncio.Task[None] | None = None
        self._told_until = 0
        self._reminders = Reminders(REMIND_S)
        self._has_refused = self._repeats = False

    def __repr__(self) -> str:
        return f"<Task {self.spec.name} {self.source} {self.state.value} epoch {self.epoch}>"

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return self.context.state

    @property
    def epoch(self) -> int:
        """The ownership epoch; 0 before the first claim."""
        return self.context.epoch

    def start(self, on_end: Callable[[Task], None]) -> None:
        """Begin the takeover. `on_end` is called when the task ended, with `failure` set if by a defect."""
        self._run_task = asyncio.create_task(self._run(), name=f"actor {self.spec.name} {self.source}")
        self._run_task.add_done_callback(lambda _: on_end(self))

    def is_settled(self, end: int) -> bool:
        """Whether all before offset `end` is handled and committed, and nothing is under way."""
        processor = self._processor
        if self.state is not State.RUNNING or processor is None:
            return False
        return processor.next_offset >= end and processor.is_quiet

    def reinitialize(self, reason: str) -> None:
        """Make the task take over again, because of what its input said."""
        self.inbox.doubt = reason
        self.inbox.wake()

    def request_stop(self, *, is_last: bool = False) -> None:
        """Ask the task to commit what it has handled and to end; `is_last` if the whole worker ends."""
        if self.is_abandoned:
            return
        if self._processor is not None and not self.inbox.stopping:
            # What is delivered from here on is dropped, so the source's position says less and less.
            self.inbox.left_at = self._services.sink.position(self.source)
        self.inbox.is_last = self.inbox.is_last or is_last
        self.inbox.stopping = True
        self.inbox.wake()
        # A task that waits for its predecessor is the only link between that one and the next: it ends after it.
        if self._predecessor is None and self.state not in (State.RUNNING, State.COMMITTING):
            self._cancel()

    async def stopped(self, timeout_s: float) -> bool:
        """Wait for the end of a task that was asked to stop; after the time a waiting handler is cancelled.

        A task that waits for a commit isn't: that has its own deadline, and the next task of the partition waits too.
        """
        if self._run_task is None:
            return True
        done, _ = await asyncio.wait([self._run_task], timeout=timeout_s)
        self.inbox.hurries = not done
        if not done and self.state in (State.RUNNING, State.COMMITTING) and not self.context.waits_for_commit:
            logger.warning("%s: the handler of actor %s didn't end in time: cancelled", self.source, self.spec.name)
            self._cancel()
        return bool(done)

    async def is_over(self, timeout_s: float) -> bool:
        """Wait so long for the task to touch nothing any more, and tell whether it does."""
        if self._run_task is not None:
            await asyncio.wait([self._run_task], timeout=timeout_s)
        return self._run_task is None or self._run_task.done()

    @property
    def has_ended(self) -> bool:
        """Whether it touches nothing any more: one whose member the group forgot ends before it is asked to."""
        return self._run_task is not None and self._run_task.done()

    def abandon(self) -> None:
        """Cancel the task wherever it is, and commit nothing more. A commit that is under way may happen or not."""
        self.is_abandoned = self.inbox.stopping = True
        self._log.end()
        if self._predecessor is None:
            self._cancel()
        elif not self._predecessor.is_abandoned:
            self._predecessor.abandon()

    def _cancel(self) -> None:
        if self._run_task is not None:
            self._run_task.cancel()

    async def _run(self) -> None:
        try:
            await self._wait_for_predecessor()
            while not self.inbox.stopping:
                await self._take_over_and_work()
        except asyncio.CancelledError as error:
            if not self.inbox.stopping:
                self.failure = RuntimeError(f"{self!r} was cancelled by somebody else")
                self.failure.__cause__ = error
        except MigratedError as error:
            self.meters.fenced(error)
            logger.info("%s: %s", self.source, error)
        except Exception as error:
            self.failure = error
        finally:
            await self._close()

    async def _close(self) -> None:
        for close in (self._drop_work, self._log.close):
            try:
                await close()
            except Exception as error:
                self.failure = self.failure or error
            self.context.state = State.CLOSED

    @property
    def committed(self) -> Mapping[str, PartitionStore] | None:
        """The stores by name while they hold what was committed, save for a commit that is under way; else None.

        They do while the task runs, or stands still in front of a record.
        """
        if self.state not in _READABLE or self.context.is_storing:
            return None
        return {store.name: held.store for store, held in zip(self.spec.stores, self._stores, strict=True)}

    @property
    def waits_for_predecessor(self) -> bool:
        """Whether another task of this worker still has the partition."""
        return self._predecessor is not None

    @property
    def held_bytes(self) -> int:
        """About how much is held in memory that isn't committed."""
        return 0 if self._processor is None else self._processor.held_bytes

    @property
    def is_idle(self) -> bool:
        """Whether all that was delivered is handled and committed."""
        processor = self._processor
        return processor is not None and self.state is State.RUNNING and processor.is_quiet and not self.inbox

    async def _wait_for_predecessor(self) -> None:
        """Wait until the partition's last task touches nothing any more: its last commit may still be on its way."""
        while self._predecessor is not None:
            if await self._predecessor.is_over(PREDECESSOR_REMINDER_S):
                self._predecessor = None
            else:
                logger.warning("%s: waiting for the end of %r", self.source, self._predecessor)

    async def _take_over_and_work(self) -> None:
        """Take over and work until something makes it necessary to look again."""
        try:
            async with agreed(self.spec, self._services.group):
                processor = await self._take_over()
            await processor.work()
        except TakeoverRefusedError as error:
            await self._stand_still(Event.CONTRADICTED, error)
        except (RecordError, NewerVersionError) as error:
            await self._stand_still(Event.BAD_RECORD, error)
        except MigratedError:
            raise
        except asyncio.CancelledError as error:
            if self.inbox.stopping or is_cancelled():
                raise
            await self._reinitialize(OutcomeUnknownError(f"the client gave up a request: {error!r}"))
        except (TaskError, StoreError, OSError) as error:
            if isinstance(error, CommitRefusedError) and self._processor is not None:
                # The message that is refused is found by committing each one alone.
                poison = self.context.poison
                poison.careful_until = max(poison.careful_until, self._processor.reached)
                poison.careful_internal_s = self._services.clock.monotonic() + CAREFUL_INTERNAL_S
            await self._reinitialize(error)

    async def _stand_still(self, event: Event, error: ActorsError) -> None:
        """Keep the partition, so that no other worker fails on the same, and say so until somebody acts."""
        reached = 0 if self._processor is None else self._processor.committed_offset
        self.context.advance(event)
        self._services.sink.stop_delivery(self.source)
        await self._drop_work()
        self.halted_by = error
        # The worker has said it once, for all partitions.
        level = logging.INFO if error is self.refusal else logging.ERROR
        text = "actor %s is stopped on %s: %s"
        logger.log(level, text, self.spec.name, self.source, error, exc_info=error.__cause__)
        internal = error.internal if isinstance(error, RecordError) else None
        if internal is not None and await self._is_released(internal, reached):
            self.halted_by = None
            self.context.advance(Event.UNKNOWN)
            return
        while not self.inbox.stopping:
            if not await self.inbox.wait(HALT_REMINDER_S):
                logger.warning("actor %s is still stopped on %s: %s", self.spec.name, self.source, error)
                await self._look_at_end()

    async def _is_released(self, internal: tuple[str, str], reached: int) -> bool:
        """Wait for a command about the internal message that stopped the partition; false if the task ends first.

        Nothing of the input is handled meanwhile, so the commands are looked for in what isn't committed of it.
        """
        at, reminded_s = max(reached, self._told_until), self._services.clock.monotonic()
        while not self.inbox.stopping:
            try:
                bounds = await self._services.logs.bounds(self.source)
                self.meters.end_offset = end = bounds.end
                at = max(at, bounds.start)
                async for records, until in self._services.logs.read(self.source, at, end):
                    for record in records:
                        command = self._told(record, internal, reached)
                        if command is not None:
                            self._told_until = record.offset + 1
                            if command == "drop":
                                self.context.poison.dropped.add(internal[1])
                            # What the broker refused may be taken now.
                            self.context.poison.poisoned.pop(internal[1], None)
                            logger.info("%s: offset %d says %s: going on", self.source, record.offset, command)
                            return True
                    at = until
            except UnreadableLogError as damage:
                at = damage.next_offset
                logger.warning("%s. A command in front of offset %d may have to be sent again", damage, at)
            except (TaskError, OSError) as away:
                logger.debug("%s: no command could be looked for: %s", self.source, away)
            await self.inbox.wait(HALT_LOOK_S)
            now_s = self._services.clock.monotonic()
            if now_s - reminded_s >= HALT_REMINDER_S:
                reminded_s = now_s
                logger.warning("actor %s is still stopped on %s: %s", self.spec.name, self.source, self.halted_by)
        return False

    def _told(self, record: InputRecord, internal: tuple[str, str], reached: int) -> str | None:
        try:
            return self.spec.commands.told_of(self.partition, record, internal, reached)
        except RefusedCommandError as error:
            # It is counted when the partition comes to it. A producer may write as many as it wants.
            level, self._has_refused = logging.DEBUG if self._has_refused else logging.WARNING, True
            logger.log(level, "%s offset %d: a control record is skipped: %s", self.source, record.offset, error)
            return None

    async def _look_at_end(self) -> None:
        """See how much waits: nothing is fetched of a partition that stands still."""
        with contextlib.suppress(TaskError, OSError):
            self.meters.end_offset = (await self._services.logs.bounds(self.source)).end

    async def _reinitialize(self, error: Exception) -> None:
        self.meters.fenced(error)
        self.context.advance(Event.UNKNOWN)
        self._services.sink.stop_delivery(self.source)
        await self._drop_work()
        self.context.failures += 1
        delay_s = self._settings.backoff.delay_s(self.context.failures)
        now_s = self._services.clock.monotonic()
        level = logging.DEBUG if is_repeated(error, self._services.reminders, now_s) else logging.WARNING
        # What another partition met as well says nothing of whether this one goes on.
        self._repeats = is_repeated(error, self._reminders, now_s)
        logger.log(level, "%s: %s; taking over again in %.2f s", self.source, error, delay_s)
        if isinstance(error, StoreError):
            for store in self.spec.stores:
                await self._services.stores.repair(store.name, self.partition, error)
        if not self.inbox.stopping:
            await self.inbox.wait(delay_s)

    async def _drop_work(self) -> None:
        self.inbox.clear()
        self.inbox.doubt = None
        processor, self._processor = self._processor, None
        if processor is not None:
            await processor.close()

    async def _take_over(self) -> TaskProcessor:
        if self.refusal is not None:
            raise self.refusal
        await self.context.confirm()
        await self._log.fence()
        self.context.advance(Event.FENCED)
        await self.context.confirm()
        self.context.advance(Event.CONFIRMED)
        topics = await identify(self.spec, self._services.group)
        committed, owner = await self._settled()
        bounds = await self._services.logs.bounds(self.source)
        self.context.backlog_end = bounds.end
        self.meters.looked(None if committed is None else committed.offset, bounds.end)
        self.context.advance(Event.LOOKED)
        if self._services.release is not None:
            await self._services.release(self.spec.name, self.partition)
        mark = parse_mark(committed.metadata) if committed is not None else None
        owner = None if mark is not None else owner
        try:
            require_changelogs(self.spec, topics)
            self._stores = [await self._restore(store, committed, owner) for store in self.spec.stores]
        except ForeignDatabaseError as error:
            raise TakeoverRefusedError(f"actor {self.spec.name}, {self.source}: {error}") from None
        except LostChangelogError as error:
            owner = await self._services.owners.latest(self.spec.name, self.partition)
            raise explained(error, await self._positions(), committed, owner) from error.__cause__
        await require_unchanged(self.spec, self._services.group, topics)
        self.context.advance(Event.RESTORED)
        context = self.context
        context.now_ms = max(context.now_ms, 0 if mark is None else mark.now_ms)
        context.clock.go_on_from(context.now_ms)
        finished = set() if committed is None or mark is None else decode_finished(committed.offset, mark.finished)
        topics = continued(topics, mark, owner)
        facts = input_facts(
            self.spec,
            self.partition,
            self._settings,
            committed=committed,
            mark=mark,
            owner=owner,
            stores=self._stores,
            topics=topics,
            bounds=bounds,
            finished=max(finished) + 1 if finished else None,
        )
        decision = decide_start(facts, self._settings.rules)
        if isinstance(decision, Contradiction):
            raise TakeoverRefusedError(
                f"actor {self.spec.name}, {self.source}: {decision.reason}. {decision.remedy} "
                "(nothing is processed until then)"
            )
        epoch = self._new_epoch(mark, owner)
        if facts.is_recreated:
            await self._services.group.require_agreement([self.spec.topic])
            logger.warning("%s was re-created: going on at offset %d of the new topic", self.source, decision.offset)
            self.context.poison, finished, self._told_until = PoisonTracking(), set(), 0
            topics = replace(topics, is_recreated=True)
        elif facts.is_published:
            topics = replace(topics, is_recreated=True)
        self.context.topics = replace(topics, since=epoch) if decision.is_anew else topics
        completed = CompletedOffsets(decision.offset, finished)
        await self._claim(completed, epoch, is_first=facts.is_first)
        self.context.advance(Event.CLAIMED)
        return self._begin(completed)

    async def _settled(self) -> tuple[Committed | None, OwnerRecord | None]:
        """Return the committed offset and the last owner once no former owner can change them any more."""
        group, clock, former_id = self._services.group, self._services.clock, self._services.former_id
        owner = await settled_owner(group, self._services.owners, self._log, clock, self.spec.name, self.partition)
        is_of_earlier_release = owner is not None and not owner.transactional_id
        if former_id is not None and (is_of_earlier_release or self.spec.published):
            # Earlier releases had a transactional id for each task; commands that publish what was there still have.
            await self._log.end_transaction_of(former_id(self.spec.name, self.partition))
        return await settled_offset(group, self._log, clock, self.source, owner), owner

    def _tell_if_ahead(self) -> None:
        """Say so if the partition's time is ahead: an earlier owner's clock was, or this one was set back."""
        ahead_ms = self.context.clock.ahead_ms
        if ahead_ms < AHEAD_MS:
            return
        logger.log(
            logging.ERROR if ahead_ms > self._settings.clock_skew_margin_ms else logging.WARNING,
            "%s: the partition's time is %.1f s ahead of this worker's clock: the clock of an earlier owner was ahead, "
            "or this one is behind. It goes on at half the speed for %.0f s, until the clock has caught up: timers and "
            "expiry that count from now take up to twice their time, and those that were due before come early. Check "
            "the clocks of the workers and the brokers",
            self.source,
            ahead_ms / 1000,
            2 * ahead_ms / 1000,
        )

    async def _restore(
        self, store: Store[Any, Any], committed: Committed | None, owner: OwnerRecord | None
    ) -> Restored:
        held = await self._services.stores.open(store.name, self.partition)
        clock, seconds = self._services.clock, None
        began_s, meter = clock.monotonic(), self.meters.restore_begins(store.name, clock.wall_ms())
        try:
            changelog = self.spec.changelogs[store.name]
            restored = await self._services.restorer.restore(
                held,
                changelog,
                self.partition,
                meter,
                last=last_commit(changelog, committed, owner),
                doubt=self.context.poison.went_back.get(changelog.topic),
            )
            seconds = clock.monotonic() - began_s
        finally:
            self.meters.restore_ended(meter, seconds)
        return restored

    async def _positions(self) -> dict[str, Position | None]:
        stores, names = self._services.stores, [store.name for store in self.spec.stores]
        return {name: (await stores.open(name, self.partition)).position() for name in names}

    def _new_epoch(self, mark: CommitMark | None, owner: OwnerRecord | None) -> int:
        """Return the next epoch. The registry is asked only when the offset has no mark: both are written together."""
        known, last = [held.position.epoch for held in self._stores], owner if mark is None else mark
        return next_epoch(known if last is None else [*known, last.epoch])

    async def _claim(self, completed: CompletedOffsets, epoch: int, *, is_first: bool) -> None:
        self.context.epoch, self.context.transaction = epoch, 0
        # A store whose changelog was lost keeps the former id until all is written back.
        ids = {
            store.name: held.position.changelog_id for store, held in zip(self.spec.stores, self._stores, strict=True)
        }
        self.context.topics = self.context.topics.with_changelogs(ids)
        if is_first and not self._settings.rules.exactly_once:
            # Without a transaction the record may be there and the offset not: the first one proves nothing.
            await self._commit_claim(completed, epoch, input_offset=None)
        self.context.claimed = await self._commit_claim(completed, epoch, input_offset=completed.next_offset)
        claimed = [
            replace(held, position=replace(held.position, source_offset=completed.reached, epoch=epoch))
            for held in self._stores
        ]
        for number, (store, held) in enumerate(zip(self.spec.stores, claimed, strict=True)):
            if held.is_ahead:
                claimed[number] = await write_to_changelog(self.context, store.name, held, completed)
            else:
                await finish_in_thread(held.store.apply, [], held.position)
        self._stores = claimed

    async def _commit_claim(self, completed: CompletedOffsets, epoch: int, *, input_offset: int | None) -> OwnerRecord:
        record = self._settings.owner_record(
            self.spec,
            self.partition,
            self.context.topics,
            epoch=epoch,
            at_ms=self._services.clock.wall_ms(),
            input_offset=input_offset,
            member_id=self.context.identity.member_id,
        )
        await self._log.commit(
            CommitBatch(
                source=self.source,
                next_offset=completed.next_offset,
                metadata=self.context.mark(completed),
                outputs=[self._services.encode_owner(record)],
            )
        )
        return record

    def _begin(self, completed: CompletedOffsets) -> TaskProcessor:
        make = KeyedProcessor if self.spec.concurrency > 1 else TaskProcessor
        self.inbox.open(completed.next_offset)
        self.context.poison.went_back.clear()
        self.meters.takeovers += 1
        self._processor = processor = make(self.context, self._stores, completed)
        level, offset = logging.DEBUG if self._repeats else logging.INFO, completed.next_offset
        text = "actor %s owns %s from offset %d in epoch %d"
        logger.log(level, text, self.spec.name, self.source, offset, self.epoch)
        self._services.sink.start_from(self.source, offset, self.context.topics.input_id)
        self._tell_if_ahead()
        return processor
