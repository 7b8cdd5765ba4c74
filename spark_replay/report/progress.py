"""What Spark is doing, while it does it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from rich.console import Console

_POLL_S = 0.5
_LINE_EVERY_S = 5.0


@contextmanager
def progress(context: SparkContext, console: Console, what: str) -> Iterator[None]:
    """Show how many of Spark's tasks are done while the block runs: a bar on a terminal, else lines."""
    stop = threading.Event()
    follow = _bar if console.is_terminal else _lines
    thread = threading.Thread(
        target=follow,
        args=(_Tasks(context.statusTracker()), console, what, stop),
        name="progress",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class _Tasks:
    """The tasks of all stages seen so far; a stage that is over is forgotten by Spark's tracker in time."""

    def __init__(self, tracker: StatusTracker) -> None:
        self._tracker = tracker
        self._stages: dict[int, tuple[int, int]] = {}

    def poll(self) -> tuple[int, int]:
        """Return the tasks that are done and all tasks known of."""
        try:
            for stage in {*self._stages, *self._tracker.getActiveStageIds()}:
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    self._stages[stage] = (info.numCompletedTasks, info.numTasks)
        except (Py4JError, OSError):
            # the session may end while we ask; what failed is told by whoever runs the job
            return self._totals()
        return self._totals()

    def _totals(self) -> tuple[int, int]:
        return sum(done for done, _ in self._stages.values()), sum(count for _, count in self._stages.values())


def _bar(tasks: _Tasks, console: Console, what: str, stop: threading.Event) -> None:
    columns = [
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
    ]
    with Progress(*columns, console=console, transient=True) as shown:
        # without a total the bar only moves to and fro
        line: TaskID = shown.add_task(what, total=None, told=_told(0, 0))
        while not stop.wait(_POLL_S):
            done, count = tasks.poll()
            shown.update(line, completed=done, total=count or None, told=_told(done, count))


def _lines(tasks: _Tasks, console: Console, what: str, stop: threading.Event) -> None:
    started = told = time.monotonic()
    while not stop.wait(_POLL_S):
        done, count = tasks.poll()
        if time.monotonic() - told >= _LINE_EVERY_S:
            told = time.monotonic()
            console.print(
                f"{what}: {_told(done, count)}, {told - started:.0f} s",
                highlight=False,
                soft_wrap=True,
            )


def _told(done: int, count: int) -> str:
    return f"{done} of {count} Spark tasks done" if count else "no Spark task yet"
