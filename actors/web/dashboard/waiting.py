"""Entries that wait at this worker: parked messages, effects, timers and locks of its own partitions, as committed.

Only so much is looked at, and in slices, so that the worker's event loop is never held for long: a count that stops
at a limit says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import msgspec

from actors._core.keys import line_bounds, split_sized
from actors._faust.app import App
from actors.admin.parked.reader import LETTERS, Entry, What, entry_of
from actors.runtime.message.store import Store
from actors.runtime.spec import ActorSpec
from actors.runtime.task.task import Task
from actors.web.panels import HeldLock, LockPanel, panels_of
from stores._core.record import METADATA_BYTES
from stores.errors import StoreError
from stores.ports import PartitionStore

MAX_LINES = 100
"""So many lines, and so many locks, of a worker are shown; the others are counted."""
MOST_LINES = 1_000
MOST_IN_LINE = 1_000
MOST_TIMERS = 10_000
MOST_NAMES = 5_000
"""Counting ends there, per partition."""
REST_S = 0.5
SHARE = 0.05
"""Looking takes no more of the event loop's time."""
SLICE_KEYS = 250
SLICE_BYTES = 4 * 1024 * 1024
"""How many keys and bytes are looked at before others get their turn."""
ERROR_CHARS = 300
_TIMERS, _BY_WALL_CLOCK = (b"n", b"o"), (b"w", b"x")
_DUE_BYTES = slice(1, 9)


class ParkedLine(msgspec.Struct, frozen=True, kw_only=True):
    """Parked entries of a key: the first, and how many there are.

    Attributes:
        key: as it was sent.
        has_key: False where messages without a key wait in the line of the empty one.
        waiting: the first and all behind it, up to `MOST_IN_LINE`.
        since_ms: when it was parked, Unix milliseconds; None of effects, which don't say.
    """

    actor: str
    what: What
    partition: int
    key: bytes
    has_key: bool
    waiting: int
    error: str
    attempts: int
    since_ms: int | None


class TaskWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting entries of one partition.

    Attributes:
        parked: lines of parked messages and effects, up to `MOST_LINES` of each.
        effects: lines of effects that are due, under way, or tried again later.
        retried: those of them that have failed before.
        timers: how many are set, up to `MOST_TIMERS`.
        next_timer_ms: when the first by the wall clock is due, Unix milliseconds.
    """

    actor: str
    partition: int
    parked: int = 0
    effects: int = 0
    retried: int = 0
    timers: int = 0
    next_timer_ms: int | None = None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting entries of a worker: the first lines and locks, and the counts of all.

    Attributes:
        locks_held: None where this worker has no partition of the app's lock service.
        is_cut: whether some count ended at its limit.
    """

    tasks: list[TaskWaiting] = []
    lines: list[ParkedLine] = []
    locks: list[HeldLock] = []
    locks_held: int | None = None
    is_cut: bool = False


class _Look:
    """One look at the stores of a worker's tasks."""

    def __init__(self) -> None:
        self.lines: list[ParkedLine] = []
        self.is_cut = False
        self._looked_at = self._size = 0

    async def pause(self, size: int) -> None:
        """Count a key and its bytes, and let others have their turn now and then."""
        self._looked_at += 1
        self._size += size
        if self._looked_at >= SLICE_KEYS or self._size >= SLICE_BYTES:
            self._looked_at = self._size = 0
            await asyncio.sleep(0)

    async def upto(self, most: int, rows: Iterable[tuple[bytes, bytes]]) -> AsyncIterator[tuple[bytes, bytes]]:
        """Return the first rows; note it if there are more."""
        for number, row in enumerate(rows):
            if number >= most:
                self.is_cut = True
                return
            await self.pause(sum(map(len, row)))
            yield row


class Looker:
    """Looks what waits at this worker; what it found is good for a while, the longer the more it cost.

    Args:
        host: the app.
    """

    def __init__(self, host: App) -> None:
        self._host = host
        self._found = Waiting()
        self._good_until_s = 0.0
        self._lock = asyncio.Lock()

    async def look(self) -> Waiting:
        """Return the waiting entries; partitions whose stores can't be read at the moment are left out."""
        async with self._lock:
            began_s = time.monotonic()
            if began_s >= self._good_until_s:
                self._found = await _look(
                    panels_of(self._host), self._host.actor_service.tasks, time.time_ns() // 1_000_000
                )
                ended_s = time.monotonic()
                self._good_until_s = ended_s + max(REST_S, (ended_s - began_s) / SHARE)
        return self._found


async def _look(panels: Sequence[LockPanel], tasks: Sequence[Task], now_ms: int) -> Waiting:
    looked, found, locks, held = _Look(), [], list[HeldLock](), None
    for task in tasks:
        stores = task.committed
        if stores is None:
            continue
        try:
            found.append(await _of_task(looked, task, stores.__getitem__))
            of_service = await _locks(looked, panels, task, stores.__getitem__, now_ms)
        except StoreError:
            # It went to another worker meanwhile, or its disk fails: the task itself deals with that.
            continue
        if of_service is not None:
            held = (held or 0) + len(of_service)
            locks += of_service
    return Waiting(
        tasks=found,
        lines=looked.lines[:MAX_LINES],
        locks=sorted(locks, key=lambda lock: lock.name)[:MAX_LINES],
        locks_held=held,
        is_cut=looked.is_cut,
    )


async def _of_task(looked: _Look, task: Task, store_of: Callable[[str], PartitionStore]) -> TaskWaiting:
    spec, parked, effects, retried = task.spec, 0, 0, 0
    kinds: list[tuple[What, Store[Any, Any] | None]] = [("message", spec.parked), ("effect", spec.effects)]
    for what, store in kinds:
        if store is None:
            continue
        async for key, head, waiting in _lines(looked, store_of(store.name), what):
            if head.is_parked:
                parked += 1
                looked.lines.append(_shown(task, what, key, head, waiting))
            else:
                effects += 1
                retried += head.attempts > 0
    timers, next_ms = await _timers(looked, spec, store_of)
    return TaskWaiting(
        actor=spec.name,
        partition=task.partition,
        parked=parked,
        effects=effects,
        retried=retried,
        timers=timers,
        next_timer_ms=next_ms,
    )


async def _lines(looked: _Look, store: PartitionStore, what: What) -> AsyncIterator[tuple[bytes, Entry, int]]:
    """Return key, first entry and length of lines; from the end of one the next is found at once."""
    letter = LETTERS[what]
    start, end = letter, bytes([letter[0] + 1])
    for _ in range(MOST_LINES):
        first = next(iter(store.scan(start, end)), None)
        if first is None:
            return
        key, place = split_sized(first[0][len(letter) :])
        _, start = line_bounds(letter, key)
        waiting = 0
        async for _ in looked.upto(MOST_IN_LINE, store.scan(first[0], start)):
            waiting += 1
        yield key, entry_of(what, place, first[1][METADATA_BYTES:], first[1]), waiting
    looked.is_cut |= next(iter(store.scan(start, end)), None) is not None


def _shown(task: Task, what: What, key: bytes, head: Entry, waiting: int) -> ParkedLine:
    error = " ".join((head.error or "").split())
    return ParkedLine(
        actor=task.spec.name,
        what=what,
        partition=task.partition,
        key=key,
        has_key=head.has_key,
        waiting=waiting,
        error=error if len(error) <= ERROR_CHARS else error[: ERROR_CHARS - 1] + "…",
        attempts=head.attempts,
        since_ms=head.since_ms or None,
    )


async def _timers(looked: _Look, spec: ActorSpec, store_of: Callable[[str], PartitionStore]) -> tuple[int, int | None]:
    """Return the number of timers, and when the first by the wall clock is due."""
    if spec.timers is None:
        return 0, None
    store, count = store_of(spec.timers.name), 0
    async for _ in looked.upto(MOST_TIMERS, store.scan(*_TIMERS)):
        count += 1
    first = next(iter(store.scan(*_BY_WALL_CLOCK)), None)
    return count, None if first is None else int.from_bytes(first[0][_DUE_BYTES])


async def _locks(
    looked: _Look, panels: Sequence[LockPanel], task: Task, store_of: Callable[[str], PartitionStore], now_ms: int
) -> list[HeldLock] | None:
    """Return the locks that have a holder; None if no panel is of the task's actor."""
    found: list[HeldLock] | None = None
    for panel in panels:
        if panel.actor == task.spec.name:
            found = found or []
            async for key, raw in looked.upto(MOST_NAMES, store_of(panel.actor).scan()):
                lock = panel.lock_of(key, raw[METADATA_BYTES:], now_ms)
                if lock is not None:
                    found.append(msgspec.structs.replace(lock, data=lock.data[:ERROR_CHARS]))
    return found
