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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from actors._core.group.members import TaskId
from actors._core.logs import Reminders, error_text, escaping
from actors._core.task.commit import CommitMark
from actors._core.task.completed import CompletedOffsets
from actors._core.task.feed_times import NO_TIMES
from actors._core.task.lifecycle import Event, State
from actors._core.task.pauses import Pause
from actors._core.task.takeover import Contradiction, ResetPolicy, decide_start, next_epoch
from actors._core.task.topic_ids import TopicIds
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
)
from actors.ports import (
    CommitBatch,
    OwnerRecord,
    TaskLog,
    TopicPartition,
)
from actors.runtime.cancellation import is_cancelled
from actors.runtime.clock import warn_if_ahead
from actors.runtime.committer import Membership
from actors.runtime.inputs.event_times import EventTimes
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.inputs.task_time import TaskTime
from actors.runtime.message.failures import REMIND_S, is_repeated, lasting
from actors.runtime.message.store import Store
from actors.runtime.meters import TaskMeters
from actors.runtime.spec import ActorSpec, TaskServices, TaskSettings
from actors.runtime.state.restore import Restored
from actors.runtime.task.by_key import ByKey
from actors.runtime.task.context import CAREFUL_INTERNAL_S, MessageId, PoisonTracking, TaskContext
from actors.runtime.task.former_owners import settled_offset, settled_owner
from actors.runtime.task.identity import FoundInput, agreed, check_order, identify, require_unchanged
from actors.runtime.task.in_order import InOrder
from actors.runtime.task.lost_changelog import explained, last_commit, require_changelogs, write_to_changelog
from actors.runtime.task.processor import TaskProcessor
from actors.runtime.task.stop_commands import HALT_REMINDER_S, StopCommands
from actors.runtime.task.tools import assemble, make_inbox
from actors.runtime.threads import finish_in_thread
from stores._core.printable import moment
from stores._core.record import Position
from stores.errors import ForeignDatabaseError, StoreError
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

_READABLE = (State.RUNNING, State.COMMITTING, State.HALTED)
PREDECESSOR_REMINDER_S = 10.0


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
        self.id = TaskId(spec.name, partition)
        self.sources = [TopicPartition(topic, partition) for topic in spec.topics]
        self.name = ", ".join(map(str, self.sources))
        self.failure: BaseException | None = None
        self.halted_by: ActorsError | None = None
        self.is_abandoned = False
        self.paused: Pause | None = None
        meters = TaskMeters() if meters is None else meters
        self.inbox = make_inbox(spec, self.sources, services, meters, limit=settings.queue_records)
        if spec.event_times:
            self.inbox.event_times = EventTimes(spec.event_times, self.sources)
        self.context = TaskContext(
            spec=spec,
            partition=partition,
            member=member,
            log=log,
            services=services,
            settings=settings,
            inbox=self.inbox,
            meters=meters,
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
        self._stop_commands = StopCommands(self.context, self.sources[0])
        self._reminders = Reminders(REMIND_S)
        self._repeats = False
        self._lasting = ""

    def __repr__(self) -> str:
        return f"<Task {self.spec.name} {self.name} {self.state.value} epoch {self.epoch}>"

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
        self._run_task = asyncio.create_task(self._run(), name=f"actor {self.spec.name} {self.name}")
        self._run_task.add_done_callback(lambda _: on_end(self))

    def is_settled(self, end_of: Callable[[TopicPartition], int]) -> bool:
        """Return whether all before the inputs' ends is handled and committed, and nothing is in progress."""
        processor = self._processor
        if self.state is not State.RUNNING or processor is None:
            return False
        return processor.is_quiet and all(one.next_offset >= end_of(one.source) for one in processor.inputs)

    def reinitialize(self, reason: str) -> None:
        """Make the task take over again, because of what its input said."""
        self.inbox.doubt = reason
        self.inbox.wake()

    def pause(self, pause: Pause | None) -> None:
        """Begin or end a pause, as the registry says: a paused task keeps its partition and its state."""
        before, self.paused = self.paused, pause
        if (before is None) == (pause is None):
            return
        if pause is not None:
            text, since = "actor %s is paused on %s, since %s, by %s", moment(pause.at_ms)
            logger.info(text, self.spec.name, self.name, since, pause.by)
        else:
            logger.info("actor %s is resumed on %s", self.spec.name, self.name)
            processor = self._processor
            for one, backlog in zip(processor.inputs, processor.backlogs, strict=True) if processor else ():
                backlog.extend(self.meters.end_offsets[one.source.topic])
        self.inbox.pause(pause is not None)

    def request_stop(self, *, is_last: bool = False) -> None:
        """Ask the task to commit what it has handled and to end; `is_last` if the whole worker ends."""
        if self.is_abandoned:
            return
        if self._processor is not None and not self.inbox.stopping:
            # What is delivered from here on is dropped, so the source's position says less and less.
            for queue, source in zip(self.inbox.queues, self.sources, strict=True):
                queue.left_at = self._services.sink.position(source)
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
            logger.warning("%s: the handler of actor %s didn't end in time: cancelled", self.name, self.spec.name)
            self._cancel()
        return bool(done)

    async def ended(self, timeout_s: float) -> bool:
        """Wait so long for the task to finish; return whether it has."""
        if self._run_task is not None:
            await asyncio.wait([self._run_task], timeout=timeout_s)
        return self._run_task is None or self._run_task.done()

    @property
    def has_ended(self) -> bool:
        """True if the task has finished. A task whose member the group has forgotten finishes by itself."""
        return self._run_task is not None and self._run_task.done()

    def abandon(self) -> None:
        """Cancel the task wherever it is, and commit nothing more. A commit that is under way may happen or not."""
        self.is_abandoned = self.inbox.stopping = self.inbox.hurries = True
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
            logger.info("%s: %s", self.name, error)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.failure = error
            if isinstance(error, GeneratorExit):
                raise
        finally:
            await self._close()

    async def _close(self) -> None:
        for close in (self._drop_work, self._log.close):
            try:
                await close()
            except Exception as error:
                self.failure = self.failure or error
            self.context.advance(Event.REVOKED)
        if self.epoch:
            logger.info("actor %s gave up %s in epoch %d", self.spec.name, self.name, self.epoch)

    @property
    def committed(self) -> Mapping[str, PartitionStore] | None:
        """The stores by name while they hold what was committed, save for a commit that is under way; else None.

        They do while the task runs, or stands still in front of a record.
        """
        if self.state not in _READABLE or self.context.is_storing:
            return None
        return {store.name: held.store for store, held in zip(self.spec.stores, self._stores, strict=True)}

    @property
    def time(self) -> TaskTime | None:
        """The feeds of its event time while it runs; None where event time follows the handled records."""
        is_running = self.state in (State.RUNNING, State.COMMITTING) and not self.inbox.stopping
        return None if self._processor is None or not is_running else self._processor.time

    @property
    def waits_for_predecessor(self) -> bool:
        """True while another task of this worker still has the partition."""
        return self._predecessor is not None

    @property
    def held_bytes(self) -> int:
        """About how much is held in memory that isn't committed."""
        return 0 if self._processor is None else self._processor.held_bytes

    @property
    def in_hand(self) -> tuple[TopicPartition, int] | None:
        """The oldest input record that its handlers haven't finished, with its offset; None if there is none."""
        return None if self._processor is None else self._processor.executor.in_hand

    def message_in(self, running: asyncio.Task[Any] | None) -> MessageId | None:
        """Return the message, or the call of an effect, that an asyncio task runs; None if it is none of this task."""
        processor = self._processor
        if processor is None or running is None:
            return None
        return processor.message_in(running, is_loop=running is self._run_task)

    @property
    def is_idle(self) -> bool:
        """True if all that was delivered is handled and committed."""
        processor = self._processor
        if processor is None or self.state is not State.RUNNING or not processor.is_quiet:
            return False
        parts = zip(processor.inputs, self.inbox.queues, strict=True)
        return all(one.next_offset >= queue.delivered for one, queue in parts)

    async def _wait_for_predecessor(self) -> None:
        """Wait until the partition's last task has finished: its last commit may still be in progress."""
        while self._predecessor is not None:
            if await self._predecessor.ended(PREDECESSOR_REMINDER_S):
                self._predecessor = None
            else:
                logger.warning("%s: waiting for the end of %r", self.name, self._predecessor)

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
            await self._reinitialize(OutcomeUnknownError(f"the client gave up a request: {error_text(error)}"))
        except (TaskError, StoreError, OSError) as error:
            if isinstance(error, CommitRefusedError) and self._processor is not None:
                # The message that is refused is found by committing each one alone.
                poison = self.context.poison
                for one in self._processor.inputs:
                    until = poison.careful_until.get(one.source.topic, 0)
                    poison.careful_until[one.source.topic] = max(until, one.reached)
                poison.careful_internal_s = self._services.clock.monotonic() + CAREFUL_INTERNAL_S
            await self._reinitialize(error)

    async def _stand_still(self, event: Event, error: ActorsError) -> None:
        """Keep the partition, so that no other worker fails on the same, and say so until somebody acts."""
        reached = 0 if self._processor is None else self._processor.inputs[0].committed_offset
        self.context.advance(event)
        self._stop_delivery()
        await self._drop_work()
        self.halted_by = error
        # The worker has said it once, for all partitions.
        level = logging.INFO if error is self.refusal else logging.ERROR
        text = "actor %s is stopped on %s: %s"
        logger.log(level, text, self.spec.name, self.name, error, exc_info=error.__cause__)
        internal = error.internal if isinstance(error, RecordError) else None
        if internal is not None and await self._stop_commands.wait(internal, reached, error):
            self.halted_by = None
            self.context.advance(Event.UNKNOWN)
            return
        while not self.inbox.stopping:
            if not await self.inbox.wait(HALT_REMINDER_S):
                logger.warning("actor %s is still stopped on %s: %s", self.spec.name, self.name, error)
                await self.look_at_end()

    async def look_at_end(self) -> None:
        """Ask for the inputs' ends, for the lag: nothing is fetched of a partition that stands still or is paused."""
        with contextlib.suppress(TaskError, OSError):
            for source in self.sources:
                self.meters.end_offsets[source.topic] = (await self._services.logs.bounds(source)).end

    def _stop_delivery(self) -> None:
        for source in self.sources:
            self._services.sink.stop_delivery(source)

    async def _reinitialize(self, error: Exception) -> None:
        self.meters.fenced(error)
        self.context.advance(Event.UNKNOWN)
        self._stop_delivery()
        await self._drop_work()
        self.context.failures += 1
        delay_s = self._settings.backoff.delay_s(self.context.failures)
        now_s = self._services.clock.monotonic()
        # Each partition says it once, and then one of them for all.
        known, self._lasting = self._lasting, lasting(error)
        is_said = is_repeated(error, self._services.reminders, now_s) and self._lasting == known
        level = logging.DEBUG if is_said else logging.WARNING
        # What another partition met as well says nothing of whether this one goes on.
        self._repeats = is_repeated(error, self._reminders, now_s)
        logger.log(level, "%s: %s; taking over again in %.2f s", self.name, error, delay_s)
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
        found, owner = await self._found(topics)
        self.context.advance(Event.LOOKED)
        if self._services.release is not None:
            await self._services.release(self.spec.name, self.partition)
        marks = [one.mark for one in found if one.mark is not None]
        try:
            require_changelogs(self.spec, topics[0])
            self._stores = [await self._restore(store, found, owner) for store in self.spec.stores]
        except ForeignDatabaseError as error:
            raise TakeoverRefusedError(f"actor {self.spec.name}, {self.name}: {error}") from None
        except LostChangelogError as error:
            owner = await self._services.owners.latest(self.spec.name, self.partition)
            committed = [one.committed for one in found]
            raise explained(error, await self._positions(), committed, owner) from error.__cause__
        await require_unchanged(self.spec, self._services.group, topics)
        self.context.advance(Event.RESTORED)
        context = self.context
        context.now_ms = max(context.now_ms, *(mark.now_ms for mark in marks), 0)
        context.clock.go_on_from(context.now_ms)
        epoch = self._new_epoch(marks, None if marks else owner)
        inputs = [await self._start_of(one, epoch) for one in found]
        await self._claim(inputs, epoch)
        self.context.advance(Event.CLAIMED)
        return self._begin(inputs)

    async def _start_of(self, found: FoundInput, epoch: int) -> InputProgress:
        """Decide where to begin in an input.

        Raises:
            TakeoverRefusedError: the facts contradict each other.
        """
        rules = self._settings.rules
        if found.source.topic in self.spec.wholly_read:
            rules = replace(rules, reset=ResetPolicy.EARLIEST)
        facts = found.facts(self.spec, self._settings, self._stores)
        decision, topics, finished = decide_start(facts, rules), found.topics, found.finished
        if isinstance(decision, Contradiction):
            raise TakeoverRefusedError(
                f"actor {self.spec.name}, {found.source}: {decision.reason}. {decision.remedy} "
                "(nothing is processed until then)"
            )
        if facts.is_recreated:
            await self._services.group.require_agreement([found.source.topic])
            logger.warning("%s was re-created: going on at offset %d of the new topic", found.source, decision.offset)
            self.context.poison.held_up.clear()
            self.context.poison, finished, self._stop_commands.obeyed_until = PoisonTracking(), set(), 0
            topics = replace(topics, is_recreated=True)
        elif facts.is_published:
            topics = replace(topics, is_recreated=True)
        topics = replace(topics, since=epoch) if decision.is_anew else topics
        completed = CompletedOffsets(decision.offset, finished)
        times = NO_TIMES if facts.is_recreated or found.mark is None else found.mark.times
        return InputProgress(found.index, found.source, found.spec, completed, topics, found.bounds.end, times)

    async def _found(self, topics: Sequence[TopicIds]) -> tuple[list[FoundInput], OwnerRecord | None]:
        """Return each input's committed offset and bounds, and the last owner, once no former owner can change them."""
        group, clock, command_id = self._services.group, self._services.clock, self._services.command_id
        owners, tell = self._services.owners, self.meters.waiting
        owner = await settled_owner(group, owners, self._log, clock, self.spec.name, self.partition, tell=tell)
        # The registry was read: what was paused before the takeover handles nothing after it.
        self.pause(self._services.owners.pause_of(self.spec.name, self.partition))
        check_order(self.spec, owner)
        if command_id is not None and self.spec.published:
            # A command that publishes what was there may be under way.
            await self._log.end_transaction_of(command_id(self.spec.name, self.partition))
        found = []
        for index, source in enumerate(self.sources):
            own_id = self._settings.transactional_id
            committed = await settled_offset(group, self._log, clock, source, owner, own_id=own_id, tell=tell)
            bounds = await self._services.logs.bounds(source)
            self.meters.looked(source.topic, None if committed is None else committed.offset, bounds.end)
            found.append(
                FoundInput.of(
                    self.spec,
                    index,
                    topics[index],
                    source=source,
                    committed=committed,
                    owner=owner,
                    bounds=bounds,
                )
            )
        return found, owner

    async def _restore(
        self, store: Store[Any, Any], found: Sequence[FoundInput], owner: OwnerRecord | None
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
                last=last_commit(changelog, [one.committed for one in found], owner),
                doubt=self.context.poison.went_back.get(changelog.topic),
            )
            seconds = clock.monotonic() - began_s
        finally:
            self.meters.restore_ended(meter, seconds)
        return restored

    async def _positions(self) -> dict[str, Position | None]:
        stores, names = self._services.stores, [store.name for store in self.spec.stores]
        return {name: (await stores.open(name, self.partition)).position() for name in names}

    def _new_epoch(self, marks: Sequence[CommitMark], owner: OwnerRecord | None) -> int:
        """Return the next epoch. The registry is asked only when no offset has a mark: both are written together."""
        known = [held.position.epoch for held in self._stores]
        return next_epoch([*known, *(mark.epoch for mark in marks), *([] if owner is None else [owner.epoch])])

    async def _claim(self, inputs: Sequence[InputProgress], epoch: int) -> None:
        self.context.epoch, self.context.transaction = epoch, 0
        # A store whose changelog was lost keeps the former id until all is written back.
        ids = {
            store.name: held.position.changelog_id for store, held in zip(self.spec.stores, self._stores, strict=True)
        }
        for one in inputs:
            one.topics = one.topics.with_changelogs(ids)
        settings = self._settings
        owner = OwnerRecord(
            self.spec.name,
            self.partition,
            epoch,
            settings.worker,
            settings.address,
            at_ms=self._services.clock.wall_ms(),
            inputs=tuple(one.owned() for one in inputs),
            transactional_id=settings.transactional_id,
            member_id=self.context.identity.member_id,
            changelog_ids=ids,
        )
        offsets = self.context.marked(inputs)
        await self._log.commit(CommitBatch(self.partition, offsets, outputs=[self._services.encode_owner(owner)]))
        self.context.claimed = owner
        reached = [one.completed.reached for one in inputs]
        transaction = self.context.transaction
        claimed = [
            replace(held, position=replace(held.position.at(reached), epoch=epoch, transaction=transaction))
            for held in self._stores
        ]
        for number, (store, held) in enumerate(zip(self.spec.stores, claimed, strict=True)):
            if held.is_ahead:
                claimed[number] = await write_to_changelog(self.context, store.name, held, inputs)
            else:
                await finish_in_thread(held.store.apply, [], held.position)
        self._stores = claimed

    def _begin(self, inputs: Sequence[InputProgress]) -> TaskProcessor:
        self.inbox.open([one.next_offset for one in inputs])
        self.context.poison.went_back.clear()
        self.meters.takeovers += 1
        parts = assemble(self.context, self._stores, inputs)
        executor = ByKey if self.spec.concurrency > 1 else InOrder
        self._processor = processor = TaskProcessor(self.context, parts, executor)
        level = logging.DEBUG if self._repeats else logging.INFO
        text, offsets = "actor %s owns %s from offset %s in epoch %d", ", ".join(str(one.next_offset) for one in inputs)
        logger.log(level, text, self.spec.name, self.name, offsets, self.epoch)
        for one in inputs:
            self._services.sink.start_from(one.source, one.next_offset, one.topics.input_id)
        warn_if_ahead(self.name, self.context.clock.ahead_ms, self._settings.clock_skew_margin_ms)
        return processor
