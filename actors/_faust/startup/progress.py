"""Says what a worker waits for while it starts and restores: a bar on a terminal, lines in the log elsewhere.

It looks at the tasks now and then, and costs them nothing. Lines come at a bounded rate, whatever happens: one about
restores and one about what else is waited for every `LINE_EVERY_S`, and one when all that is owned runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import IO

from actors._core.logs import escaping
from actors._faust.startup.progress_bar import Bar, is_terminal, logs_elsewhere
from actors.ports import TopicPartition
from actors.runtime.observe.startup_progress import Restoring, StartupProgress, StartupWatch, why_stalled
from actors.runtime.worker import Worker

logger = escaping(logging.getLogger(__name__))

FIRST_LINE_S = 2.0
"""Who is faster says nothing."""
LINE_EVERY_S = 5.0
BAR_AFTER_S = 1.0
LOOK_S = 0.25
SHOWN = 3
"""So many restores and partitions are named in a line, the others counted."""


class Announcer:
    """Announces one worker's progress from `start` to `stop`.

    Args:
        worker: the worker.
        group: its group.
        away: gives the addresses of brokers that can't be reached.
        stream: where a bar goes if that is a terminal; None for no bar.
    """

    def __init__(self, worker: Worker, *, group: str, away: Callable[[], list[str]], stream: IO[str] | None) -> None:
        self._worker = worker
        self._group = group
        self._away = away
        self._bar = Bar(stream) if stream is not None and is_terminal(stream) else None
        self._lines = Lines()
        self._watch = StartupWatch()
        self._seen = 0
        self._since_s: float | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="actors progress")

    def stop(self) -> None:
        """Take the bar away and look no more. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self.stand_back()

    def stand_back(self) -> None:
        """Take the bar away until the next look: somebody else writes to the terminal."""
        if self._bar is not None:
            self._bar.hide()

    async def _run(self) -> None:
        try:
            while True:
                self.look(time.monotonic())
                await asyncio.sleep(LOOK_S)
        except Exception:
            # What is shown is no reason to stop working.
            logger.exception("progress isn't shown any more")
            self.stand_back()

    def look(self, now_s: float) -> None:
        """Look once, and show what is new."""
        scene, away = self._watch.look(self._worker.tasks, now_s), self._away()
        waits = [*self._waits_for_group(), *waiting_texts(scene, away)]
        if away and waits:
            waits.append(f"broker {', '.join(away)} can't be reached")
        if self._bar is not None:
            self._show(self._bar, scene, waits, now_s)
        if self._bar is None or logs_elsewhere():
            self._lines.show(scene, waits, now_s)
        self._lines.ready(scene, waits, now_s)

    def _show(self, bar: Bar, scene: StartupProgress, waits: Sequence[str], now_s: float) -> None:
        if not (scene.restores or waits):
            self._since_s = None
            bar.hide()
            return
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s >= BAR_AFTER_S:
            bar.show(scene.restores, waits)

    def _waits_for_group(self) -> list[str]:
        worker = self._worker
        if worker.tasks:
            self._seen = worker.meters.rebalances
        elif worker.meters.rebalances <= self._seen:
            what = "its members agree on who owns what" if self._seen else "to be let in by all its members"
            return [f"waiting for the group {self._group}: {what}"]
        return []


@asynccontextmanager
async def reminding(text: str) -> AsyncIterator[None]:
    """Say what is waited for while the block runs, if it takes long."""

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


class Lines:
    """What goes to the log."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._said_s = 0.0
        self._told = ""

    def show(self, scene: StartupProgress, waits: Sequence[str], now_s: float) -> None:
        """Say how far restores are and what is waited for, if it is time."""
        if not (waits or scene.restores):
            return
        if self._since_s is None:
            self._since_s, self._said_s = now_s, now_s + FIRST_LINE_S - LINE_EVERY_S
        if now_s - self._said_s < LINE_EVERY_S:
            return
        self._said_s = now_s
        if scene.restores:
            logger.info("%s", restoring_text(scene.restores))
        if waits:
            logger.info("%s", "; ".join(waits))

    def ready(self, scene: StartupProgress, waits: Sequence[str], now_s: float) -> None:
        """Say what is owned when all of it is there, once."""
        if waits or scene.is_waiting:
            if self._since_s is None:
                self._since_s, self._said_s = now_s, now_s + FIRST_LINE_S - LINE_EVERY_S
            return
        since_s, self._since_s = self._since_s, None
        waited_s = 0.0 if since_s is None else now_s - since_s
        text = owned_text(scene)
        if text != self._told or waited_s >= FIRST_LINE_S:
            self._told = text
            logger.info("this worker has %s%s", text, f", after {waited_s:.1f} s" if waited_s else "")


def owned_text(scene: StartupProgress) -> str:
    """Say what runs, and what stands still."""
    owned = "; ".join(f"{actor} {ranges(partitions)}" for actor, partitions in sorted(scene.owned.items()))
    if not scene.halted:
        return f"partitions of {owned}" if owned else "no partition: the group's other workers have all"
    return (
        f"partitions of {owned}" if owned else "no partition that runs"
    ) + f"; halted in front of {named(scene.halted)}"


def waiting_texts(scene: StartupProgress, away: Sequence[str]) -> list[str]:
    """Say what is waited for."""
    found = [f"waiting for {reason} ({named(partitions)})" for reason, partitions in scene.waits.items()]
    stalled: dict[str, list[str]] = {}
    for one in scene.restores:
        if one.is_stalled:
            stalled.setdefault(why_stalled(one, scene.restores, away), []).append(one.name)
    found += [f"waiting for {reason} ({named(names)})" for reason, names in stalled.items()]
    return found


def restoring_text(restores: Sequence[Restoring]) -> str:
    """Say how far restores are."""
    first = ", ".join(f"{one.name} {done(one)}" for one in restores[:SHOWN])
    if len(restores) <= SHOWN:
        return f"restoring {first}"
    read = sum(one.position - one.start for one in restores)
    total = sum(one.end - one.start for one in restores)
    return f"restoring {first} and {len(restores) - SHOWN} more, {read:,} of {total:,} in all"


def done(one: Restoring) -> str:
    """Say how far a restore is."""
    return f"{one.position - one.start:,} of {one.end - one.start:,}"


def named(names: Iterable[str | TopicPartition]) -> str:
    """Name the first, and count the others."""
    known = [str(name) for name in names]
    more = "" if len(known) <= SHOWN else f" and {len(known) - SHOWN} more"
    return ", ".join(known[:SHOWN]) + more


def ranges(numbers: Iterable[int]) -> str:
    """Give numbers as ranges: 0-3, 7."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
