"""Copies of tasks that others own: standbys, and warm-ups on their way to become owners.

A copy is the same store that a takeover would restore, and following is that restore without an end
(`actors.runtime.replicas.follower`). So a takeover finds a checkpoint like any other, and reads what little is behind
it; nothing here is trusted by it. What must hold:

One writer. A partition that the assignment gives to this worker leaves the copies in the same callback, before its
    task exists; the task waits in `release` until a write in a thread is over. The other way round a copy is opened
    only when the partition's last task has ended (`is_free`). Rebalances stop tasks, not copies: those that remain are
    followed all the while.
Windows past their retention. The owner removes them from its disk without a delete in the log. A copy that was loaded
    removes them at each look, as far as the log says that the owner may have.
Death. At any point there is a prefix with its position and its wall time. A bulk load that wasn't settled loses its
    newest chunks, whole ones. The worker's next life follows on, or takes over, from there.
A log that lost records. The copy that has them isn't touched until the operator lets it be rebuilt.
Brokers away, a full disk, a damaged store: no error of a copy ends the worker.

Copies wait while a task restores, and take half of the event loop's time at most. A warm-up copy is warm when it lacks
no more than is acceptable; see `Asking`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from actors._core.backoff import Backoff
from actors._core.group.members import TaskId
from actors._core.group.placement import Copies
from actors._core.logs import Reminders, escaping
from actors.errors import BrokerUnavailableError, RestoreError
from actors.ports import Clock, TopicLogs, TopicPartition
from actors.runtime.cancellation import end
from actors.runtime.replicas.follower import POLL_S, FollowedStore, Follower, Policy
from actors.runtime.replicas.log_ends import ANSWER_S, Look
from actors.runtime.spec import ActorSpec
from actors.runtime.state.restore import LONG_READ, Changelog, begin_position
from actors.runtime.state.stores import StoreCache
from actors.runtime.task.lost_changelog import StandbyChecks
from actors.runtime.threads import finish_in_thread
from actors.runtime.windows.removal import Removal
from stores.errors import StoreError
from stores.ports import PartitionStore

logger = escaping(logging.getLogger(__name__))

LOOK_S = 1.0
LOOK_SHARE_S = 0.04
"""How often the logs' ends are looked at: each second, and less often where there are more copies than 25."""
KNOWN_S = 10.0
"""For so long what a look found counts as known, or until the look after the next one should have been."""
REMIND_S = 10.0
PATIENCE_S = 10.0
"""How long the first warm copy waits for the others."""
REST = Backoff(5.0, longest_s=60.0)
"""The time after any rebalance, and between two that this worker asks for: each stops all tasks of the group."""


class Role(enum.StrEnum):
    """Why a copy is kept."""

    STANDBY = "standby"
    WARM_UP = "warm-up"


@dataclass(frozen=True, slots=True)
class StandbyState:
    """A store's partition as this worker's copy has it.

    `position` is the next changelog offset to apply, `lag` how many offsets it lacked at the last look, None if that
    is unknown. `current_ms` is the time of the last look whose end it has reached, None before the first one,
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


@dataclass(slots=True, kw_only=True)
class StandbyStore(FollowedStore):
    """One store of a task.

    Attributes:
        name: the store's.
        is_bulk: whether it is so far behind that it is loaded past the write-ahead log.
        is_noted: whether the log says that it has become current.
        removal: of a window store, removes what is past its retention.
    """

    name: str
    is_bulk: bool
    is_noted: bool = False
    removal: Removal | None = None


class Standbys(Policy[StandbyStore]):
    """The copies of one worker.

    Args:
        specs: the actors.
        logs: reads their changelogs.
        stores: the worker's.
        clock: likewise.
        clock_skew_margin_ms: how far the clocks of brokers and this machine may differ.
        acceptable_lag: how many offsets a warm copy may lack by this worker's settings; the leader's count.
        task_is_free: returns whether nobody touches a task's stores.
        is_working: returns whether tasks run, which need the event loop.
        ask_for_rebalance: makes this member join the group again.
        checks: tells that a log lost what a copy has; has the worker's restorer.
    """

    pause = Backoff(1.0, longest_s=30.0)

    def __init__(
        self,
        specs: Iterable[ActorSpec],
        *,
        logs: TopicLogs,
        stores: StoreCache,
        clock: Clock,
        clock_skew_margin_ms: int,
        acceptable_lag: int,
        task_is_free: Callable[[TaskId], bool],
        is_working: Callable[[], bool],
        ask_for_rebalance: Callable[[], None],
        checks: StandbyChecks,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._by_topic: dict[str, tuple[ActorSpec, Changelog]] = {}
        for spec in self._specs.values():
            for store in spec.stores:
                changelog = spec.changelogs[store.name]
                self._by_topic[changelog.topic] = spec, changelog
        self._stores = stores
        self._clock = clock
        self._margin_ms = clock_skew_margin_ms
        self._own_limit = self._limit = acceptable_lag
        self._task_is_free, self._is_working = task_is_free, is_working
        self._ask_for_rebalance, self._checks = ask_for_rebalance, checks
        self._wanted: dict[TaskId, Role] = {}
        self._follower = Follower(self, logs=logs, clock=clock)
        self._asking = Asking(clock)
        self._reminders = Reminders(REMIND_S)
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow what is wanted."""
        self._running = asyncio.create_task(self._follower.run(), name="standbys")

    async def stop(self) -> None:
        """Stop; nothing touches the stores afterwards. May be called twice."""
        running, self._running = self._running, None
        await end(running)

    def assign(self, copies: Copies) -> None:
        """Take what the leader says; what isn't wanted any more is left alone from here on. Does no I/O."""
        wanted = dict.fromkeys(copies.standbys, Role.STANDBY) | dict.fromkeys(copies.warm_ups, Role.WARM_UP)
        self._wanted = {task: role for task, role in sorted(wanted.items()) if task.actor in self._specs}
        warm_ups = {task for task, role in self._wanted.items() if role is Role.WARM_UP}
        self._asking.assigned(warm_ups)
        if warm_ups:
            self._go_by(copies.acceptable_lag)
        self._follower.want(source for task in self._wanted for source in self._sources(task))

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
        await self._follower.release(self._sources(task))

    @property
    def copies(self) -> list[StandbyState]:
        """The copies that are followed, by actor, partition and store."""
        return [
            StandbyState(
                actor=task.actor,
                store=copy.name,
                partition=task.partition,
                role=role,
                position=copy.position.changelog_offset,
                lag=self._known_lag(copy),
                current_ms=copy.current_ms,
                looked_ms=self._clock.wall_ms() - int(1000 * (self._clock.monotonic() - copy.looked_s)),
            )
            for task, role in sorted(self._wanted.items())
            for copy in map(self._follower.followed, self._sources(task))
            if copy is not None
        ]

    def assigned(self) -> dict[str, dict[str, int]]:
        """Return how many partitions it shall keep copies of, by actor with stores, and by role."""
        counts = {name: {role.value: 0 for role in Role} for name, spec in self._specs.items() if spec.stores}
        for task, role in self._wanted.items():
            if task.actor in counts:
                counts[task.actor][role.value] += 1
        return counts

    def lags(self) -> dict[TaskId, int]:
        """Return how many offsets the copies lack, all stores of a task together, where it is known."""
        lags = {}
        for task in self._wanted:
            known = [lag for copy in self._copies_of(task) if (lag := self._known_lag(copy)) is not None]
            if known and len(known) == len(self._sources(task)):
                lags[task] = sum(known)
        return lags

    def stores_of(self, actor: str, partition: int) -> tuple[Mapping[str, PartitionStore], int] | None:
        """Return a copy's stores, and since when it may lack something: None if there is none, or it never was current.

        To be read before the next await.
        """
        copies = self._copies_of(TaskId(actor, partition))
        times = [copy.current_ms for copy in copies if copy.current_ms is not None and not copy.is_bulk]
        if not times or len(times) < len(copies):
            return None
        return {copy.name: copy.store for copy in copies}, min(times)

    def _copies_of(self, task: TaskId) -> list[StandbyStore]:
        """Return the copies of a task's stores, none if one isn't followed."""
        copies = [copy for copy in map(self._follower.followed, self._sources(task)) if copy is not None]
        return copies if len(copies) == len(self._sources(task)) else []

    def _known_lag(self, copy: StandbyStore) -> int | None:
        known_s = max(KNOWN_S, 2 * self.look_pause_s)
        return copy.lag if self._clock.monotonic() - copy.looked_s <= known_s else None

    @property
    def look_pause_s(self) -> float:  # type: ignore[override]
        """Each second, and less often where there are many copies."""
        return max(LOOK_S, LOOK_SHARE_S * len(self._follower.held))

    def is_free(self, source: TopicPartition) -> bool:
        """Return whether the partition's last task has ended."""
        return self._task_is_free(self._task(source))

    async def open_store(self, source: TopicPartition, look: Look, failure: Exception | None) -> StandbyStore:
        """Open a store, and wipe it if it can't be followed on."""
        spec, changelog = self._by_topic[source.topic]
        checks, bounds, partition = self._checks, look.bounds, source.partition
        if isinstance(failure, StoreError | OSError):
            await self._stores.repair(changelog.store, partition, failure)
        await checks.require_changelogs(spec)
        store = await self._stores.open(changelog.store, partition)
        position = store.position()
        if position is not None:
            async with asyncio.timeout(ANSWER_S):
                why = await checks.why_rebuilt(spec, partition, changelog, position, bounds)
            if why is not None:
                logger.warning("%s: rebuilding the copy: %s", source, why)
                await finish_in_thread(store.wipe)
                position = None
        if position is None:
            position = await checks.restorer.begin_from_snapshot(store, changelog, partition, bounds)
        if position is None:
            position = begin_position(bounds.start, look.asked_ms, changelog.topic_id)
        elif bounds.end - position.changelog_offset <= 1:
            # Only a marker can be behind it: nothing has escaped, however old it is.
            position = replace(position, wall_time_ms=look.asked_ms)
        return StandbyStore(
            source=source,
            name=changelog.store,
            store=store,
            position=position,
            kept=changelog.kept(self._margin_ms),
            is_bulk=bounds.end - position.changelog_offset > LONG_READ,
            removal=next((Removal(window, store) for window in spec.windows if window.name == changelog.store), None),
        )

    async def write(self, store: StandbyStore, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write a chunk, past the write-ahead log where the copy is far behind."""
        (store.store.load if store.is_bulk else store.store.apply)(writes, store.position)

    async def looked(self, store: StandbyStore) -> None:
        """Log that the copy is current, end a bulk load, and remove what is past its retention."""
        if store.current_ms is not None and not store.is_noted:
            store.is_noted = True
            role, offset = self._wanted[self._task(store.source)], store.position.changelog_offset
            logger.info("%s is a %s copy that has all up to offset %d", store.source, role, offset)
        if store.is_bulk and store.lag <= LONG_READ:
            await self.close_store(store)
        if store.removal is not None and not store.is_bulk and self._follower.followed(store.source) is store:
            store.removal.follow()

    async def close_store(self, store: StandbyStore) -> None:
        """Keep what was loaded, so that the store is a plain one again."""
        if store.is_bulk:
            await finish_in_thread(store.store.settle)
            store.is_bulk = False

    async def look(self) -> None:
        """Ask for a rebalance if it is time."""
        warm_ups = [task for task, role in self._wanted.items() if role is Role.WARM_UP]
        lags = self.lags()
        warm = {
            task
            for task in warm_ups
            if lags.get(task, self._limit + 1) <= self._limit
            and not any(copy.is_bulk for copy in self._copies_of(task))
        }
        if self._asking.is_due(warm, len(warm_ups)):
            logger.info("%s: warm copies, asking for a rebalance", ", ".join(map(_name, sorted(warm))))
            self._ask_for_rebalance()

    async def give_way(self, spent_s: float) -> None:
        """Let tasks have half of the event loop's time, and restores all of it."""
        if spent_s and self._is_working():
            await self._clock.sleep(spent_s)
        while self._checks.restorer.is_busy and not self._follower.is_changed:
            await self._follower.wait(POLL_S)

    def failed(self, error: Exception, source: TopicPartition | None = None, pause_s: float = 0.0) -> None:
        """Log an error; none ends the copies."""
        if source is not None:
            name = _name(self._task(source))
            self._say(f"{name}: the copy can't be kept: {error}; it is tried again in {pause_s:g} s")
        elif isinstance(error, BrokerUnavailableError | RestoreError):
            # What the copies hold stays what it was. A log that begins behind one is found by the next look.
            self._say(f"copies can't be followed: {error}; it is tried again")
        else:
            logger.error("copies can't be followed; it is tried again", exc_info=error)
            self._follower.drop_all()

    def _sources(self, task: TaskId) -> list[TopicPartition]:
        spec = self._specs[task.actor]
        return [TopicPartition(spec.changelogs[store.name].topic, task.partition) for store in spec.stores]

    def _task(self, source: TopicPartition) -> TaskId:
        return TaskId(self._by_topic[source.topic][0].name, source.partition)

    def _say(self, text: str) -> None:
        """Log a warning, one in a while."""
        if self._reminders.is_due(self._clock.monotonic()):
            logger.warning("%s", text)


def _name(task: TaskId) -> str:
    return f"{task.actor}[{task.partition}]"


class Asking:
    """When to ask for a rebalance: not for each warm copy, and less often when it moves nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rest_s = REST.first_s
        self._not_before_s = float("-inf")
        self._first_warm_s: float | None = None
        self._asked_for: set[TaskId] = set()

    def assigned(self, warm_ups: set[TaskId]) -> None:
        """Note an assignment: a rebalance was asked for in vain if a copy that it was for is a warm-up still."""
        if self._asked_for:
            self._rest_s = REST.longer_s(self._rest_s) if self._asked_for & warm_ups else REST.first_s
            self._asked_for = set()
        self._first_warm_s = None
        # Whichever member asked for this one: many new members that ask in turn would stop the group all the time.
        self._not_before_s = max(self._not_before_s, self._clock.monotonic() + REST.first_s)

    def is_due(self, warm: set[TaskId], wanted: int) -> bool:
        """Return whether to ask now, when `warm` of `wanted` copies are warm; if so, it is noted as asked."""
        now_s = self._clock.monotonic()
        if not warm:
            self._first_warm_s = None
            return False
        if self._first_warm_s is None:
            self._first_warm_s = now_s
        if len(warm) < wanted and now_s - self._first_warm_s < PATIENCE_S:
            return False
        if now_s < self._not_before_s:
            return False
        self._not_before_s = now_s + self._rest_s
        self._asked_for = set(warm)
        return True
