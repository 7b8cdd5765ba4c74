"""Names, values and durations for people. What comes from users is shown without what would move their cursor."""

from __future__ import annotations

import json

from stores._core.printable import printable

SHOWN_CHARS = 60


def short(text: str) -> str:
    """Return a text for a table, without its end if it is long."""
    line = printable(text[: SHOWN_CHARS + 1])
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…"


def quoted(text: str) -> str:
    """Return a text as JSON in one line: it can't be taken for anything else."""
    return printable(json.dumps(text, ensure_ascii=False))


def duration(ms: int) -> str:
    """Return milliseconds in the two largest units that say something."""
    if ms < 10_000:
        return f"{max(ms, 0) / 1000:.1f} s"
    seconds = ms // 1000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def left(ends_ms: int, now_ms: int) -> str:
    """Say how long something still lasts."""
    return "over" if ends_ms <= now_ms else duration(ends_ms - now_ms)
