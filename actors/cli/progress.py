"""The progress of commands over partitions: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import click

Report = Callable[[int, int], None]
"""Called with a partition and the keys of it so far."""

LINE_INTERVAL_S = 2.0


@contextlib.contextmanager
def reporting(stderr: TextIO, partitions: list[int], *, quiet: bool) -> Iterator[Report]:
    """Show the progress over `partitions`, which are worked through in order, for the time of the block."""
    if quiet:
        yield lambda partition, keys: None
    elif stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        with _bar(stderr, partitions) as report:
            yield report
    else:
        lines = _Lines(stderr)
        yield lines.report
        lines.finish()


@contextlib.contextmanager
def _bar(stderr: TextIO, partitions: list[int]) -> Iterator[Report]:
    # With 0 steps at least the bar also shows the keys of a partition that isn't done.
    with click.progressbar(length=len(partitions), file=stderr, show_pos=True, update_min_steps=0) as bar:

        def report(partition: int, keys: int) -> None:
            bar.label = f"partition {partition}: {keys:,} keys"
            bar.update(partitions.index(partition) - bar.pos)

        yield report
        bar.update(len(partitions) - bar.pos)


class _Lines:
    """A line for each partition when it is done, and now and then before."""

    def __init__(self, stderr: TextIO) -> None:
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
