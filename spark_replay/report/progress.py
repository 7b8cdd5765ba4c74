"""The progress of Spark's jobs, while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from rich.console import Console

_POLL_S = 0.5
_LINE_EVERY_S = 5.0


@contextmanager
def progress(context: SparkContext, console: Console, what: str) -> Iterator[None]:
    """Show how many of Spark's tasks are done while the block runs: a bar on a terminal, else lines."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    stop = threading.Event()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        follow = threading.Thread(
            target=_follow, args=(context.statusTracker(), shown, what, stop), name="progress", daemon=True
        )
        follow.start()
        try:
            yield
        finally:
            stop.set()
            follow.join()


def _follow(tracker: StatusTracker, shown: Progress, what: str, stop: threading.Event) -> None:
    # a stage that is over is forgotten by Spark's tracker in time
    stages: dict[int, tuple[int, int]] = {}
    # without a total the bar only moves to and fro
    bar = shown.add_task(what, total=None)
    started = told = time.monotonic()
    while not stop.wait(_POLL_S):
        # the session may end while we ask; the caller that runs the job reports its failure
        with suppress(Py4JError, OSError):
            for stage in {*stages, *tracker.getActiveStageIds()}:
                info = tracker.getStageInfo(stage)
                if info is not None:
                    stages[stage] = info.numCompletedTasks, info.numTasks
        done, count = (sum(numbers) for numbers in zip((0, 0), *stages.values(), strict=True))
        line = f"{what}: {_told(done, count)}"
        shown.update(bar, completed=done, total=count or None, description=line)
        if shown.disable and time.monotonic() - told >= _LINE_EVERY_S:
            told = time.monotonic()
            shown.console.print(f"{line}, {told - started:.0f} s", highlight=False, soft_wrap=True)


def _told(done: int, count: int) -> str:
    return f"{done} of {count} Spark tasks done" if count else "no Spark task yet"
