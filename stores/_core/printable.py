"""Text and times from elsewhere, made fit to be shown: keys, values, headers, error texts, names of processes.

A terminal acts on escape sequences, a log has a record a line, and characters that change the direction of text make a
line read as another one. `printable` serves all media; HTML and JSON need their own quotes beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text with Python's escapes (`\x1b`, `\n`, `\u202e`) for what isn't printable.

    That is what `str.isprintable` says: control characters (C0, C1, DEL), line and paragraph separators, direction
    marks, lone surrogates, all spaces but the common one. A text without such is returned as it is.

    Args:
        text: any text.
        keep: characters that stay, such as line ends where the medium shows them as such.
    """
    return _escaped(text, keep, lambda char: char.encode("unicode_escape").decode("ascii"))


def one_line(text: str, limit: int) -> str:
    """Return a text in one line of up to `limit` characters, each run of white space as one space."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def printable_json(content: object) -> str:
    """Return JSON in one line, with JSON's own escapes for what isn't printable: it can be read back."""
    return _escaped(json.dumps(content, ensure_ascii=False), "", lambda char: json.dumps(char)[1:-1])


def moment(at_ms: int) -> str:
    """Return Unix milliseconds as a time in UTC; as a number if no calendar has the time."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms after 1970"


def moment_ms(at: datetime) -> int:
    """Return a time with its zone as Unix milliseconds; what is less than one is cut off."""
    # A float of seconds is one off for some.
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _escaped(text: str, keep: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    # Texts may be long, and have few different characters.
    return text.translate({ord(char): escape(char) for char in set(text) if not (char.isprintable() or char in keep)})


def counted(count: int, what: str) -> str:
    """Format a count with its noun: "1 member", "2,000 members"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
