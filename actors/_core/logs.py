"""Loggers whose lines can't be forged: what a record of an input topic says stays within the line that shows it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from numbers import Number
from typing import Any

from stores._core.printable import printable


def escaping(logger: logging.Logger) -> logging.Logger:
    """Let a logger escape what its records show, see `stores._core.printable`; return it.

    The filter is the logger's own and not its parent's: filters of parents aren't called, and handlers are the user's.
    """
    logger.addFilter(escape)
    return logger


def escape(record: logging.LogRecord) -> bool:
    """Escape a log record's text, its arguments and its traceback, whatever formats it later."""
    args = record.args
    if args:
        record.args = _shown(args) if isinstance(args, Mapping) else tuple(map(_shown, args))
    record.msg = printable(str(record.msg))
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        record.exc_text = traceback_text(record.exc_info[1])
    return True


def traceback_text(error: BaseException) -> str:
    """Return an error's traceback in which a line end within an error's text doesn't begin a line."""
    return "".join(map(_one_entry, traceback.format_exception(error))).rstrip("\n")


def _one_entry(entry: str) -> str:
    # Frames, headings and what belongs to groups come in lines of their own; an error with its text is one entry.
    if entry.startswith(("  ", "\n")):
        return printable(entry, keep="\n")
    return printable(entry.rstrip("\n")) + "\n"


class _Shown:
    """An argument whose texts are escaped."""

    __slots__ = ("_given",)

    def __init__(self, given: object) -> None:
        self._given = given

    def __str__(self) -> str:
        return printable(str(self._given))

    def __repr__(self) -> str:
        return printable(repr(self._given))


def _shown(given: Any) -> Any:
    # What needs no escapes stays what it is, for handlers that look at more than the text.
    if isinstance(given, Number) or (str(given).isprintable() and repr(given).isprintable()):
        return given
    return _Shown(given)
