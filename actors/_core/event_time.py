"""The time of a record by a field of its value, where a topic is declared with `timestamp=`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from actors._core.logs import error_text, text_of
from actors._core.outside import EXITS

TOO_LATE_MS = 1 << 63


def utc_text(at_ms: int) -> str:
    """Return Unix milliseconds as a time in UTC, "no time" before 1970."""
    if at_ms < 0:
        return "no time"
    try:
        return datetime.fromtimestamp(at_ms // 1000, UTC).isoformat().removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):
        # Behind the year 9999.
        return f"{at_ms} ms"


class NoTimeError(ValueError):
    """A topic's function doesn't tell the time of a value."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """How the values of a topic tell their time.

    Attributes:
        topic: the topic's name.
        decode: makes a value of a record's headers and bytes.
        function: gives a value's time, Unix milliseconds.
    """

    topic: str
    decode: Callable[[Sequence[tuple[str, bytes]], bytes], Any]
    function: Callable[[Any], Any]

    def of(self, headers: Sequence[tuple[str, bytes]], raw: bytes) -> int:
        """Return the time of a record's value in Unix milliseconds.

        Raises:
            NoTimeError: the function raises, or returns none.
            Exception: what `decode` raises.
        """
        value = self.decode(headers, raw)
        try:
            found = self.function(value)
        except EXITS:
            raise
        except BaseException as error:
            raise NoTimeError(f"timestamp= of topic {self.topic} raised {error_text(error)}") from error
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise NoTimeError(
                f"timestamp= of topic {self.topic} returned {text_of(found, repr)}, not a number of milliseconds"
            )
        if not 0 <= found < TOO_LATE_MS:
            raise NoTimeError(f"timestamp= of topic {self.topic} returned {found!r}: times are from 0 to 2**63 ms")
        return int(found)
