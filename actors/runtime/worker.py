"""One worker: a dispatcher that fills the tasks' queues, and tasks that come and go with the group's assignments.

The callbacks of a rebalance only start and stop tasks; what a task needs from the broker it asks for in its own run
loop, while the group's heartbeats go on.

A rebalance stops only what moves. Tasks go on while the worker joins; the assignment says which of them stay, which
others have to be handed over, and which are new. A task that the assignment doesn't name may be another member's: it is
dropped with what it hasn't committed, as are all tasks when the group has forgotten the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from actors._core.group.members import TaskId
from actors._core.logs import escaping
from actors._core.task.lifecycle import State
from actors._core.task.takeover import ResetPolicy
from actors.errors import HandlerFailedError, InputGrownError, RecordError, UnresolvedSchemaError
from actors.ports import Identity, InputRecord, Source, TaskLog, TopicPartition
from actors.runtime.cancellation import end
from actors.runtime.committer import Membership
from actors.runtime.inputs.task_time import TaskTime
from actors.runtime.looks import Looks
from actors.runtime.meters import WorkerMeters
from actors.runtime.spec import ActorSpec, TaskServices, TaskSettings
from actors.runtime.task.context import MessageId
from actors.runtime.task.identity import grown_error
from actors.runtime.task.task import Task

logger = escaping(logging.getLogger(__name__))

POLL_S = 0.2
ABANDON_S = 0.3
HELD_UP_TIMES = 2
"""How often a message may hold the event loop for longer than a session, before it is given up."""
MOST_HELD_UP = 1_000
"""How many such messages a worker remembers."""
POLL_SOME_S = 0.02
"""The poll's wait when some tasks are full: theirs may get room at any time, and a poll can't be interrupted."""
WAITS_LONG_S = 60.0
"""How often it is looked whether a handler still waits; it is named at 1, 2, 4, 8, … times of that."""


class LateSource:
    """The source, for a worker that is made before it: until `source` is set nothing is delivered."""

    source: Any = None
    start_from: Any
    stop_delivery: Any
    has_room: Any
    position: Any
    end_offset: Any
    stable_offset: Any
    check: Any

    def __getattr__(self, name: str) -> Any:
        return _nothing if self.source is None else getattr(self.source, name)

    async def poll(self, wanted: Iterable[TopicPartition], timeout_s: float) -> Mapping[Any, Sequence[Any]]:
        """Return records of inputs."""
        if self.source is None:
            await asyncio.sleep(timeout_s)
            return {}
        records: Mapping[Any, Sequence[Any]] = await self.source.poll(wanted, timeout_s)
        return records


def _nothing(*_: Any) -> None:
    """Return what a source answers before it has fetched anything."""


class Worker:
    """The tasks of one process.

    A rebalance waits `revoke_s` for handlers and commits, which is less than the group's timeouts. `poll_s` returns how
    long a poll waits for records when there are none.
    """

    def __init__(
        self,
        specs: Iterable[ActorSpec],
        *,
        source: Source,
        services: TaskServices,
        task_settings: TaskSettings,
        revoke_s: float,
        member: Membership,
        task_log: Callable[[], TaskLog],
        on_failure: Callable[[BaseException], None],
        meters: WorkerMeters | None = None,
        poll_s: Callable[[], float] = lambda: POLL_S,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._actors = {topic: spec.name for spec in self._specs.values() for topic in spec.topics}
        self._first_counts = {spec.name: spec.partition_count for spec in self._specs.values()}
        self._grown: dict[str, InputGrownError] = {}
        self._source = source
        self._services = services
        self._task_settings = task_settings
        self._revoke_s, self._poll_s = revoke_s, poll_s
        self._member = member
        self._task_log = task_log
        self._on_failure = on_failure
        self.is_assigned = False
        """True once the group has assigned partitions to this worker; false while the worker has given up all."""
        self.meters = WorkerMeters() if meters is None else meters
        self._tasks: dict[TaskId, Task] = {}
        self._ending: dict[TaskId, Task] = {}
        self._leaving: dict[TaskId, Task] = {}
        self._readers: dict[TopicPartition, tuple[Task, int]] = {}
        self._held_up: Counter[tuple[TaskId, MessageId]] = Counter()
        self._overlong: dict[TaskId, dict[MessageId, RecordError]] = {}
        self._restored: frozenset[TaskId] = frozenset()
        self._room = asyncio.Event()
        # By input, what waits for the schema of its records: nothing more is fetched of it.
        self._untimed: dict[TopicPartition, asyncio.Task[None]] = {}
        self._stopping = False
        self.looks = Looks(self._times, group=services.group, clock=services.clock)
        keep_time = any(spec.feeds is not None for spec in self._specs.values())
        self._in_background = [self._watch_handlers, self.looks.run] if keep_time else [self._watch_handlers]

    def _times(self) -> list[TaskTime]:
        return [time for task in self._tasks.values() if (time := task.time) is not None]

    @property
    def tasks(self) -> Collection[Task]:
        """The tasks that are assigned now."""
        return self._tasks.values()

    @property
    def partitions(self) -> dict[str, int]:
        """How many partitions each actor has, whoever owns them."""
        return {spec.name: spec.partition_count for spec in self._specs.values()}

    def task_of(self, task: TaskId) -> Task | None:
        """Return a task, None if it isn't assigned to this worker now."""
        return self._tasks.get(task)

    def is_free(self, task: TaskId) -> bool:
        """Return whether nobody touches the task's stores: it isn't here, and the last one has ended."""
        return task not in self._tasks and task not in self._ending

    @property
    def leaving(self) -> Collection[TopicPartition]:
        """The partitions that are being handed over: nobody else may have them yet."""
        return [source for task in self._leaving.values() for source in task.sources]

    @property
    def restored(self) -> Collection[TaskId]:
        """The tasks whose stores were brought to their changelogs' ends; in a rebalance, those until then."""
        return _claimed(self._tasks) if self._tasks else self._restored

    def room(self) -> None:
        """Note that a task's queue has room, or that it began to run."""
        self._room.set()

    def lost(self, source: TopicPartition, reason: str) -> None:
        """Make a task look again: the source can't deliver what it asked for."""
        reader = self._readers.get(source)
        if reader is not None:
            reader[0].reinitialize(reason)

    def grown(self, counts: Mapping[str, int]) -> None:
        """Note how many partitions inputs have; to be called before `assigned`.

        More are taken up where no state belongs to them. An actor with state stops: its keys have other homes now.
        """
        for topic, count in counts.items():
            spec = self._specs.get(self._actors.get(topic, ""))
            if spec is None or count <= spec.partition_count:
                continue
            if not spec.is_partitioned:
                text = "topic %s, the input of actor %s, has %d partitions now: new ones are read from their start"
                logger.info(text, topic, spec.name, count)
                self._specs[spec.name] = replace(spec, partition_count=count)
            elif spec.name not in self._grown:
                error = self._grown[spec.name] = grown_error(spec, topic, count, self._handled_elsewhere(spec))
                logger.error("%s", error)

    def _handled_elsewhere(self, spec: ActorSpec) -> str:
        """Say what this worker handled in other partitions than their keys' state."""
        if spec.misplaced is None:
            return ""
        if spec.misplaced == "stop":
            return "No record was handled in another partition than its key's state: each is compared before. "
        count = sum(meters.misplaced for task, meters in self.meters.tasks.items() if task.actor == spec.name)
        return f'{count} records were handled in other partitions than their keys\' state, as misplaced="warn" says. '

    def assigned(
        self,
        identity: Identity,
        partitions: Collection[TopicPartition],
        handed_over: Collection[TopicPartition] = (),
    ) -> None:
        """Take over an assignment: tasks of its partitions go on or start, those to be `handed_over` commit and end.

        All others are dropped without a commit.
        """
        # The group's leader may know of partitions before this worker does.
        self.grown({source.topic: source.partition + 1 for source in sorted(partitions)})
        given, leaving = self._whole(partitions), {self._id_of(source) for source in handed_over}
        for task in [*self._ending.values(), *self._tasks.values()]:
            if task.id in leaving:
                self._leaving[task.id] = task
            elif task.id not in given:
                self._drop(task)
            if self._tasks.get(task.id) is task and not (task.id in given and self._goes_on(task)):
                del self._tasks[task.id]
                self._end(task)
        self._member.settle(identity)
        if self._stopping:
            return
        self.meters.rebalances += 1
        self.is_assigned = True
        self._restored = frozenset()
        for task_id in given:
            if task_id not in self._tasks:
                self._start(task_id)
        self._readers = {
            source: (task, index) for task in self._tasks.values() for index, source in enumerate(task.sources)
        }

    def _id_of(self, source: TopicPartition) -> TaskId:
        return TaskId(self._actors[source.topic], source.partition)

    def _whole(self, partitions: Collection[TopicPartition]) -> list[TaskId]:
        """Return the tasks of which all inputs' partitions are there: leaders of this release assign them together."""
        found: dict[TaskId, set[str]] = {}
        for source in partitions:
            found.setdefault(self._id_of(source), set()).add(source.topic)
        whole = []
        for task, topics in found.items():
            missing = [topic for topic in self._specs[task.actor].topics if topic not in topics]
            if missing:
                text = "partition %d of actor %s isn't started: the group's leader gave this worker %s without %s of it"
                logger.error(text, task.partition, task.actor, ", ".join(sorted(topics)), ", ".join(missing))
            else:
                whole.append(task)
        return whole

    def _goes_on(self, task: Task) -> bool:
        """Return whether a task that stays is as it would be started now: it didn't end, and its input hasn't grown.

        One that stands still is started again: what stopped it may be put right.
        """
        actor = task.id.actor
        is_same = task.spec is self._specs[actor] and task.refusal is self._grown.get(actor)
        return is_same and not task.has_ended and task.halted_by is task.refusal

    def _start(self, id: TaskId) -> None:
        task = self._tasks[id] = Task(
            self._specs[id.actor],
            id.partition,
            member=self._member,
            log=self._task_log(),
            services=self._services,
            settings=self._settings_of(id),
            predecessor=self._ending.get(id),
            meters=self.meters.task(id),
            refusal=self._grown.get(id.actor),
        )
        if held_up := self._overlong.get(id):
            task.context.poison.held_up = held_up
            task.context.poison.poisoned.update(held_up)
        task.start(self._ended)

    def held_up(self, running: asyncio.Task[Any] | None, session_s: float) -> None:
        """Note that an asyncio task has held the event loop for a whole session: the group gives its partition away.

        The message that it handles can't be committed then, and the next owner is held up by it as well. When that has
        happened here twice, the partition's next task gives the message up, as the actor's policy says; the call of an
        effect has failed once. May be called from another thread.
        """
        for task in [*self._tasks.values(), *self._ending.values()]:
            message = task.message_in(running)
            if message is None:
                continue
            if len(self._held_up) >= MOST_HELD_UP:
                self._held_up.clear()
            self._held_up[task.id, message] += 1
            count = self._held_up[task.id, message]
            if count >= HELD_UP_TIMES:
                topic, offset = message if isinstance(message, tuple) else (task.sources[0].topic, -1)
                reason = (
                    f"code of actor {task.spec.name} held the event loop for longer than "
                    f"broker_session_timeout={session_s:g} s, {count} times on this worker: each time the group gave "
                    "the partition away before that was committed: await what takes long, hand it to a thread, "
                    "or raise broker_session_timeout"
                )
                failed = HandlerFailedError(reason, topic=topic, partition=task.partition, offset=offset, key=None)
                self._overlong.setdefault(task.id, {})[message] = failed
            return

    def _end(self, task: Task) -> None:
        """Have a task commit and end, unless it was dropped."""
        # One that has ended would never leave, and its stores never be free.
        if not task.has_ended:
            self._ending[task.id] = task
        task.request_stop(is_last=self._stopping)

    def _drop(self, task: Task) -> None:
        self._leaving.pop(task.id, None)
        if not task.is_abandoned:
            task.abandon()

    async def handed_over(self) -> None:
        """Wait until what leaves is committed, as long as the settings allow; what isn't by then is dropped."""
        leaving = list(self._leaving.values())
        await asyncio.gather(*(task.stopped(self._revoke_s) for task in leaving))
        for task in leaving:
            if self._leaving.get(task.id) is task:
                self._drop(task)

    def joining(self) -> None:
        """Note that the worker joins again, and keeps its tasks."""
        self._member.joining()

    def dropped(self) -> None:
        """Drop all tasks: the group has forgotten this worker, and others may have their partitions."""
        self.is_assigned = False
        for task in [*self._tasks.values(), *self._ending.values()]:
            self._drop(task)
            self._end(task)
        self._clear()
        self._member.settle()

    def _clear(self) -> None:
        self._tasks.clear()
        self._readers.clear()

    def _settings_of(self, task: TaskId) -> TaskSettings:
        """Return a task's settings. All of a partition that came while the app ran is new, whatever the policy."""
        settings = self._task_settings
        if task.partition < self._first_counts[task.actor]:
            return settings
        return replace(settings, rules=replace(settings.rules, reset=ResetPolicy.EARLIEST))

    async def revoked(self) -> None:
        """Stop all tasks, and wait for their last commits as long as the settings allow."""
        self.is_assigned = False
        await self._stop_tasks(self._revoke_s)

    async def _stop_tasks(self, handlers_s: float) -> None:
        tasks = list(self._tasks.values())
        self._restored = _claimed(self._tasks) if tasks else self._restored
        for task in tasks:
            self._end(task)
        self._clear()
        await asyncio.gather(*(task.stopped(handlers_s) for task in tasks))

    async def run(self) -> None:
        """Dispatch records until `stop`."""
        background = [asyncio.create_task(run()) for run in self._in_background]
        try:
            await self._dispatch()
        finally:
            await end(*background)

    async def _watch_handlers(self) -> None:
        """Name handlers that have been waiting for long: no other record of their partition, or key, is handled."""
        seen: dict[Task, tuple[object, int]] = {}
        while True:
            await self._services.clock.sleep(WAITS_LONG_S)
            before, seen = seen, {}
            for task in self._tasks.values():
                in_hand = task.in_hand
                if in_hand is None or task.paused is not None:
                    continue
                known, looks = before.get(task, (None, 0))
                looks = looks + 1 if known == in_hand else 0
                seen[task] = in_hand, looks
                if looks.bit_count() == 1:
                    text = (
                        "actor %s, %s offset %d: its handler hasn't returned for %.0f s, and holds up what is behind "
                        "it. If it waits for another system, give that a time-out"
                    )
                    logger.warning(text, task.spec.name, *in_hand, looks * WAITS_LONG_S)

    async def _dispatch(self) -> None:
        while not self._stopping:
            readers = self._readers
            wanted = [
                source
                for source, (task, index) in readers.items()
                if task.inbox.has_room(index) and source not in self._untimed
            ]
            if not wanted:
                self._source.check()
                await self._wait_for_room()
                continue
            everything = len(wanted) == len(readers)
            batches = await self._source.poll(wanted, self._poll_s() if everything else POLL_SOME_S)
            for partition, records in batches.items():
                source = TopicPartition(partition.topic, partition.partition)
                reader = self._readers.get(source)
                if reader is not None:
                    self._put(source, reader, records)
            if batches:
                await self._services.clock.sleep(0)

    def _put(self, source: TopicPartition, reader: tuple[Task, int], records: Sequence[InputRecord]) -> None:
        """Hand records to their task, later where their times are in values of a schema that isn't here yet."""
        try:
            reader[0].inbox.put(reader[1], records)
        except UnresolvedSchemaError as error:
            self._untimed[source] = asyncio.create_task(self._put_later(source, reader, records, error))

    async def _put_later(
        self,
        source: TopicPartition,
        reader: tuple[Task, int],
        records: Sequence[InputRecord],
        error: UnresolvedSchemaError,
    ) -> None:
        queue = reader[0].inbox.queues[reader[1]]
        delivered = queue.delivered
        while not await error.fetch():
            pass
        del self._untimed[source]
        # After a takeover they are fetched again.
        if self._readers.get(source) == reader and queue.delivered == delivered:
            self._put(source, reader, records)
        self._room.set()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        try:
            await asyncio.wait_for(self._room.wait(), POLL_S)
        except TimeoutError:
            return

    async def stop(self, timeout_s: float) -> None:
        """Commit what was handled and end all tasks; what hasn't ended in time is cancelled.

        Handlers that wait get half of the time, commits all of it.
        """
        self._stopping = True
        await end(*self._untimed.values())
        self._room.set()
        deadline_s = self._services.clock.monotonic() + timeout_s
        await self._stop_tasks(min(self._revoke_s, timeout_s / 2))
        left = list(self._ending.values())
        left_s = max(0.0, deadline_s - self._services.clock.monotonic())
        over = await asyncio.gather(*(task.ended(left_s) for task in left))
        late = [task for task, is_over in zip(left, over, strict=True) if not is_over]
        for task in late:
            logger.error("%r didn't end in time: what it didn't commit will be handled again", task)
            task.abandon()
        await asyncio.gather(*(task.ended(ABANDON_S) for task in late))

    def _ended(self, task: Task) -> None:
        if self._ending.get(task.id) is task:
            del self._ending[task.id]
        if task.failure is not None and not isinstance(task.failure, asyncio.CancelledError):
            self._on_failure(task.failure)


def _claimed(tasks: Mapping[TaskId, Task]) -> frozenset[TaskId]:
    """Return the tasks whose stores are whole now: a task that takes over again may restore from nothing."""
    whole = (State.RUNNING, State.COMMITTING, State.HALTED)
    return frozenset(id for id, task in tasks.items() if task.state in whole)
