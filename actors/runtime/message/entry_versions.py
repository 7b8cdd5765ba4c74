"""What a release finds in the stores of timers, effects, parked messages and answers that a newer one has written.

The entries of this release are JSON objects without a field `v`. A release that changes their meaning writes `v` first.
An entry that begins with it is a newer release's: it is neither acted on nor removed, and its partition stops.
"""

from __future__ import annotations

from actors.errors import NewerVersionError, show_bytes

_NEWER = b'{"v":'


def is_newer(raw: bytes) -> bool:
    """Tell whether a newer release wrote an entry."""
    return raw.startswith(_NEWER)


def newer_entry(what: str, raw: bytes) -> NewerVersionError:
    """Return the error for an entry of a newer release; `what` it is, as in "a timer"."""
    return NewerVersionError(f"{what} that this release can't read, run the one that wrote it: {show_bytes(raw)}")
