"""The list of steps that is shown while the demo runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape


class Steps:
    """The list of steps on standard error: a spinner on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step while the block runs, and its seconds when it is done."""
        step = Step(title)
        began = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"        {title} …", markup=False)
        with self._console.status(escape(title)) as status:
            step.changed = lambda: status.update(escape(step.text()))
            try:
                yield step
            except BaseException:
                self._line(began, "[red]failed[/]", step)
                raise
        self._line(began, "", step)

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False)

    def _line(self, began: float, mark: str, step: Step) -> None:
        self._console.print(f"{time.monotonic() - began:6.1f} s  {escape(step.text())} {mark}".rstrip())


@dataclass(slots=True)
class Step:
    """A step that is under way. `note` is shown behind its title, at the end too."""

    title: str
    _note: str = ""
    changed: Callable[[], None] = field(default=lambda: None)

    def note(self, text: str) -> None:
        """Return how far it is, or what came out."""
        self._note = text
        self.changed()

    def text(self) -> str:
        """Return the title and the note."""
        return f"{self.title}: {self._note}" if self._note else self.title
