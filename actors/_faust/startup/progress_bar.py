"""A bar on the terminal at which a worker runs, that log lines and Faust's spinner don't tear.

While it is there, log lines that go to a terminal are printed above it, and the spinner rests.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any

from faust.utils.terminal import SpinnerHandler
from rich.console import Console, Group
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from actors.runtime.observe.startup_progress import Restoring
from stores._core.printable import printable

ROWS = 6
"""So many restores have a bar of their own; all others share one."""


def is_terminal(stream: IO[str]) -> bool:
    """Tell whether a bar can be shown there."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def logs_elsewhere() -> bool:
    """Tell whether what is logged also goes where no bar is seen."""
    handlers = [handler for handler in logging.root.handlers if not isinstance(handler, SpinnerHandler)]
    return any(not _is_on_terminal(handler) for handler in handlers)


def _is_on_terminal(handler: logging.Handler) -> bool:
    stream = getattr(handler, "stream", None)
    return stream is not None and hasattr(stream, "isatty") and bool(stream.isatty())


class Bar:
    """A bar for each restore, and below them what is waited for; there while there is anything of it."""

    def __init__(self, stream: IO[str]) -> None:
        # Colours are rich's business, which looks at NO_COLOR.
        self._console = Console(file=stream)
        self._live: Live | None = None
        self._progress = self._make()
        self._bars: dict[str, TaskID] = {}
        self._proxied: list[tuple[logging.StreamHandler[Any], Any]] = []
        self._resting: list[logging.Handler] = []

    @staticmethod
    def _make() -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
            TimeRemainingColumn(),
            auto_refresh=False,
        )

    def show(self, restores: Sequence[Restoring], waits: Sequence[str]) -> None:
        """Show these, or nothing if there are none."""
        if not (restores or waits):
            self.hide()
            return
        self._update(dict(_rows(restores)))
        lines = Text("\n".join(map(printable, waits)), style="yellow", overflow="ellipsis", no_wrap=True)
        content = Group(*([self._progress] if restores else []), *([lines] if waits else []))
        if self._live is None:
            self._begin()
            self._live = Live(
                content, console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start(refresh=True)
        else:
            self._live.update(content, refresh=True)

    def hide(self) -> None:
        """Take it away, and let log lines and spinner go on as before. May be called twice."""
        live, self._live = self._live, None
        if live is None:
            return
        live.transient = True
        live.stop()
        self._progress, self._bars = self._make(), {}
        for handler, stream in self._proxied:
            handler.setStream(stream)
        self._proxied.clear()
        logging.root.handlers += self._resting
        self._resting.clear()

    def _begin(self) -> None:
        is_spinning = False
        for handler in list(logging.root.handlers):
            if isinstance(handler, SpinnerHandler):
                is_spinning = is_spinning or not handler.spinner.stopped
                logging.root.removeHandler(handler)
                self._resting.append(handler)
            elif isinstance(handler, logging.StreamHandler) and _is_on_terminal(handler):
                self._proxied.append((handler, handler.stream))
                handler.setStream(FileProxy(self._console, handler.stream))
        if is_spinning:
            # The spinner stands behind a text in the middle of a line.
            self._console.line()

    def _update(self, rows: dict[str, tuple[int, int]]) -> None:
        for name in self._bars.keys() - rows.keys():
            self._progress.remove_task(self._bars.pop(name))
        for name, (position, total) in rows.items():
            bar = self._bars.get(name)
            if bar is None:
                self._bars[name] = self._progress.add_task(name, total=total, completed=position)
            else:
                self._progress.update(bar, total=total, completed=position)


def _rows(restores: Sequence[Restoring]) -> Iterator[tuple[str, tuple[int, int]]]:
    for one in restores[:ROWS]:
        yield f"restoring {one.name}", (one.position - one.start, one.end - one.start)
    if rest := restores[ROWS:]:
        yield (
            f"and {len(rest)} more",
            (sum(one.position - one.start for one in rest), sum(one.end - one.start for one in rest)),
        )
