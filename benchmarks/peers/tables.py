"""A table of results: on the terminal, and in `benchmarks/README.md` between two marks of its name."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

_WIDTH = 160
README = Path(__file__).resolve().parents[1] / "README.md"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under columns; `name` finds its place in the README."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def show(self) -> None:
        """Print it; wide where nothing says how wide the screen is."""
        console = Console()
        if not console.is_terminal:
            console = Console(width=_WIDTH)
        table = RichTable(title=self.title, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self) -> str:
        """Return it for the README."""
        lines = [self.columns, ["---"] + ["---:"] * (len(self.columns) - 1), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_readme(table: Table, command: str) -> None:
    """Put a table in the place of the one of its name.

    Raises:
        ValueError: the README has no marks of that name.
    """
    begin, end = f"<!-- {table.name} -->", f"<!-- /{table.name} -->"
    text = README.read_text(encoding="utf-8")
    made = f"{begin}\n\n{table.title} Made by `{command}` on {machine()}.\n\n{table.markdown()}\n\n{end}"
    new, times = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: made, text, flags=re.DOTALL)
    if times != 1:
        raise ValueError(f"{README} has no place for the table {table.name}")
    README.write_text(new, encoding="utf-8")


def machine() -> str:
    """Return what the figures were made on."""
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, the broker on the same machine"
