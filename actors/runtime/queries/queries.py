"""Reads committed state for queries, of partitions that this worker provably owns.

An answer is linearizable: it has all that anybody could have seen when the question came, and nothing that Kafka may
still refuse.

- **The owner answers, nobody else**: the partition's task runs here, and the lease (`read_lease`) says that no
  other worker owned it by then.
- **After the commit that is under way**: what a transaction made visible is in RocksDB a moment later. A question that
  comes in between waits for that commit's end. For a later one it needn't: nobody could have seen it.
- **Below the overlay**: only RocksDB is read, which never has what isn't committed.

All that one answer has of a partition is read without an await in between, and belongs to one position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from typing import NamedTuple, TypeVar

from actors._core.group.members import TaskId
from actors._core.pages import Part, Place, resume_at
from actors._core.task.lifecycle import State
from actors.errors import NotOwnerError, NotReadyError
from actors.ports import Clock
from actors.runtime.queries.pace import Pace
from actors.runtime.queries.read_lease import ReadLease
from actors.runtime.spec import ActorSpec
from actors.runtime.task.task import Task
from stores._core.record import METADATA_BYTES, NEVER, Position, expires_at_ms, is_expired
from stores.errors import StoreError
from stores.ports import PartitionStore

T = TypeVar("T")
Rows = Iterator[tuple[bytes, bytes]]
"""Keys and their values with write metadata."""
StandbyStores = Callable[[str, int], tuple[Mapping[str, PartitionStore], int] | None]
"""A function to the stores of a copy by name, and the time in Unix milliseconds up to which the copy is complete."""

WAIT_S = 2.0
"""How long a question waits for a commit's end."""
MAX_LOOKED_AT = 5_000
"""How many keys one page looks at, expired ones too: it holds the event loop as long."""
MAX_LOOKED_AT_BYTES = 16 * 1024 * 1024
"""How many bytes of values one page looks at."""
MAX_COUNTS = 4
"""How many walks through a store run or wait at a time: they go on when those who asked have hung up."""
COUNT_SLICE = 1_000
COUNT_SLICE_BYTES = 1024 * 1024

_REASONS = {
    State.FENCING: "this worker's own last transaction is being ended",
    State.CONFIRMING: "the group is asked whether this worker is a member",
    State.LOOKING: "its last owner's transactions are being settled, and its offsets looked up",
    State.RESTORING: "its state is being restored from the changelog",
    State.CLAIMING: "its ownership is being written down",
    State.COMMITTING: "a commit takes longer than expected",
    State.REFUSED: "it is stopped, because its state contradicts the committed offset: see the worker's log",
    State.CLOSED: "it is going to another worker",
}


class Held(NamedTuple):
    """A partition of a store, to be read at once: after an await it may be another's."""

    partition: int
    store: PartitionStore
    position: Position
    now_ms: int
    staleness_ms: int | None = None
    """How old it may be; None for what the owner gives."""


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A partition of an actor, to be read at once."""

    partition: int
    stores: Mapping[str, PartitionStore]
    now_ms: int
    staleness_ms: int | None = None

    def of(self, store: str) -> Held:
        """Return one of the actor's stores.

        Raises:
            NotReadyError: it can't be read.
        """
        partition = self.stores[store]
        try:
            position = partition.position()
        except StoreError as error:
            raise NotReadyError(f"store {store}, partition {self.partition} can't be read: {error}") from error
        if position is None:
            raise NotReadyError(f"store {store}, partition {self.partition} is being rebuilt")
        return Held(self.partition, partition, position, self.now_ms, self.staleness_ms)


class Found(NamedTuple):
    """A key's value, without its metadata; None where it is absent or expired."""

    value: bytes | None
    expires_at_ms: int | None = None


ABSENT = Found(None)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range of keys in byte order: `start` is in it, `end` isn't; None is open."""

    start: bytes | None = None
    end: bytes | None = None


class StateReader:
    """The committed state that this worker owns, and with `stores_of` its copies of other partitions.

    A copy is for queries that take an older answer: it is a prefix of the committed changelog. How old an answer may be
    is known from the looks at the log's end: all that was committed before the last look whose end the copy has reached
    is in it. So the answer's staleness is the time since that look, and an upper bound. A copy that never reached one,
    or is being rebuilt, gives no answer.

    `task_of` gives a task that is assigned to this worker; `pace` shares the event loop between the
    long answers of all readers.
    """

    def __init__(
        self,
        task_of: Callable[[TaskId], Task | None],
        lease: ReadLease,
        clock: Clock,
        stores_of: StandbyStores | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._task_of = task_of
        self._lease = lease
        self._clock = clock
        self._stores_of = stores_of
        self.pace = pace or Pace(clock)
        self._counting = asyncio.Semaphore(1)
        self._counts = 0

    def has(self, spec: ActorSpec, partition: int) -> bool:
        """Return whether the partition is assigned to this worker, whatever its state, or a copy of it can be read."""
        is_copied = self._stores_of is not None and self._stores_of(spec.name, partition) is not None
        return is_copied or self._is_owned(spec, partition)

    def _is_owned(self, spec: ActorSpec, partition: int) -> bool:
        return self._task_of(TaskId(spec.name, partition)) is not None

    def state_of(self, spec: ActorSpec, partition: int) -> str | None:
        """Return the state of the partition's task, None if the partition isn't assigned to this worker."""
        task = self._task_of(TaskId(spec.name, partition))
        return None if task is None else task.state.value

    async def hold(self, spec: ActorSpec, partitions: Collection[int]) -> list[HeldTask]:
        """Return partitions to be read before the next await.

        Raises:
            NotOwnerError: one isn't assigned to this worker.
            NotReadyError: one can't be read now.
        """
        owned = [number for number in partitions if self._stores_of is None or self._is_owned(spec, number)]
        since_s = self._lease.now_s()
        for task in [self._owned(spec, partition) for partition in owned]:
            await self._commit_ended(task, since_s)
        tasks = await self._ready(spec, owned, since_s)
        return [*tasks, *(self._copy(spec, partition) for partition in partitions if partition not in owned)]

    def _copy(self, spec: ActorSpec, partition: int) -> HeldTask:
        found = None if self._stores_of is None else self._stores_of(spec.name, partition)
        if found is None:
            raise NotReadyError(f"partition {partition} of actor {spec.name}: the copy here isn't ready")
        (stores, current_ms), now_ms = found, self._clock.wall_ms()
        return HeldTask(partition, stores, now_ms, staleness_ms=max(0, now_ms - current_ms))

    async def _ready(self, spec: ActorSpec, partitions: Collection[int], since_s: float) -> list[HeldTask]:
        """Return partitions whose commits have ended that were under way at `since_s`."""
        while True:
            tasks = [self._owned(spec, partition) for partition in partitions]
            busy = next((task for task in tasks if task.committed is None), None)
            if busy is not None:
                if busy.state is not State.COMMITTING:
                    raise _not_ready(busy)
                await self._commit_ended(busy, since_s)
                continue
            late = next((task for task in tasks if not self._lease.holds(task.context.identity, since_s)), None)
            if late is None:
                return [HeldTask(task.partition, task.committed or {}, task.context.clock.wall_ms()) for task in tasks]
            await self._lease.renew(late.context.identity)

    def _owned(self, spec: ActorSpec, partition: int) -> Task:
        task = self._task_of(TaskId(spec.name, partition))
        if task is None:
            raise NotOwnerError(f"partition {partition} of actor {spec.name} isn't this worker's")
        return task

    async def _commit_ended(self, task: Task, since_s: float) -> None:
        ended = task.context.commit_end(max(0.0, since_s + WAIT_S - self._lease.now_s()))
        if ended is None:
            return
        try:
            await ended
        except TimeoutError:
            raise _not_ready(task) from None

    async def count(self, spec: ActorSpec, store: str, partitions: Collection[int], bounds: Bounds) -> int:
        """Count the keys that are there, as `walk` does."""
        _, counts = await self.walk(spec, store, partitions, bounds, lambda held, rows: _counts(held.now_ms, rows))
        return sum(counts)

    async def walk(
        self,
        spec: ActorSpec,
        store: str,
        partitions: Collection[int],
        bounds: Bounds,
        look: Callable[[Held, Rows], Iterator[T]],
    ) -> tuple[list[Held], list[T]]:
        """Look at all rows of some partitions, all as of one moment, at this reader's pace.

        Args:
            spec: the actor.
            store: one of its stores.
            partitions: partitions of this worker.
            bounds: which keys.
            look: called with each partition and its rows; what it yields ends a slice of the event loop's time.

        Returns:
            The partitions as they were at the moment, and all that was yielded.

        Raises:
            NotOwnerError: a partition isn't assigned to this worker.
            NotReadyError: a partition can't be read, or left this worker meanwhile, or too many wait for their turn.
        """
        if self._counts >= MAX_COUNTS:
            raise NotReadyError(f"{MAX_COUNTS} counts or digests run or wait here already: ask again later")
        self._counts += 1
        try:
            async with self._counting:
                parts = [task.of(store) for task in await self.hold(spec, partitions)]
                looks = [look(part, part.store.scan(bounds.start, bounds.end)) for part in parts]
                return parts, await self.pace.run(step for steps in looks for step in steps)
        except StoreError as error:
            raise NotReadyError(f"store {store} moved while its rows were looked at: {error}") from error
        finally:
            self._counts -= 1


def _counts(now_ms: int, rows: Rows) -> Iterator[int]:
    """Count the rows that haven't expired, some at a time."""
    count = looked_at = size = 0
    for _, raw in rows:
        count += not is_expired(raw, now_ms)
        looked_at, size = looked_at + 1, size + len(raw)
        if looked_at >= COUNT_SLICE or size >= COUNT_SLICE_BYTES:
            yield count
            count = looked_at = size = 0
    yield count


def read(held: Held, key: bytes) -> Found:
    """Return the value of a key."""
    try:
        raw = held.store.get(key)
    except StoreError as error:
        raise unreadable(held, error) from error
    if raw is None or is_expired(raw, held.now_ms):
        return ABSENT
    return Found(raw[METADATA_BYTES:], expiry_of(raw))


def expiry_of(raw: bytes) -> int | None:
    """Return the time at which a value with its metadata expires, None for never."""
    expires_ms = expires_at_ms(raw)
    return None if expires_ms == NEVER else expires_ms


def read_part(
    held: Collection[Held], bounds: Bounds, after: Place | None, limit: int, max_bytes: int = MAX_LOOKED_AT_BYTES
) -> Part[tuple[Held, Found]]:
    """Return the next rows of some partitions together.

    They are `limit` at most, and end behind the first value that exceeds `max_bytes` together with those before it.
    """
    return take((_walk(one, bounds, after) for one in held), limit, max_bytes)


Looked = tuple[Place, Held, Found, int]
"""A key that was looked at, what there is of it, and how many bytes were read for it."""


def take(
    walks: Iterable[Iterator[Looked]], limit: int, max_bytes: int, *, most: int = MAX_LOOKED_AT
) -> Part[tuple[Held, Found]]:
    """Return the next rows of all walks together, as `read_part` does; at most `most` keys are looked at."""
    rows: list[tuple[Place, tuple[Held, Found]]] = []
    size = seen = 0
    for looked_at, (place, one, found, read_bytes) in enumerate(merge(*walks), 1):
        seen += read_bytes
        if found.value is not None:
            rows.append((place, (one, found)))
            size += len(place[0]) + len(found.value)
        is_full = len(rows) >= limit or size >= max_bytes
        if is_full or looked_at >= most or seen >= MAX_LOOKED_AT_BYTES:
            return Part(rows, place)
    return Part(rows, None)


def _walk(held: Held, bounds: Bounds, after: Place | None) -> Iterator[Looked]:
    start = resume_at(bounds.start, after, held.partition)
    try:
        for key, raw in held.store.scan(start, bounds.end):
            found = ABSENT if is_expired(raw, held.now_ms) else Found(raw[METADATA_BYTES:], expiry_of(raw))
            yield (key, held.partition), held, found, len(raw)
    except StoreError as error:
        raise unreadable(held, error) from error


def unreadable(held: Held, error: StoreError) -> NotReadyError:
    """Return the error for a partition that can't be read now."""
    return NotReadyError(f"partition {held.partition} can't be read: {error}")


def _not_ready(task: Task) -> NotReadyError:
    # A commit may end in the same turn of the loop as the wait for it: the task runs by now.
    reason = _REASONS.get(task.state, _REASONS[State.COMMITTING])
    return NotReadyError(f"partition {task.partition} of actor {task.spec.name}: {reason}")


def estimate(held: Collection[Held]) -> int:
    """Return about how many keys there are, expired ones too."""
    return sum(one.store.estimated_keys() for one in held)
