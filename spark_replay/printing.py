"""Bytes of keys and values, and lines of text, as a person reads them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stores._core.printable import printable as escaped

if TYPE_CHECKING:
    from pyspark.sql import Row
    from rich.console import Console
    from rich.table import Table


def printable(raw: bytes | bytearray | None) -> str:
    """Return bytes as text if they are printable UTF-8, else as base64 after `base64:`; `null` for None."""
    if raw is None:
        return "null"
    try:
        text = bytes(raw).decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not raw):
        return text
    return f"base64:{base64.b64encode(raw).decode()}"


def side(held: Row | None) -> dict[str, Any] | None:
    """Return what one side of a comparison has of a key as plain values."""
    if held is None:
        return None
    fields: dict[str, Any] = held.asDict()
    if fields.get("input", 0) is None:
        # An actor with one input, or a side that doesn't say which.
        del fields["input"]
    return fields | {"value": printable(fields["value"])}


def input_offset(offset: int, place: int | None) -> str:
    """Return an offset of an actor's input as text; `place` is the input's, None for an actor with one."""
    return f"input {offset}" if place is None else f"offset {offset} of input {place}"


def side_line(held: Mapping[str, Any] | None) -> str:
    """Return what one side has of a key as a line."""
    return "nothing" if held is None else ", ".join(f"{name} {value}" for name, value in held.items())


def say(console: Console, line: str) -> None:
    """Print one line, in which nothing is markup, with escapes for what isn't printable."""
    console.print(escaped(line), markup=False, highlight=False, emoji=False, soft_wrap=True)


def new_table(title: str, *columns: str) -> Table:
    """Return an empty table with columns of numbers; a title of the log's is shown with escapes."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(escaped(title)), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right", overflow="fold")
    return table
