"""The kinds of windows, as Kafka Streams defines them. All times are Unix milliseconds and not negative.

| kind | a record at time t belongs to | bounds of a window |
|---|---|---|
| Tumbling | the one window that t lies in | start included, end not |
| Hopping | each window that t lies in | start included, end not |
| Sliding | windows of one length that begin or end with a record | both included |
| Session | one window of all records with no gap larger than `gap` between them | both included: first, last record |

A window is closed when stream time, the largest timestamp that the task has seen, is behind its last millisecond by
more than the grace period; a session's last millisecond is `gap` after its last record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mypy_extensions import mypyc_attr

from actors._core.outside import caused

_MS = timedelta(milliseconds=1)
LONGEST_SPAN = timedelta(days=36_525)
"""Of a window, a grace period or an interval. Sums of some such spans and times stay within the calendar."""
MOST_WINDOWS = 20_000
"""How many hopping windows one record may be in: each is read and written for it."""
_MONDAY = date(1970, 1, 5).toordinal()
_DAY_MS = 86_400_000


class Window(NamedTuple):
    """A span of event time, Unix milliseconds. Whether `end_ms` belongs to it depends on the kind: see the table."""

    start_ms: int
    end_ms: int


@mypyc_attr(allow_interpreted_subclasses=True)
class AlignedWindows:
    """Windows that lie at fixed places of time, whatever the records are.

    Attributes:
        longest_ms: no window is longer.
        advance_ms: no two windows begin closer to each other.
        idle_ms: how long after its last millisecond a window may still become longer.
        by_clock: whether a message belongs to the windows of the time at which it is handled.
    """

    longest_ms: int
    advance_ms: int
    idle_ms = 0
    by_clock = False

    def holding(self, at_ms: int) -> Sequence[Window]:
        """Return the windows that a time lies in, the earliest first."""
        raise NotImplementedError

    def starting(self, start_ms: int) -> Window:
        """Return the window that begins at a time."""
        raise NotImplementedError

    def starts(self, from_ms: int, to_ms: int) -> Sequence[int]:
        """Return the starts of all windows that begin in a span, both bounds included."""
        raise NotImplementedError

    def closes_ms(self, window: Window, grace_ms: int) -> int:
        """Return the stream time from which on a window is closed."""
        return window.end_ms + grace_ms


@mypyc_attr(allow_interpreted_subclasses=True)
class Hopping(AlignedWindows):
    """Windows of one size, a new one each `advance`. The first one that holds a time begins no earlier than 1970.

    Examples:
        >>> from datetime import timedelta
        >>> windows = Hopping(timedelta(minutes=2), advance=timedelta(minutes=1)).holding(130_000)
        >>> [(window.start_ms, window.end_ms) for window in windows]
        [(60000, 180000), (120000, 240000)]
    """

    __slots__ = ("advance_ms", "longest_ms")

    def __init__(self, size: timedelta, advance: timedelta) -> None:
        self.longest_ms = checked_ms("Hopping", "size", size)
        self.advance_ms = checked_ms("Hopping", "advance", advance)
        if self.advance_ms > self.longest_ms:
            raise ValueError(
                f"Hopping(size={size}, advance={advance}): records between two windows would be in none: "
                "make advance at most the size"
            )
        if (count := -(-self.longest_ms // self.advance_ms)) > MOST_WINDOWS:
            raise ValueError(
                f"Hopping(size={size}, advance={advance}): each record would be in {count} windows, {MOST_WINDOWS} is "
                "the most: make advance longer"
            )

    def __repr__(self) -> str:
        return f"Hopping({_shown(self.longest_ms)}, {_shown(self.advance_ms)})"

    def holding(self, at_ms: int) -> Sequence[Window]:
        size, advance = self.longest_ms, self.advance_ms
        first = max(0, at_ms - size + advance) // advance * advance
        return _windows(first, at_ms // advance * advance, advance, size)

    def starting(self, start_ms: int) -> Window:
        return Window(start_ms, start_ms + self.longest_ms)

    def starts(self, from_ms: int, to_ms: int) -> Sequence[int]:
        advance = self.advance_ms
        return range(-(-max(0, from_ms) // advance) * advance, to_ms + 1, advance)


@mypyc_attr(allow_interpreted_subclasses=True)
class Tumbling(AlignedWindows):
    """Windows of one size, each beginning where the one before ends.

    With `tz`, the size is a number of days, and windows begin at midnight there: one is an hour longer or shorter when
    the clocks change. Seven days, or a multiple, begin on a Monday.

    With `time="wall"` a message belongs to the window in which it is handled, by the partition's clock, and a window
    closes when its time is over, without a message.

    Examples:
        >>> from datetime import timedelta
        >>> [window] = Tumbling(timedelta(minutes=1)).holding(61_000)
        >>> window
        Window(start_ms=60000, end_ms=120000)
    """

    __slots__ = ("_days", "_zone", "advance_ms", "by_clock", "longest_ms", "tz")

    def __init__(
        self,
        size: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
        tz: str | None = None,
        time: Literal["event", "wall"] = "event",
    ) -> None:
        parts = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds, "milliseconds": milliseconds}
        size_ms = checked_ms("Tumbling", "size", size or timedelta(0), parts)
        if time not in ("event", "wall"):
            raise ValueError(f'Tumbling(time={time!r}): it is "event" or "wall"')
        self.by_clock = time == "wall"
        self.tz = tz
        self._zone: tzinfo = UTC
        self._days, rest = divmod(size_ms, _DAY_MS)
        self.longest_ms = self.advance_ms = size_ms
        if tz is not None:
            if rest:
                raise ValueError(f"Tumbling(tz={tz!r}): the size is a number of whole days, not {_shown(size_ms)}")
            try:
                self._zone = ZoneInfo(tz)
            except (ZoneInfoNotFoundError, ValueError, OSError) as error:
                raise caused(
                    ValueError(f"Tumbling(tz={tz!r}): there is no such time zone on this machine: {error}"), error
                ) from error
            # Clocks have been changed by up to a day.
            self.longest_ms, self.advance_ms = size_ms + _DAY_MS, max(1, size_ms - _DAY_MS)

    def __repr__(self) -> str:
        size = f"days={self._days}, tz={self.tz!r}" if self.tz else _shown(self.longest_ms)
        return f"Tumbling({size}, time='wall')" if self.by_clock else f"Tumbling({size})"

    def holding(self, at_ms: int) -> Sequence[Window]:
        if self.tz is None:
            size = self.longest_ms
            start = at_ms // size * size
            return _windows(start, start, size, size)
        day = datetime.fromtimestamp(at_ms // 1000, self._zone).date().toordinal()
        first = day - (day - _MONDAY) % self._days
        if self._midnight_ms(first + self._days) <= at_ms:
            # Clocks went back over midnight: the day began with the first one.
            first += self._days
        return (Window(max(0, self._midnight_ms(first)), self._midnight_ms(first + self._days)),)

    def starting(self, start_ms: int) -> Window:
        return self.holding(start_ms)[0]

    def starts(self, from_ms: int, to_ms: int) -> Sequence[int]:
        if self.tz is None:
            size = self.longest_ms
            return range(-(-max(0, from_ms) // size) * size, to_ms + 1, size)
        found, window = [], self.holding(max(0, from_ms))[0]
        while window.start_ms <= to_ms:
            if window.start_ms >= from_ms:
                found.append(window.start_ms)
            window = self.holding(window.end_ms)[0]
        return found

    def _midnight_ms(self, day: int) -> int:
        midnight = datetime.fromordinal(day).replace(tzinfo=self._zone)
        return int(midnight.timestamp()) * 1000


@mypyc_attr(allow_interpreted_subclasses=True)
class Sliding:
    """Windows of one length: one that ends with each record, and one that begins just after each that others follow.

    So for each set of records that are at most `difference` apart there is one window that holds just these.

    Examples:
        >>> from datetime import timedelta
        >>> Sliding(timedelta(minutes=5))
        Sliding(0:05:00)
    """

    __slots__ = ("longest_ms",)
    idle_ms = 0

    def __init__(self, difference: timedelta) -> None:
        self.longest_ms = checked_ms("Sliding", "difference", difference)

    def __repr__(self) -> str:
        return f"Sliding({_shown(self.longest_ms)})"

    def closes_ms(self, window: Window, grace_ms: int) -> int:
        """Return the stream time from which on a window is closed."""
        return window.end_ms + grace_ms + 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Session:
    """Windows of records that have no gap larger than `gap` between them. A record between two windows merges them.

    Examples:
        >>> from datetime import timedelta
        >>> Session(timedelta(minutes=30))
        Session(0:30:00)
    """

    __slots__ = ("gap_ms", "idle_ms", "longest_ms")

    def __init__(self, gap: timedelta) -> None:
        self.gap_ms = self.idle_ms = self.longest_ms = checked_ms("Session", "gap", gap)

    def __repr__(self) -> str:
        return f"Session({_shown(self.gap_ms)})"

    def closes_ms(self, window: Window, grace_ms: int) -> int:
        """Return the stream time from which on a window is closed."""
        return window.end_ms + self.gap_ms + grace_ms + 1


Windows = AlignedWindows | Sliding | Session
SEGMENTS = 32
"""Into how many segments of time the sessions of a retention are divided at most."""


@lru_cache(maxsize=1024)
def _windows(first_ms: int, last_ms: int, advance_ms: int, size_ms: int) -> Sequence[Window]:
    """Return the windows that begin from one time to another. Records whose times are close have the same ones."""
    return tuple(Window(start, start + size_ms) for start in range(first_ms, last_ms + 1, advance_ms))


def goes_by_clock(windows: object) -> bool:
    """Return whether messages belong to the windows of the time at which they are handled."""
    return isinstance(windows, AlignedWindows) and windows.by_clock


def checked_ms(what: str, option: str, span: timedelta, parts: Mapping[str, float] = MappingProxyType({})) -> int:
    """Return a span, with `parts` of a `timedelta` added to it, in milliseconds.

    Raises:
        ValueError: it isn't a `timedelta`, shorter than a millisecond or longer than `LONGEST_SPAN`.
    """
    if not isinstance(span, timedelta):
        raise ValueError(f"{what}({option}={span!r}): give a timedelta")  # noqa: TRY004
    try:
        span += timedelta(**parts)
    except OverflowError:
        span = timedelta.max
    if span > LONGEST_SPAN:
        raise ValueError(f"{what}({option}={span}): it has to be {LONGEST_SPAN.days} days or shorter")
    if span < _MS:
        raise ValueError(f"{what}({option}={span}): it has to be a millisecond or longer")
    return span // _MS


def _shown(span_ms: int) -> str:
    return f"{timedelta(milliseconds=span_ms)}"
