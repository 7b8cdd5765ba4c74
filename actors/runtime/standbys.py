"""Copies of tasks that others own: standbys, and warm-ups on their way to become owners.

    wanted ──▶ preparing ──▶ following ──▶ let go        the leader says what is wanted, with each assignment
                   ▲             │
                   └── rebuild ◀─┘                       deletes may have escaped it, or the log begins behind it

A copy is the same store that a takeover would restore, and following is that restore without an end: committed
records are applied in the log's order, each chunk with its position in one step. So a takeover finds a checkpoint like
any other, and reads what little is behind it; nothing here is trusted by it. What must hold:

One writer. A partition that the assignment gives to this worker leaves the copies in the same callback, before its
    task exists; the task waits in `let_go` until a write in a thread is over. The other way round a copy is opened
    only when the partition's last task has ended (`is_free`). Applying a chunk never awaits, and looks first whether
    the copy is still one. Rebalances stop tasks, not copies: those that remain are followed all the while.
Never ahead. Only committed records are read, so that the store is a prefix of the changelog.
Deletes. A copy's wall time is when it was last known to be all that the log held: the time of a look at the log's
    end that it reached since. A chunk is applied only while that is younger than deletes are kept: whatever was
    deleted since then was still there to be read, so that each position on disk is a good one. An older copy is built
    anew, and so is one that the log doesn't reach back to.
Death. At any point there is a prefix with its position and its wall time. A bulk load that wasn't settled loses its
    newest chunks, whole ones. The worker's next life follows on, or takes over, from there.
Brokers away, a full disk, a damaged store: all copies are dropped from memory and prepared anew after a pause. No
    error of a copy ends the worker, whose own tasks don't need it.

Copies come last: while a task of this worker has much to restore they wait, and where tasks run they take
half of the event loop's time. One consumer reads for all of them.

A warm-up copy is warm when it lacks no more than is acceptable. Then the worker asks for a rebalance
(`actors.runtime.asking`).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from actors._core.assign import Task as TaskId
from actors._core.placement import Copies
from actors._core.takeover import LogBounds, plan_restore
from actors._core.views import why_rebuild
from actors.errors import BrokerUnavailableError, RestoreError
from actors.ports import Clock, Following, LogRecord, StoreProvider, TopicPartition
from actors.runtime.asking import Asking
from actors.runtime.restore import LONG_READ, Changelog, begin_position, stored_writes
from actors.runtime.spec import ActorSpec
from actors.runtime.threads import finish_in_thread
from stores._core.record import Position
from stores._core.replay import advance
from stores.errors import StoreCorruptedError, StoreError
from stores.ports import PartitionStore

logger = logging.getLogger(__name__)

POLL_S = 0.2
LOOK_S = 1.0
LOOK_SHARE_S = 0.04
"""How often the logs' ends are looked at: each second, and less often where there are more copies than 25."""
KNOWN_S = 10.0
"""For so long what a look found counts as known."""
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
REMIND_S = 10.0
KEEP_AGE_MS = 60_000
"""How often the disk is told how old a copy is to which nothing is written."""


class Role(enum.StrEnum):
    """Why a copy is kept."""

    STANDBY = "standby"
    WARM_UP = "warm-up"


@dataclass(frozen=True, slots=True)
class CopyState:
    """A store's partition as this worker's copy has it.

    `position` is the next changelog offset to apply, `lag` how many offsets it lacked at the last look, None if that
    isn't known. `current_ms` is the time of the last look whose end it has reached, None before the first one,
    `looked_ms` that of the last look at all: an old one tells that the copy isn't followed now.
    """

    actor: str
    store: str
    partition: int
    role: Role
    position: int
    lag: int | None
    current_ms: int | None
    looked_ms: int


class StandbyLogs(Protocol):
    """What copies need of the brokers; see `actors.ports.TopicLogs`."""

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        """Give the partition's start and its high watermark."""

    async def follow(self, positions: Mapping[TopicPartition, int]) -> Following:
        """Begin to read at these offsets, without an end."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The rest of the worker, as copies see it.

    Attributes:
        is_free: whether no task touches the stores of an input partition.
        is_working: whether tasks run, which need the event loop.
        is_restoring: whether a task has much to restore.
        ask_for_rebalance: makes this member join the group anew.
    """

    is_free: Callable[[TopicPartition], bool]
    is_working: Callable[[], bool]
    is_restoring: Callable[[], bool]
    ask_for_rebalance: Callable[[], None]


@dataclass(slots=True)
class _Copy:
    """One store of a task.

    Attributes:
        end: the log's end at the last look, at `looked_s`.
        mark: when a look began and the end that it found; None when there is nothing to reach.
        is_bulk: whether it is so far behind that it is loaded past the write-ahead log.
        current_ms: see `CopyState`.
        kept_ms: the wall time that is on disk, at least.
        is_noted: whether the log says that it has become current.
    """

    changelog: Changelog
    source: TopicPartition
    store: PartitionStore
    position: Position
    end: int
    looked_s: float
    is_bulk: bool
    mark: tuple[int, int] | None = None
    current_ms: int | None = None
    kept_ms: int = 0
    is_noted: bool = False

    @property
    def lag(self) -> int:
        return max(0, self.end - self.position.changelog_offset)

    def look(self, asked_ms: int, bounds: LogBounds, now_s: float) -> None:
        """Note the log's end. An older mark is reached first: only then a new one is of use."""
        self.end, self.looked_s = bounds.end, now_s
        self.mark = self.mark or (asked_ms, bounds.end)
        self.reached()

    def reached(self) -> None:
        """See whether the mark is reached; the next write keeps it."""
        if self.mark is not None and self.position.changelog_offset >= self.mark[1]:
            self.current_ms = max(self.mark[0], self.current_ms or 0)
            self.position = replace(self.position, wall_time_ms=max(self.mark[0], self.position.wall_time_ms))
            self.mark = None


@dataclass(slots=True)
class _TaskCopy:
    """A task's stores."""

    task: TaskId
    spec: ActorSpec
    stores: list[_Copy] = field(default_factory=list)
    is_ready: bool = False


class _RebuildError(Exception):
    """A copy can't be followed on."""

    def __init__(self, copy: _TaskCopy, store: _Copy, why: str) -> None:
        super().__init__(why)
        self.copy, self.store, self.why = copy, store, why


class Standbys:
    """The copies of one worker.

    Args:
        specs: the actors.
        logs: the brokers.
        stores: the worker's stores.
        clock: the time.
        clock_skew_margin_ms: how far the clocks of brokers and this machine may differ.
        acceptable_lag: how many offsets a warm copy may lack.
        surroundings: the rest of the worker.
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
        self._acceptable_lag = acceptable_lag
        self._around = surroundings
        self._wanted: dict[TaskId, Role] = {}
        self._held: dict[TaskId, _TaskCopy] = {}
        self._locks: dict[TaskId, asyncio.Lock] = {}
        self._unsettled: dict[TaskId, _TaskCopy] = {}
        # Stores that failed, which may be closed since: whether their files are damaged too.
        self._suspect: dict[tuple[str, int], bool] = {}
        self._changed = asyncio.Event()
        self._asking = Asking(clock)
        self._said_s: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    # --- from the worker -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow what is wanted."""
        self._task = asyncio.create_task(self._run(), name="standbys")

    async def stop(self) -> None:
        """Stop; nothing touches the stores afterwards. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def assign(self, copies: Copies) -> None:
        """Take what the leader says; what isn't wanted any more is left alone from here on. Does no I/O."""
        wanted = dict.fromkeys(copies.standbys, Role.STANDBY) | dict.fromkeys(copies.warm_ups, Role.WARM_UP)
        wanted = {task: role for task, role in wanted.items() if task.actor in self._specs}
        self._asking.assigned({task for task, role in wanted.items() if role is Role.WARM_UP})
        if wanted == self._wanted:
            return
        gone = [task for task in self._held if task not in wanted]
        is_another_set = wanted.keys() != self._wanted.keys()
        self._wanted = wanted
        for task in gone:
            self._drop(task)
        if is_another_set:
            self._changed.set()

    async def let_go(self, actor: str, partition: int) -> None:
        """Wait until nothing touches a task's stores any more: from here on they are the caller's."""
        task = TaskId(actor, partition)
        self._wanted.pop(task, None)
        self._held.pop(task, None)
        self._unsettled.pop(task, None)
        async with self._lock(task):
            # The owner mends what is damaged. A store that it made anew mustn't be deleted when it is a copy again.
            for place in self._suspect:
                if place[1] == partition and place[0] in self._specs[actor].changelogs:
                    self._suspect[place] = False

    # --- what it says ----------------------------------------------------------------------------------------------

    @property
    def copies(self) -> list[CopyState]:
        """The copies that are followed, by actor, partition and store."""
        return [
            CopyState(
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
        """Give how many partitions it shall keep copies of, by actor with stores, and by role."""
        found = {name: {role.value: 0 for role in Role} for name, spec in self._specs.items() if spec.stores}
        for task, role in self._wanted.items():
            if task.actor in found:
                found[task.actor][role.value] += 1
        return found

    def lags(self) -> dict[TaskId, int]:
        """Give how many offsets the copies lack, all stores of a task together, where it is known."""
        found = {}
        for task, copy in self._held.items():
            lags = [self._known_lag(one) for one in copy.stores]
            if copy.is_ready and lags and None not in lags:
                found[task] = sum(lag for lag in lags if lag is not None)
        return found

    def stores_of(self, actor: str, partition: int) -> tuple[Mapping[str, PartitionStore], int] | None:
        """Give a copy's stores, and since when it may lack something: None if there is none, or it never was current.

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

    def _known_lag(self, one: _Copy) -> int | None:
        return one.lag if self._clock.monotonic() - one.looked_s <= KNOWN_S else None

    # --- the loop --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self._follow()
                retry_s = FIRST_RETRY_S
                continue
            except asyncio.CancelledError:
                running = asyncio.current_task()
                if running is None or running.cancelling():
                    raise
                # Nobody cancelled this task: a future that the client waited for was.
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
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _follow(self) -> None:
        """Follow what is wanted until that changes."""
        self._changed.clear()
        await self._settle_dropped()
        all_are_free = await self._prepare()
        positions = {one.source: one.position.changelog_offset for one in self._ready()}
        if not positions:
            await self._wait(None if all_are_free else POLL_S)
            return
        following = await self._logs.follow(positions)
        try:
            await self._apply_all(following, all_are_free)
        except _RebuildError as rebuild:
            await self._rebuild(rebuild)
        finally:
            await following.close()

    async def _apply_all(self, following: Following, all_are_free: bool) -> None:
        await self._look()
        looked_s = self._clock.monotonic()
        by_source = {one.source: (copy, one) for copy in self._held.values() for one in copy.stores}
        while not self._changed.is_set():
            if not all_are_free and any(task not in self._held and self._is_free(task) for task in self._wanted):
                return
            while self._around.is_restoring() and not self._changed.is_set():
                await self._wait(POLL_S)
            fetched = await following.poll(POLL_S)
            began_s = self._clock.monotonic()
            for source, (records, next_offset) in fetched.items():
                self._apply(*by_source[source], records, next_offset)
            if fetched and self._around.is_working():
                await self._clock.sleep(self._clock.monotonic() - began_s)
            if self._clock.monotonic() - looked_s >= max(LOOK_S, LOOK_SHARE_S * len(by_source)):
                await self._look()
                looked_s = self._clock.monotonic()

    def _apply(self, copy: _TaskCopy, one: _Copy, records: Sequence[LogRecord], next_offset: int) -> None:
        if self._held.get(copy.task) is not copy:
            return
        if self._is_too_old(one):
            raise _RebuildError(copy, one, "it was behind for longer than deletes are kept, some may have escaped it")
        writes, newest = stored_writes(records)
        one.position = advance(one.position, newest, next_offset)
        one.reached()
        try:
            (one.store.load if one.is_bulk else one.store.apply)(writes, one.position)
        except StoreError as error:
            self._suspect_it(one.changelog.store, copy.task.partition, error)
            raise

    def _is_too_old(self, one: _Copy) -> bool:
        age_ms = self._clock.wall_ms() - one.position.wall_time_ms
        return age_ms >= one.changelog.delete_retention_ms - self._margin_ms

    async def _look(self) -> None:
        """Find out what the copies lack, and whether one can't be followed on."""
        for copy in list(self._held.values()):
            for one in copy.stores:
                asked_ms, bounds = self._clock.wall_ms(), await self._logs.bounds(one.source)
                if self._held.get(copy.task) is not copy:
                    break
                why = self._why_rebuild(one, bounds)
                if why is not None:
                    raise _RebuildError(copy, one, why)
                one.look(asked_ms, bounds, self._clock.monotonic())
                self._note_current(copy, one)
                if one.is_bulk and one.lag <= LONG_READ:
                    await self._settle(copy, one)
                elif asked_ms - one.kept_ms >= KEEP_AGE_MS and one.mark is None and not one.is_bulk:
                    one.store.apply((), one.position)
                    one.kept_ms = asked_ms
        self._ask()

    def _note_current(self, copy: _TaskCopy, one: _Copy) -> None:
        if one.current_ms is not None and not one.is_noted:
            one.is_noted = True
            offset = one.position.changelog_offset
            logger.info("%s is a %s copy that has all up to offset %d", one.source, self._wanted[copy.task], offset)

    def _ask(self) -> None:
        warm_ups = [task for task, role in self._wanted.items() if role is Role.WARM_UP]
        lags = self.lags()
        warm = {
            task
            for task in warm_ups
            if lags.get(task, self._acceptable_lag + 1) <= self._acceptable_lag
            and not any(one.is_bulk for one in self._held[task].stores)
        }
        if self._asking.is_due(warm, len(warm_ups)):
            logger.info("%s: warm copies, asking for a rebalance", ", ".join(map(_name, sorted(warm))))
            self._around.ask_for_rebalance()

    # --- preparing -------------------------------------------------------------------------------------------------

    async def _prepare(self) -> bool:
        """Open what is wanted and not there yet; tell whether that was all."""
        all_are_free = True
        for task in sorted(self._wanted):
            if task in self._held or task not in self._wanted:
                continue
            if not self._is_free(task):
                all_are_free = False
                continue
            copy = self._held[task] = _TaskCopy(task, self._specs[task.actor])
            async with self._lock(task):
                for store in copy.spec.stores:
                    if self._held.get(task) is copy:
                        await self._open(copy, copy.spec.changelogs[store.name])
            copy.is_ready = True
        return all_are_free

    async def _open(self, copy: _TaskCopy, changelog: Changelog) -> None:
        """Open one store, and wipe it if it can't be followed on; the lock is held."""
        partition = copy.task.partition
        place, source = (changelog.store, partition), TopicPartition(changelog.topic, partition)
        if place in self._suspect:
            is_damaged = self._suspect[place]
            await (self._stores.discard if is_damaged else self._stores.reopen)(*place)
            del self._suspect[place]
        store = await self._stores.open(*place)
        asked_ms, bounds = self._clock.wall_ms(), await self._logs.bounds(source)
        position = store.position()
        if position is not None:
            why = self._why(position, bounds, changelog)
            if why is not None:
                await self._wipe(store, changelog.store, source, why)
                position = None
        if position is None:
            position = begin_position(None, plan_restore(None, bounds, changelog.topic_id), asked_ms, changelog)
        elif bounds.end - position.changelog_offset <= 1:
            # Only a marker can be behind it: nothing has escaped, however old it is.
            position = replace(position, wall_time_ms=max(asked_ms, position.wall_time_ms))
        one = _Copy(
            changelog=changelog,
            source=source,
            store=store,
            position=position,
            end=bounds.end,
            looked_s=self._clock.monotonic(),
            is_bulk=bounds.end - position.changelog_offset > LONG_READ,
        )
        copy.stores.append(one)

    async def _rebuild(self, rebuild: _RebuildError) -> None:
        copy, one = rebuild.copy, rebuild.store
        async with self._lock(copy.task):
            if self._held.get(copy.task) is copy:
                # A reader mustn't find an empty store, or a closed one.
                copy.is_ready = False
                await self._wipe(one.store, one.changelog.store, one.source, rebuild.why)
        if self._held.get(copy.task) is copy:
            del self._held[copy.task]

    async def _wipe(self, store: PartitionStore, name: str, source: TopicPartition, why: str) -> None:
        logger.warning("%s: building the copy anew: %s", source, why)
        await self._in_thread(name, source.partition, store.wipe)

    async def _in_thread(self, store: str, partition: int, work: Callable[[], None]) -> None:
        """Do what may leave the store closed if it fails."""
        try:
            await finish_in_thread(work)
        except (StoreError, OSError) as error:
            self._suspect_it(store, partition, error)
            raise

    def _suspect_it(self, store: str, partition: int, error: Exception) -> None:
        place = store, partition
        self._suspect[place] = self._suspect.get(place, False) or isinstance(error, StoreCorruptedError)

    async def _settle(self, copy: _TaskCopy, one: _Copy) -> None:
        async with self._lock(copy.task):
            if self._held.get(copy.task) is not copy:
                return
            await self._in_thread(one.changelog.store, copy.task.partition, one.store.settle)
        one.is_bulk = False

    async def _settle_dropped(self) -> None:
        """Keep what was loaded of copies that nobody wants any more, so that their stores are plain ones again."""
        while self._unsettled:
            task, copy = self._unsettled.popitem()
            if task in self._held or not self._is_free(task):
                continue
            async with self._lock(task):
                for one in copy.stores:
                    if one.is_bulk and self._is_free(task):
                        await self._in_thread(one.changelog.store, task.partition, one.store.settle)

    def _why_rebuild(self, one: _Copy, bounds: LogBounds) -> str | None:
        return self._why(one.position, bounds, one.changelog)

    def _why(self, position: Position, bounds: LogBounds, changelog: Changelog) -> str | None:
        return why_rebuild(
            position,
            bounds,
            changelog.topic_id,
            now_ms=self._clock.wall_ms(),
            delete_retention_ms=changelog.delete_retention_ms,
            margin_ms=self._margin_ms,
        )

    # --- inside ----------------------------------------------------------------------------------------------------

    def _ready(self) -> list[_Copy]:
        return [one for copy in self._held.values() if copy.is_ready for one in copy.stores]

    def _is_free(self, task: TaskId) -> bool:
        return self._around.is_free(TopicPartition(self._specs[task.actor].topic, task.partition))

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
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _say(self, text: str) -> None:
        """Log a warning, one in a while."""
        now_s = self._clock.monotonic()
        if now_s - self._said_s.get("failed", float("-inf")) >= REMIND_S:
            self._said_s["failed"] = now_s
            logger.warning("%s", text)


def _name(task: TaskId) -> str:
    return f"{task.actor}[{task.partition}]"
