"""Bytes of keys and values, and lines of text, as a person reads them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from spark_replay.errors import InputError
from stores._core.outside import MISSHAPEN
from stores._core.printable import moment
from stores._core.printable import printable as escaped
from stores._core.windows import KEY_AT, KEYS_AT, LIST_AT, PROGRESS_KEY, SIDE_AT, decode_progress

if TYPE_CHECKING:
    from pyspark.sql import Row
    from rich.console import Console
    from rich.table import Table

EXAMPLES = 10
"""So many keys of a kind are named."""
SHOWN_BYTES = 200
"""Longer keys and values are cut."""
_BASE64 = "base64:"


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
    return f"{_BASE64}{base64.b64encode(raw).decode()}"


def key_bytes(text: str) -> bytes:
    """Return the key that `printable` shows as this text.

    Raises:
        InputError: What follows `base64:` is none.
    """
    if not text.startswith(_BASE64):
        return text.encode(errors="surrogateescape")
    try:
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    except binascii.Error as error:
        raise InputError(f"{text!r} isn't base64 after {_BASE64}") from error


def row_key(raw: bytes | bytearray | None, *, has_windows: bool = False) -> str:
    """Return the key of a row as text; of a window store's, or a join's, the message's key and a time."""
    row = b"" if raw is None or not has_windows else bytes(raw)
    if row == PROGRESS_KEY:
        return "stream time"
    at = KEYS_AT.get(row[:1])
    if at is None or len(row) < at:
        return printable(raw)
    key, time = printable(row[at:]), int.from_bytes(row[1:KEY_AT])
    which = "left" if row[SIDE_AT : SIDE_AT + 1] == bytes(1) else "right"
    parts = {
        b"w": f"the window from {moment(time)} ({time} ms)",
        b"k": f"the windows of segment {time}",
        b"e": f"the close of what ends at {moment(time)} ({time} ms)",
        b"W": f"the headers for the window from {moment(time)} ({time} ms)",
        b"E": f"the headers for what ends at {moment(time)} ({time} ms)",
        b"c": f"the intervals for which the window up to {moment(time)} ({time} ms) waits",
        b"j": f"the {which} records of segment {time}",
        b"u": f"a {which} record without a match up to {moment(time)} ({time} ms)",
    }
    return f"{key}, {parts[row[:1]]}"


def row_value(raw: bytes | bytearray | None, *, has_windows: bool = False) -> str:
    """Return the value of a row as text: windows with their bounds, records of a join with their times, headers."""
    value = b"" if raw is None else bytes(raw)
    if not has_windows or not value:
        return printable(raw)
    try:
        if value[:1] == b"p":
            return f"{decode_progress(value)}"
        if value[:1] == b"l":
            windows = msgspec.msgpack.decode(value[LIST_AT:])
            return "; ".join(f"{moment(start)} to {moment(end)}: {printable(raw)}" for start, end, raw, *_ in windows)
        if value[:1] == b"c":
            records = msgspec.msgpack.decode(value[LIST_AT:])
            return "; ".join(f"{moment(at_ms)}: {printable(content)}" for at_ms, content in records)
        if value[:1] == b"h":
            headers = msgspec.msgpack.decode(value[1:], type=list[tuple[str, bytes]])
            return "; ".join(f"{name}: {printable(content)}" for name, content in headers)
    except (*MISSHAPEN, msgspec.MsgspecError):
        # Cut for the report, or damaged.
        return printable(raw)
    return printable(value[1:]) if value[:1] == b"v" else printable(raw)


def side(held: Row | None, *, has_windows: bool = False) -> dict[str, Any] | None:
    """Return a key's row of one side of a comparison as plain values."""
    if held is None:
        return None
    fields: dict[str, Any] = held.asDict()
    if fields.get("input", 0) is None:
        # An actor with one input, or a side that doesn't say which.
        del fields["input"]
    return fields | {"value": row_value(fields["value"], has_windows=has_windows)}


def input_offset(offset: int, place: int | None) -> str:
    """Return an offset of an actor's input as text; `place` is the input's, None for an actor with one."""
    return f"input {offset}" if place is None else f"offset {offset} of input {place}"


def side_line(held: Mapping[str, Any] | None) -> str:
    """Format a key's row of one side as a line."""
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
