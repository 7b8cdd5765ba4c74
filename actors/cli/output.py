"""Tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stores._core.printable import printable

UNBOUNDED_COLUMNS = 10_000
"""The width of a table that doesn't go to a terminal: a line that is wrapped at 80 columns can't be searched."""


def print_table(stdout: IO[str], title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; columns whose name starts with `#` hold numbers."""
    table = Table(title=Text(printable(title)), title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        numeric = column.startswith("#")
        table.add_column(column.removeprefix("#"), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        # Names and keys aren't markup.
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(file=stdout, width=None if stdout.isatty() else UNBOUNDED_COLUMNS, highlight=False)
    console.print(table)
