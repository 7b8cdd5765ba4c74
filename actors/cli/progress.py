"""The progress of commands over partitions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from stores._core.printable import counted

Report = Callable[[int, int], None]
"""Called with a partition and the keys of it so far; partitions come in order."""

LINE_INTERVAL_S = 2.0


@contextlib.contextmanager
def reporting(stderr: TextIO, *, quiet: bool) -> Iterator[Report]:
    """Print, for the time of the block, a line for each partition when it is done, and now and then before."""
    lines = _Lines(stderr)
    yield (lambda partition, keys: None) if quiet else lines.report
    lines.finish()


class _Lines:
    def __init__(self, stderr: TextIO) -> None:
        self._stderr = stderr
        self._current: tuple[int, int] | None = None
        self._printed_s = time.monotonic()

    def report(self, partition: int, keys: int) -> None:
        if self._current is not None and self._current[0] != partition:
            self.finish()
        self._current = (partition, keys)
        if time.monotonic() - self._printed_s > LINE_INTERVAL_S:
            self._print("so far")

    def finish(self) -> None:
        """Print that the partition of the last report is done."""
        if self._current is not None:
            self._print("done")
            self._current = None

    def _print(self, state: str) -> None:
        if self._current is not None:
            partition, keys = self._current
            print(f"partition {partition}: {counted(keys, 'key')}, {state}", file=self._stderr, flush=True)
            self._printed_s = time.monotonic()
