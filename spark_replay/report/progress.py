"""The progress of Spark's jobs, while they run: tasks, their rate, and the time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
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
def progress(
    context: SparkContext, console: Console, what: str, *, more: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Show how many of Spark's tasks are done while the block runs: a bar on a terminal, else lines.

    `more` returns what has been done without Spark, empty if nothing has.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    stop = threading.Event()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        follow = threading.Thread(
            target=_follow, args=(context.statusTracker(), shown, what, more, stop), name="progress", daemon=True
        )
        follow.start()
        try:
            yield
        finally:
            stop.set()
            follow.join()


def _follow(tracker: StatusTracker, shown: Progress, what: str, more: Callable[[], str], stop: threading.Event) -> None:
    # a stage that is over is forgotten by Spark's tracker in time
    stages: dict[int, tuple[int, int]] = {}
    # without a total the bar only moves to and fro
    bar = shown.add_task(what, total=None)
    started = printed = time.monotonic()
    while not stop.wait(_POLL_S):
        # the session may end while we ask; the caller that runs the job reports its failure
        with suppress(Py4JError, OSError):
            for stage in {*stages, *tracker.getActiveStageIds()}:
                info = tracker.getStageInfo(stage)
                if info is not None:
                    stages[stage] = info.numCompletedTasks, info.numTasks
        done, count = (sum(numbers) for numbers in zip((0, 0), *stages.values(), strict=True))
        seconds = time.monotonic() - started
        line = ", ".join(filter(None, (f"{what}: {told(done, count, seconds=seconds)}", more())))
        shown.update(bar, completed=done, total=count or None, description=line)
        if shown.disable and time.monotonic() - printed >= _LINE_EVERY_S:
            printed = time.monotonic()
            shown.console.print(f"{line}, {seconds:.0f} s", highlight=False, soft_wrap=True)


def told(done: int, count: int, *, seconds: float) -> str:
    """Return how far Spark is, as text. Stages that haven't begun aren't in `count`: the time left is of the others."""
    if not count:
        return "no Spark task yet"
    line = f"{done} of {count} Spark tasks done"
    if not done:
        return line
    rate = done / seconds
    return f"{line}, {rate:.1f}/s" + (f", about {(count - done) / rate:.0f} s left" if done < count else "")
