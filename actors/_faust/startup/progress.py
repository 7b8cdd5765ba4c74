"""Logs what a worker waits for while it starts and restores.

It reads the state of the tasks from time to time, without a cost to them. Lines come at a bounded rate: every
`LINE_EVERY_S` one about restores and one about all other waits, and one when all owned partitions run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from actors._core.logs import escaping
from actors._core.task.lifecycle import State
from actors.ports import TopicPartition
from actors.runtime.state.restore import LONG_READ
from actors.runtime.task.task import Task
from actors.runtime.worker import Worker

logger = escaping(logging.getLogger(__name__))

FIRST_LINE_S = 2.0
"""A start that takes less time logs nothing about its waits."""
LINE_EVERY_S = 5.0
LOOK_S = 0.25
SHOWN = 3
"""How many restores and partitions a line names; the others are counted."""
STALLED_S = 3.0
"""A restore that hasn't moved for so long waits for something."""
_STEPS = {
    State.FENCING: "the end of this worker's own last transaction",
    State.CONFIRMING: "the group's confirmation that the partition is still this worker's",
    State.LOOKING: "what the former owner left open, the group's offset and the log's bounds",
    State.RESTORING: "the store is being opened",
    State.CLAIMING: "the new epoch is being written",
}
_PREDECESSOR = "the end of this worker's former task"
_IS_OVER = (State.HALTED, State.REFUSED, State.CLOSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """A restore that runs: offsets of the changelog; `stalled_s` says how long it hasn't moved."""

    store: str
    partition: int
    start: int
    position: int
    end: int
    stalled_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.store}[{self.partition}]"

    @property
    def is_stalled(self) -> bool:
        """Return whether the start waits for something."""
        return self.stalled_s >= STALLED_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupProgress:
    """A worker at one moment.

    Attributes:
        owned: by actor, the partitions that run.
        halted: the places in front of which partitions stand still.
        waits: by reason, the partitions that wait for it.
        restores: those that run, oldest first.
    """

    owned: Mapping[str, list[int]] = field(default_factory=dict)
    halted: tuple[str, ...] = ()
    waits: Mapping[str, list[TopicPartition]] = field(default_factory=dict)
    restores: tuple[Restoring, ...] = ()


class StartupWatch:
    """Looks at tasks again and again, and remembers since when a restore hasn't moved."""

    def __init__(self) -> None:
        self._moved: dict[tuple[str, int], tuple[int, float]] = {}

    def look(self, tasks: Iterable[Task], now_s: float) -> StartupProgress:
        """Return the progress now; `now_s` is the monotonic clock's."""
        owned: dict[str, list[int]] = {}
        halted: list[str] = []
        waits: dict[str, list[TopicPartition]] = {}
        restores: list[Restoring] = []
        before, self._moved = self._moved, {}
        for task in tasks:
            if task.state in (State.RUNNING, State.COMMITTING):
                owned.setdefault(task.spec.name, []).append(task.partition)
            elif task.state in _IS_OVER:
                if task.halted_by is not None:
                    offset = getattr(task.halted_by, "offset", None)
                    halted.append(task.name if offset is None else f"{task.name} offset {offset}")
            elif running := self._restores(task, before, now_s):
                restores += running
            else:
                reason = _PREDECESSOR if task.waits_for_predecessor else task.meters.waits_for or _STEPS[task.state]
                waits.setdefault(reason, []).extend(task.sources)
        return StartupProgress(owned=owned, halted=tuple(halted), waits=waits, restores=tuple(restores))

    def _restores(
        self, task: Task, before: Mapping[tuple[str, int], tuple[int, float]], now_s: float
    ) -> list[Restoring]:
        restores = []
        for meter in task.meters.restoring:
            if meter.end > meter.start:
                key, partition = (meter.store, task.partition), task.partition
                position, since_s = before.get(key, (-1, now_s))
                since_s = since_s if position == meter.position else now_s
                self._moved[key] = meter.position, since_s
                offsets = {"start": meter.start, "position": meter.position, "end": meter.end}
                restores.append(Restoring(store=meter.store, partition=partition, **offsets, stalled_s=now_s - since_s))
        return restores


class Announcer:
    """Logs one worker's progress from `start` to `stop`.

    Args:
        worker: the worker.
        group: its group.
        away: returns the addresses of brokers that can't be reached.
    """

    def __init__(self, worker: Worker, *, group: str, away: Callable[[], list[str]]) -> None:
        self._worker = worker
        self._group = group
        self._away = away
        self._lines = ProgressLog()
        self._watch = StartupWatch()
        self._seen = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="actors progress")

    def stop(self) -> None:
        """Stop it. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _run(self) -> None:
        try:
            while True:
                self.look(time.monotonic())
                await asyncio.sleep(LOOK_S)
        except Exception:
            # The worker doesn't depend on it.
            logger.exception("the worker's progress isn't logged any more")

    def look(self, now_s: float) -> None:
        """Read the tasks' state once, and log what is due."""
        seen, away = self._watch.look(self._worker.tasks, now_s), self._away()
        waits = [*self._waits_for_group(), *waiting_texts(seen, away)]
        if away and waits:
            waits.append(f"broker {', '.join(away)} can't be reached")
        self._lines.tell(seen, waits, now_s)

    def _waits_for_group(self) -> list[str]:
        worker = self._worker
        if worker.tasks:
            self._seen = worker.meters.rebalances
        elif worker.meters.rebalances <= self._seen:
            what = "its members agree on the assignment of tasks" if self._seen else "to be let in by all its members"
            return [f"waiting for the group {self._group}: {what}"]
        return []


@asynccontextmanager
async def reminding(text: str) -> AsyncIterator[None]:
    """Log `text` from time to time while the block runs, if that takes longer than `FIRST_LINE_S`."""

    async def remind() -> None:
        await asyncio.sleep(FIRST_LINE_S)
        while True:
            logger.info("%s", text)
            await asyncio.sleep(LINE_EVERY_S)

    reminder = asyncio.create_task(remind(), name="actors reminder")
    try:
        yield
    finally:
        reminder.cancel()


class ProgressLog:
    """The lines in the log, and when the last one was written."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._said_s = 0.0
        self._told = ""

    def tell(self, seen: StartupProgress, waits: Sequence[str], now_s: float) -> None:
        """Log the progress of restores and the waits, if it is time, and the owned partitions once all of them run."""
        if not (waits or seen.restores):
            since_s, self._since_s = self._since_s, None
            waited_s = 0.0 if since_s is None else now_s - since_s
            text = owned_text(seen)
            if text != self._told or waited_s >= FIRST_LINE_S:
                self._told = text
                logger.info("this worker has %s%s", text, f", after {waited_s:.1f} s" if waited_s else "")
            return
        if self._since_s is None:
            self._since_s, self._said_s = now_s, now_s + FIRST_LINE_S - LINE_EVERY_S
        if now_s - self._said_s < LINE_EVERY_S:
            return
        self._said_s = now_s
        if seen.restores:
            logger.info("%s", restoring_text(seen.restores))
        if waits:
            logger.info("%s", "; ".join(waits))


def owned_text(seen: StartupProgress) -> str:
    """Return the partitions that run, and those that are halted."""
    owned = "; ".join(f"{actor} {ranges(partitions)}" for actor, partitions in sorted(seen.owned.items()))
    if not seen.halted:
        return f"partitions of {owned}" if owned else "no partition: the group's other workers have all"
    return (
        f"partitions of {owned}" if owned else "no partition that runs"
    ) + f"; halted in front of {named(seen.halted)}"


def waiting_texts(seen: StartupProgress, away: Sequence[str]) -> list[str]:
    """Return a line for each reason to wait."""
    found = [f"waiting for {reason} ({named(partitions)})" for reason, partitions in seen.waits.items()]
    stalled: dict[str, list[str]] = {}
    for one in seen.restores:
        if one.is_stalled:
            stalled.setdefault(why_stalled(one, seen.restores, away), []).append(one.name)
    found += [f"waiting for {reason} ({named(names)})" for reason, names in stalled.items()]
    return found


def why_stalled(restoring: Restoring, others: Iterable[Restoring], away: Iterable[str]) -> str:
    """Say what a restore that doesn't move waits for; `away` are brokers that can't be reached."""
    if names := ", ".join(away):
        return f"broker {names}, which can't be reached"
    is_queued = restoring.position == restoring.start and restoring.end - restoring.start > LONG_READ
    if is_queued and any(not other.is_stalled for other in others):
        return "its turn: other restores come first"
    return "the last stable offset, held back by an open transaction"


def restoring_text(restores: Sequence[Restoring]) -> str:
    first = ", ".join(f"{one.name} {done(one)}" for one in restores[:SHOWN])
    if len(restores) <= SHOWN:
        return f"restoring {first}"
    read = sum(one.position - one.start for one in restores)
    total = sum(one.end - one.start for one in restores)
    return f"restoring {first} and {len(restores) - SHOWN} more, {read:,} of {total:,} in all"


def done(one: Restoring) -> str:
    return f"{one.position - one.start:,} of {one.end - one.start:,}"


def named(names: Iterable[str | TopicPartition]) -> str:
    """Return the first names, and the count of the others."""
    known = [str(name) for name in names]
    more = "" if len(known) <= SHOWN else f" and {len(known) - SHOWN} more"
    return ", ".join(known[:SHOWN]) + more


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: 0-3, 7."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
