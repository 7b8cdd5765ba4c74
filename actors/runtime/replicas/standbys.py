"""Copies of tasks that others own: standbys, and warm-ups on their way to become owners.

    wanted ──▶ preparing ──▶ following ──▶ let go        the leader says what is wanted, with each assignment
                   ▲             │
                   └── rebuild ◀─┘                       deletes may have escaped it, or the log begins behind it

A copy is the same store that a takeover would restore, and following is that restore without an end: committed
records are applied in the log's order, each chunk with its position in one step. So a takeover finds a checkpoint like
any other, and reads what little is behind it; nothing here is trusted by it. What must hold:

One writer. A partition that the assignment gives to this worker leaves the copies in the same callback, before its
    task exists; the task waits in `release` until a write in a thread is over. The other way round a copy is opened
    only when the partition's last task has ended (`is_free`). Applying a chunk never awaits, and looks first whether
    the copy is still one. Rebalances stop tasks, not copies: those that remain are followed all the while.
Never ahead. Only committed records are read, so that the store is a prefix of the changelog.
Deletes. A copy's wall time is when it was last known to be all that the log held: the time of a look at the log's
    end that it reached since. A chunk is applied only while that is younger than deletes are kept: whatever was
    deleted since then was still there to be read, so that each position on disk is a good one. An older copy is built
    anew, and so is one that the log doesn't reach back to.
Windows past their retention. The owner removes them from its disk without a delete in the log. A copy that was loaded
    removes them at each look, as far as the log says that the owner may have.
Death. At any point there is a prefix with its position and its wall time. A bulk load that wasn't settled loses its
    newest chunks, whole ones. The worker's next life follows on, or takes over, from there.
A log that lost records. The copy that has them isn't touched until the operator lets it be rebuilt.
Brokers away, a full disk, a damaged store: such a copy is left alone for a while; the others go on. No error of a copy
    ends the worker.

Copies wait while a task restores, and take half of the event loop's time at most. One consumer reads for all of them.
A warm-up copy is warm when it lacks no more than is acceptable; see `actors.runtime.replicas.rebalance_requests`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from actors._core.backoff import Backoff
from actors._core.group.members import TaskId
from actors._core.group.placement import Copies
from actors._core.logs import Reminders, escaping
from actors._core.task.takeover import LogBounds, Retention, plan_restore, why_not_followed
from actors.errors import BrokerUnavailableError, LostChangelogError, ReplacedLogError, RestoreError, UnreadableLogError
from actors.ports import Clock, Following, LogRecord, StoreProvider, TopicPartition
from actors.runtime.cancellation import end, is_cancelled
from actors.runtime.replicas.rebalance_requests import Asking
from actors.runtime.replicas.standby_offsets import ANSWER_S, LogBoundsByPartition, StandbyLogs, StandbyOffsets
from actors.runtime.replicas.standby_state import RebuildError, Role, StandbyState, StandbyStore, StandbyTask
from actors.runtime.spec import ActorSpec
from actors.runtime.state.restore import LONG_READ, Changelog, begin_position, stored_writes
from actors.runtime.task.lost_changelog import StandbyChecks
from actors.runtime.threads import finish_in_thread
from actors.runtime.windows.removal import Removal
from stores._core.record import Position
from stores._core.replay import advance
from stores.errors import StoreCorruptedError, StoreError
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

POLL_S = 0.2
LOOK_S = 1.0
LOOK_SHARE_S = 0.04
"""How often the logs' ends are looked at: each second, and less often where there are more copies than 25."""
KNOWN_S = 10.0
"""For so long what a look found counts as known, or until the look after the next one should have been."""
RETRY = Backoff(0.1, longest_s=5.0)
PAUSE = Backoff(1.0, longest_s=30.0)
"""How long a copy whose store failed is left alone."""
REMIND_S = 10.0
KEEP_AGE_MS = 60_000
"""How often the disk is told how old a copy is to which nothing is written."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The rest of the worker, as copies see it.

    Attributes:
        is_free: whether nobody touches a task's stores.
        is_working: whether tasks run, which need the event loop.
        is_restoring: whether a task has much to restore.
        ask_for_rebalance: makes this member join the group anew.
        begin_from_snapshot: puts a snapshot into an empty store; see `actors.runtime.state.restore.Restorer`.
        checks: tells that a log lost what a copy has.
    """

    is_free: Callable[[TaskId], bool]
    is_working: Callable[[], bool]
    is_restoring: Callable[[], bool]
    ask_for_rebalance: Callable[[], None]
    begin_from_snapshot: Callable[[PartitionStore, Changelog, int, LogBounds], Awaitable[Position | None]] | None = None
    checks: StandbyChecks | None = None


class Standbys:
    """The copies of one worker.

    `clock_skew_margin_ms` is how far the clocks of brokers and this machine may differ; `acceptable_lag` how many
    offsets a warm copy may lack by this worker's settings, the leader's count.
    """

    def __init__(
        self,
        specs: Iterable[ActorSpec],
        *,
        logs: StandbyLogs,
        stores: StoreProvider,
        clock: Clock,
        clock_skew_margin_ms: int,
        acceptable_lag: int,
        surroundings: Surroundings,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._logs = logs
        self._stores = stores
        self._clock = clock
        self._margin_ms = clock_skew_margin_ms
        self._own_limit = self._limit = acceptable_lag
        self._around = surroundings
        self._wanted: dict[TaskId, Role] = {}
        self._held: dict[TaskId, StandbyTask] = {}
        self._locks: dict[TaskId, asyncio.Lock] = {}
        self._unsettled: dict[TaskId, StandbyTask] = {}
        # Stores that failed, which may be closed since: whether their files are damaged too.
        self._suspect: dict[tuple[str, int], bool] = {}
        # Until when a copy that failed is left alone, and for how long it was.
        self._pauses: dict[TaskId, tuple[float, float]] = {}
        self._ends = StandbyOffsets(logs, clock)
        self._look_pause_s = LOOK_S
        self._changed = asyncio.Event()
        self._asking = Asking(clock)
        self._reminders = Reminders(REMIND_S)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow what is wanted."""
        self._task = asyncio.create_task(self._run(), name="standbys")

    async def stop(self) -> None:
        """Stop; nothing touches the stores afterwards. May be called twice."""
        task, self._task = self._task, None
        await end(task)
        await self._ends.stop()

    def assign(self, copies: Copies) -> None:
        """Take what the leader says; what isn't wanted any more is left alone from here on. Does no I/O."""
        wanted = dict.fromkeys(copies.standbys, Role.STANDBY) | dict.fromkeys(copies.warm_ups, Role.WARM_UP)
        wanted = {task: role for task, role in wanted.items() if task.actor in self._specs}
        warm_ups = {task for task, role in wanted.items() if role is Role.WARM_UP}
        self._asking.assigned(warm_ups)
        if warm_ups:
            self._go_by(copies.acceptable_lag)
        if wanted == self._wanted:
            return
        gone = [task for task in self._held if task not in wanted]
        is_another_set = wanted.keys() != self._wanted.keys()
        self._wanted = wanted
        self._pauses = {task: pause for task, pause in self._pauses.items() if task in wanted}
        self._ends.keep({source for task in wanted for source in self._sources(task)})
        for task in gone:
            self._drop(task)
        if is_another_set:
            self._changed.set()

    def _go_by(self, limit: int) -> None:
        """Warm is what the group's leader takes for it: asking for more than that stops the group for nothing."""
        if limit not in (self._limit, self._own_limit):
            logger.warning(
                "the group's leader has acceptable_recovery_lag=%d, this worker %d: its copies count as warm when the "
                "leader's is kept to. Give all workers the same",
                limit,
                self._own_limit,
            )
        self._limit = limit

    async def release(self, actor: str, partition: int) -> None:
        """Wait until nothing touches a task's stores any more: from here on they are the caller's."""
        task = TaskId(actor, partition)
        self._wanted.pop(task, None)
        self._held.pop(task, None)
        self._unsettled.pop(task, None)
        self._pauses.pop(task, None)
        async with self._lock(task):
            # The owner mends what is damaged. A store that it made anew mustn't be deleted when it is a copy again.
            for place in self._suspect:
                if place[1] == partition and place[0] in self._specs[actor].changelogs:
                    self._suspect[place] = False

    @property
    def copies(self) -> list[StandbyState]:
        """The copies that are followed, by actor, partition and store."""
        return [
            StandbyState(
                actor=task.actor,
                store=one.changelog.store,
                partition=task.partition,
                role=self._wanted[task],
                position=one.position.changelog_offset,
                lag=self._known_lag(one),
                current_ms=one.current_ms,
                looked_ms=self._clock.wall_ms() - int(1000 * (self._clock.monotonic() - one.looked_s)),
            )
            for task, copy in sorted(self._held.items())
            if task in self._wanted
            for one in copy.stores
        ]

    def assigned(self) -> dict[str, dict[str, int]]:
        """Return how many partitions it shall keep copies of, by actor with stores, and by role."""
        found = {name: {role.value: 0 for role in Role} for name, spec in self._specs.items() if spec.stores}
        for task, role in self._wanted.items():
            if task.actor in found:
                found[task.actor][role.value] += 1
        return found

    def lags(self) -> dict[TaskId, int]:
        """Return how many offsets the copies lack, all stores of a task together, where it is known."""
        found = {}
        for task, copy in self._held.items():
            lags = [self._known_lag(one) for one in copy.stores]
            if copy.is_ready and lags and None not in lags:
                found[task] = sum(lag for lag in lags if lag is not None)
        return found

    def stores_of(self, actor: str, partition: int) -> tuple[Mapping[str, PartitionStore], int] | None:
        """Return a copy's stores, and since when it may lack something: None if there is none, or it never was current.

        To be read before the next await.
        """
        copy = self._held.get(TaskId(actor, partition))
        if copy is None or not copy.is_ready:
            return None
        times = [one.current_ms for one in copy.stores]
        known = [time_ms for time_ms in times if time_ms is not None]
        if not known or len(known) < len(times) or any(one.is_bulk for one in copy.stores):
            return None
        return {one.changelog.store: one.store for one in copy.stores}, min(known)

    def _known_lag(self, one: StandbyStore) -> int | None:
        known_s = max(KNOWN_S, 2 * self._look_pause_s)
        return one.lag if self._clock.monotonic() - one.looked_s <= known_s else None

    async def _run(self) -> None:
        retry_s = RETRY.first_s
        while True:
            try:
                await self._follow()
                retry_s = RETRY.first_s
                continue
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
            except (BrokerUnavailableError, RestoreError) as error:
                # What the copies hold stays what it was. A log that begins behind one is found by the next look.
                self._say(f"copies can't be followed: {error}; it is tried again")
            except (StoreError, OSError) as error:
                self._say(f"copies can't be kept: {error}; it is tried again")
                self._drop_all()
            except Exception:
                logger.exception("copies can't be followed; it is tried again")
                self._drop_all()
            for copy in [copy for copy in self._held.values() if not copy.is_ready]:
                self._drop(copy.task)
            await self._clock.sleep(retry_s)
            retry_s = RETRY.longer_s(retry_s)

    async def _follow(self) -> None:
        """Follow what is wanted until that changes."""
        self._changed.clear()
        await self._finish_dropped()
        is_complete = await self._prepare()
        ready = self._ready()
        positions = {one.source: one.position.changelog_offset for one in ready}
        if not positions:
            await self._wait(None if is_complete else POLL_S)
            return
        following = await self._logs.follow(positions, {one.source.topic: one.position.changelog_id for one in ready})
        try:
            await self._apply_all(following, is_complete)
        except RebuildError as rebuild:
            await self._rebuild(rebuild)
        finally:
            await following.close()

    async def _apply_all(self, following: Following, is_complete: bool) -> None:
        by_source = {one.source: (copy, one) for copy in self._held.values() for one in copy.stores}
        self._look_pause_s = max(LOOK_S, LOOK_SHARE_S * len(by_source))
        await self._look()
        looked_s = self._clock.monotonic()
        while not self._changed.is_set():
            is_complete = is_complete and self._wanted.keys() <= self._held.keys()
            if not is_complete and any(task not in self._held and self._can_open(task) for task in self._wanted):
                return
            while self._around.is_restoring() and not self._changed.is_set():
                await self._wait(POLL_S)
            try:
                fetched = await following.poll(POLL_S)
            except (UnreadableLogError, ReplacedLogError) as error:
                with self._alone(by_source[TopicPartition(*error.source)][0].task):
                    raise
                return
            began_s = self._clock.monotonic()
            for source, (records, next_offset) in fetched.items():
                copy, one = by_source[source]
                with self._alone(copy.task):
                    self._apply(copy, one, records, next_offset)
            if fetched and self._around.is_working():
                await self._clock.sleep(self._clock.monotonic() - began_s)
            if self._clock.monotonic() - looked_s >= self._look_pause_s:
                await self._look()
                looked_s = self._clock.monotonic()

    def _apply(self, copy: StandbyTask, one: StandbyStore, records: Sequence[LogRecord], next_offset: int) -> None:
        if self._held.get(copy.task) is not copy:
            return
        if one.is_too_old(self._clock.wall_ms(), self._kept(one.changelog)):
            raise RebuildError(copy, one, "it was behind for longer than deletes are kept, some may have escaped it")
        writes, newest = stored_writes(records)
        one.position = advance(one.position, newest, next_offset)
        one.reached()
        with self._suspecting(one.changelog.store, copy.task.partition):
            (one.store.load if one.is_bulk else one.store.apply)(writes, one.position)

    def _kept(self, changelog: Changelog) -> Retention:
        return Retention(changelog.topic_id, changelog.delete_retention_ms, self._margin_ms)

    async def _look(self) -> None:
        """Find out what the copies lack, and whether one can't be followed on."""
        looked_at = [(copy, one) for copy in self._held.values() for one in copy.stores]
        answers = await self._ends.ask(one.source for _, one in looked_at)
        for copy, one in looked_at:
            if one.source in answers and self._held.get(copy.task) is copy:
                with self._alone(copy.task):
                    await self._looked(copy, one, *answers[one.source])
        self._ask()

    async def _looked(self, copy: StandbyTask, one: StandbyStore, asked_ms: int, bounds: LogBounds) -> None:
        if one.position.changelog_offset > bounds.end:
            await self._why_lost(one.position, copy, one.changelog, bounds)
        why = self._why(one.position, bounds, one.changelog)
        if why is not None:
            raise RebuildError(copy, one, why)
        one.look(asked_ms, bounds, self._clock.monotonic())
        self._note_current(copy, one)
        if one.is_bulk and one.lag <= LONG_READ:
            await self._finish_bulk(copy, one)
        elif asked_ms - one.kept_ms >= KEEP_AGE_MS and one.mark is None and not one.is_bulk:
            with self._suspecting(one.changelog.store, copy.task.partition):
                one.store.apply((), one.position)
            one.kept_ms = asked_ms
        if one.removal is not None and not one.is_bulk and self._held.get(copy.task) is copy:
            with self._suspecting(one.changelog.store, copy.task.partition):
                one.removal.follow()

    def _note_current(self, copy: StandbyTask, one: StandbyStore) -> None:
        if one.current_ms is not None and not one.is_noted:
            one.is_noted = True
            self._pauses.pop(copy.task, None)
            offset = one.position.changelog_offset
            logger.info("%s is a %s copy that has all up to offset %d", one.source, self._wanted[copy.task], offset)

    def _ask(self) -> None:
        warm_ups = [task for task, role in self._wanted.items() if role is Role.WARM_UP]
        lags = self.lags()
        warm = {
            task
            for task in warm_ups
            if lags.get(task, self._limit + 1) <= self._limit
            and not any(one.is_bulk for one in self._held[task].stores)
        }
        if self._asking.is_due(warm, len(warm_ups)):
            logger.info("%s: warm copies, asking for a rebalance", ", ".join(map(_name, sorted(warm))))
            self._around.ask_for_rebalance()

    async def _prepare(self) -> bool:
        """Open what is wanted and not there yet; tell whether that was all."""
        fresh = []
        for task in sorted(self._wanted):
            if task not in self._held and self._can_open(task):
                copy = self._held[task] = StandbyTask(task, self._specs[task.actor])
                fresh.append(copy)
        # Not with the lock, for which a takeover waits.
        answers = await self._ends.ask(source for copy in fresh for source in self._sources(copy.task))
        for copy in fresh:
            async with self._lock(copy.task):
                with self._alone(copy.task):
                    await self._open_all(copy, answers)
        return self._wanted.keys() <= self._held.keys()

    async def _open_all(self, copy: StandbyTask, answers: LogBoundsByPartition) -> None:
        """Open a task's stores, or none if an end isn't known; the lock is held."""
        if self._held.get(copy.task) is not copy:
            return
        if not all(source in answers for source in self._sources(copy.task)):
            del self._held[copy.task]
            return
        if self._around.checks is not None:
            await self._around.checks.require_changelogs(copy.spec)
        for store in copy.spec.stores:
            changelog = copy.spec.changelogs[store.name]
            await self._open(copy, changelog, *answers[TopicPartition(changelog.topic, copy.task.partition)])
            if self._held.get(copy.task) is not copy:
                return
        copy.is_ready = True

    async def _open(self, copy: StandbyTask, changelog: Changelog, asked_ms: int, bounds: LogBounds) -> None:
        """Open one store, and wipe it if it can't be followed on; the lock is held."""
        partition = copy.task.partition
        place, source = (changelog.store, partition), TopicPartition(changelog.topic, partition)
        if place in self._suspect:
            await (self._stores.discard if self._suspect[place] else self._stores.reopen)(*place)
            del self._suspect[place]
        store = await self._stores.open(*place)
        with self._suspecting(*place):
            position = store.position()
        if position is not None:
            lost = await self._why_lost(position, copy, changelog, bounds)
            if (why := lost or self._why(position, bounds, changelog)) is not None:
                await self._wipe(store, changelog.store, source, why)
                position = None
        if position is None:
            position = await self._begin_from_snapshot(store, changelog, partition, bounds)
        if position is None:
            position = begin_position(None, plan_restore(None, bounds, changelog.topic_id), asked_ms, changelog)
        elif bounds.end - position.changelog_offset <= 1:
            # Only a marker can be behind it: nothing has escaped, however old it is.
            position = replace(position, wall_time_ms=asked_ms)
        one = StandbyStore(
            changelog=changelog,
            source=source,
            store=store,
            position=position,
            end=bounds.end,
            looked_s=self._clock.monotonic(),
            is_bulk=bounds.end - position.changelog_offset > LONG_READ,
            removal=next((Removal(one, store) for one in copy.spec.windows if one.name == changelog.store), None),
        )
        copy.stores.append(one)

    async def _why_lost(self, at: Position, copy: StandbyTask, changelog: Changelog, bounds: LogBounds) -> str | None:
        if self._around.checks is None:
            return None
        async with asyncio.timeout(ANSWER_S):
            return await self._around.checks.why_lost(copy.spec, copy.task.partition, changelog, at, bounds)

    async def _begin_from_snapshot(
        self, store: PartitionStore, changelog: Changelog, partition: int, bounds: LogBounds
    ) -> Position | None:
        if self._around.begin_from_snapshot is None:
            return None
        with self._suspecting(changelog.store, partition):
            return await self._around.begin_from_snapshot(store, changelog, partition, bounds)

    async def _rebuild(self, rebuild: RebuildError) -> None:
        copy, one = rebuild.copy, rebuild.store
        async with self._lock(copy.task):
            if self._held.get(copy.task) is copy:
                # A reader mustn't find an empty store, or a closed one.
                copy.is_ready = False
                with self._alone(copy.task):
                    await self._wipe(one.store, one.changelog.store, one.source, rebuild.why)
        if self._held.get(copy.task) is copy:
            del self._held[copy.task]

    async def _wipe(self, store: PartitionStore, name: str, source: TopicPartition, why: str) -> None:
        logger.warning("%s: rebuilding the copy: %s", source, why)
        await self._in_thread(name, source.partition, store.wipe)

    async def _in_thread(self, store: str, partition: int, work: Callable[[], None]) -> None:
        with self._suspecting(store, partition):
            await finish_in_thread(work)

    @contextlib.contextmanager
    def _suspecting(self, store: str, partition: int) -> Iterator[None]:
        """Note a store that fails: it may be closed, or take nothing more until it is opened anew."""
        try:
            yield
        except (StoreError, OSError) as error:
            place = store, partition
            self._suspect[place] = self._suspect.get(place, False) or isinstance(error, StoreCorruptedError)
            raise

    async def _finish_bulk(self, copy: StandbyTask, one: StandbyStore) -> None:
        async with self._lock(copy.task):
            if self._held.get(copy.task) is not copy:
                return
            await self._in_thread(one.changelog.store, copy.task.partition, one.store.settle)
        one.is_bulk = False

    async def _finish_dropped(self) -> None:
        """Keep what was loaded of copies that nobody wants any more, so that their stores are plain ones again."""
        while self._unsettled:
            task, copy = self._unsettled.popitem()
            if task in self._held or not self._is_free(task):
                continue
            async with self._lock(task):
                with self._alone(task):
                    for one in copy.stores:
                        if one.is_bulk and self._is_free(task):
                            await self._in_thread(one.changelog.store, task.partition, one.store.settle)

    def _why(self, position: Position, bounds: LogBounds, changelog: Changelog) -> str | None:
        return why_not_followed(position, bounds, self._clock.wall_ms(), self._kept(changelog))

    def _ready(self) -> list[StandbyStore]:
        return [one for copy in self._held.values() if copy.is_ready for one in copy.stores]

    def _is_free(self, task: TaskId) -> bool:
        return self._around.is_free(task)

    def _sources(self, task: TaskId) -> list[TopicPartition]:
        spec = self._specs[task.actor]
        return [TopicPartition(spec.changelogs[store.name].topic, task.partition) for store in spec.stores]

    def _can_open(self, task: TaskId) -> bool:
        until_s, _ = self._pauses.get(task, (0.0, 0.0))
        return (
            self._clock.monotonic() >= until_s
            and self._is_free(task)
            and not any(self._ends.is_away(source) for source in self._sources(task))
        )

    @contextlib.contextmanager
    def _alone(self, task: TaskId) -> Iterator[None]:
        """Have a store that fails stop nothing but its own copy, for a while that gets longer."""
        try:
            yield
        except (StoreError, LostChangelogError, OSError, UnreadableLogError, ReplacedLogError) as error:
            if task in self._held:
                self._drop(task)
            _, before_s = self._pauses.get(task, (0.0, 0.0))
            pause_s = max(PAUSE.longer_s(before_s), PAUSE.first_s)
            # Copies that fail together are opened together: each time all others begin to read anew.
            due_s = math.ceil((self._clock.monotonic() + pause_s) / PAUSE.first_s) * PAUSE.first_s
            self._pauses[task] = due_s, pause_s
            self._say(f"{_name(task)}: the copy can't be kept: {error}; it is tried again in {pause_s:g} s")

    def _drop(self, task: TaskId) -> None:
        copy = self._held.pop(task)
        if any(one.is_bulk for one in copy.stores):
            self._unsettled[task] = copy

    def _drop_all(self) -> None:
        for task in list(self._held):
            self._drop(task)

    def _lock(self, task: TaskId) -> asyncio.Lock:
        return self._locks.setdefault(task, asyncio.Lock())

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait for another assignment, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def _say(self, text: str) -> None:
        """Log a warning, one in a while."""
        if self._reminders.is_due(self._clock.monotonic()):
            logger.warning("%s", text)


def _name(task: TaskId) -> str:
    return f"{task.actor}[{task.partition}]"
