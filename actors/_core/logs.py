"""Loggers whose lines can't be forged: text from a record of an input topic can't begin a line of its own.

Long texts are cut: an error's text may contain a record's whole value, and writing it would block the event loop. So
would a line for each of many records, so the lines that one statement writes within a second are limited.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Hashable, Mapping
from numbers import Number
from typing import Any

from actors._core.outside import EXITS
from stores._core.printable import printable

MAX_CHARS = 16_000
"""Of each argument of a log line, and of each entry of a traceback."""
MAX_REASON_CHARS = 2_000
"""Of an error's text within another one. All of it fits into a log line, with escapes too."""


LINES_PER_S = 100
TRACEBACKS_PER_S = 10
"""How many lines one statement writes within a second, and how many tracebacks."""

_written: dict[tuple[str, int], tuple[int, int]] = {}
"""By statement: the second of its last line, and how many lines it wanted to write in that second."""


def escaping(logger: logging.Logger) -> logging.Logger:
    """Escape the texts of a logger's records, see `stores._core.printable`; return the logger.

    The filter is the logger's own and not its parent's: filters of parents aren't called, and handlers are the user's.
    """
    logger.addFilter(escape)
    return logger


def escape(record: logging.LogRecord) -> bool:
    """Escape a log record's text, arguments and traceback for any formatter; tell whether it is written."""
    if not limited(record):
        return False
    args = record.args
    if args:
        record.args = _shown(args) if isinstance(args, Mapping) else tuple(map(_shown, args))
    record.msg = printable(text_of(record.msg, limit=MAX_CHARS))
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        record.exc_text = traceback_text(record.exc_info[1])
    return True


def limited(record: logging.LogRecord) -> bool:
    """Return whether a log record is to be written, and remove its traceback if there were too many.

    The first line of a later second tells how many were left out.
    """
    statement, second = (record.pathname, record.lineno), int(record.created)
    last_second, lines = _written.get(statement, (second, 0))
    if last_second != second:
        if lines > LINES_PER_S:
            record.msg = f"{record.msg} (before this one {lines - LINES_PER_S} such lines of one second were left out)"
        lines = 0
    _written[statement] = second, lines + 1
    if lines >= TRACEBACKS_PER_S:
        record.exc_info = record.exc_text = None
    return lines < LINES_PER_S


class Reminders:
    """A limit on repeated log lines: each kind is due at first, and then once in `every_s` seconds.

    Lines of different kinds don't hold up each other. Kinds that were last due longer ago are forgotten.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._said_s: dict[Hashable, float] = {}

    def is_due(self, now_s: float, kind: Hashable = "") -> bool:
        """Return whether a line of this kind is to be logged now, and note it."""
        if kind in self._said_s and now_s - self._said_s[kind] < self._every_s:
            return False
        self._said_s = {one: at_s for one, at_s in self._said_s.items() if now_s - at_s < self._every_s}
        self._said_s[kind] = now_s
        return True

    def forget(self, kind: Hashable = "") -> None:
        """Let the next line of this kind be due at once."""
        self._said_s.pop(kind, None)


def text_of(value: object, make: Callable[[Any], str] = str, *, limit: int = MAX_REASON_CHARS) -> str:
    """Return the text of a foreign object, cut, in characters that UTF-8 has; `make` is `str` or `repr`.

    Objects of the user's code may raise where their text is made; this raises nothing then.
    """
    try:
        text = cut(make(value), limit)
    except EXITS:
        raise
    except BaseException as error:
        text = f"(its text can't be made: {type(error).__name__})"
    return text.encode(errors="backslashreplace").decode()


def error_text(error: BaseException) -> str:
    """Return type and text of a foreign error."""
    return f"{text_of(type(error), lambda kind: kind.__name__)}: {text_of(error)}"


def cut(text: str, limit: int = MAX_CHARS) -> str:
    """Return a text, or its beginning if it has more than `limit` characters."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def traceback_text(error: BaseException) -> str:
    """Return an error's traceback in which a line end within an error's text doesn't begin a line."""
    return "".join(map(_one_entry, traceback.format_exception(error))).rstrip("\n")


def _one_entry(entry: str) -> str:
    # Frames and headings are entries of their own lines; an error with its text is one entry.
    if entry.startswith(("  ", "\n")):
        return printable(cut(entry.rstrip("\n")), keep="\n") + "\n"
    return printable(cut(entry.rstrip("\n"))) + "\n"


class _Shown:
    """An argument whose texts are escaped and cut."""

    __slots__ = ("_given",)

    def __init__(self, given: object) -> None:
        self._given = given

    def __str__(self) -> str:
        return printable(text_of(self._given, limit=MAX_CHARS))

    def __repr__(self) -> str:
        return printable(text_of(self._given, repr, limit=MAX_CHARS))


def _shown(given: Any) -> Any:
    # An argument that needs no escapes stays an object, for handlers that use more than its text.
    return given if isinstance(given, Number) or _is_fit(given) else _Shown(given)


def _is_fit(given: object) -> bool:
    try:
        return all(len(text) <= MAX_CHARS and text.isprintable() for text in (str(given), repr(given)))
    except EXITS:
        raise
    except BaseException:
        return False
