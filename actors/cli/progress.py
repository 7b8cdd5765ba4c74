"""How far an export is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from actors._faust.startup.progress_bar import is_terminal

Report = Callable[[int, int], None]
"""Called with a partition and the keys of it so far."""

LINE_INTERVAL_S = 2.0


@contextlib.contextmanager
def reporting(stderr: IO[str], partitions: list[int], *, quiet: bool) -> Iterator[Report]:
    """Show the progress over `partitions`, which are worked through in order, for the time of the block."""
    if quiet:
        yield lambda partition, keys: None
    elif is_terminal(stderr):
        with _bar(stderr, partitions) as report:
            yield report
    else:
        lines = _Lines(stderr)
        yield lines.report
        lines.finish()


@contextlib.contextmanager
def _bar(stderr: IO[str], partitions: list[int]) -> Iterator[Report]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("partitions"),
        TimeElapsedColumn(),
    )
    total = len(partitions)
    with Progress(*columns, console=Console(file=stderr)) as progress:
        bar = progress.add_task("", total=total)

        def report(partition: int, keys: int) -> None:
            done = partitions.index(partition)
            progress.update(bar, completed=done, description=f"partition {partition}: {keys:,} keys")

        yield report
        progress.update(bar, completed=total)


class _Lines:
    """A line for each partition when it is done, and now and then before."""

    def __init__(self, stderr: IO[str]) -> None:
        self._stderr = stderr
        self._current: tuple[int, int] | None = None
        self._said_s = time.monotonic()

    def report(self, partition: int, keys: int) -> None:
        if self._current is not None and self._current[0] != partition:
            self.finish()
        self._current = (partition, keys)
        if time.monotonic() - self._said_s > LINE_INTERVAL_S:
            self._say("so far")

    def finish(self) -> None:
        """Say that the partition of the last report is done."""
        if self._current is not None:
            self._say("done")
            self._current = None

    def _say(self, state: str) -> None:
        if self._current is not None:
            partition, keys = self._current
            print(f"partition {partition}: {keys:,} keys, {state}", file=self._stderr, flush=True)
            self._said_s = time.monotonic()
