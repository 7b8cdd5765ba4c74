"""The clock of the machine, as far as it can be believed, the time of a partition, and the timestamps of records."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from actors._core.logs import escaping
from actors.errors import UndecodableRecordError
from actors.ports import Clock, InputRecord, TopicPartition

logger = escaping(logging.getLogger(__name__))

MARGIN_MS = 300_000
"""How far clocks may differ where no setting says it."""
UNCHECKED_MS = 1_000
"""For so long after a look at all clocks the wall clock is taken alone, for speed."""
AHEAD_MS = 5_000
"""Clocks that differ by less aren't worth a warning."""
STILL_S = 1.0
"""How often a task looks at what is due while its partition's time stands still."""
LOOK_S = 10.0
"""How often an idle worker looks whether its clock was set."""
ASK_AGAIN_S = 60.0
"""How often the brokers are asked for their time while the clock isn't believed."""
ASK_S = 3600.0
MOST_PART = 4
"""An answer of the brokers counts if it took less than the margin divided by this."""
SECONDS_BEFORE_MS = 100_000_000_000
"""1973: a timestamp before that is likely one in seconds."""
_AWAKE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def awake_s() -> float:
    """Return seconds that go on while the machine is suspended, where the system has such a clock."""
    return time.clock_gettime(_AWAKE)


def boot_ms() -> int:
    """Return milliseconds that go on while the machine is suspended, and that nobody sets."""
    return int(awake_s() * 1000)


def machine_ms() -> int:
    """Return Unix milliseconds as the machine has them."""
    return time.time_ns() // 1_000_000


class SystemClock:
    """Time and waiting, as `actors.ports.Clock` wants them, on a machine whose wall clock may be set.

    The wall clock counts while it is within the margin of what is known: the brokers' time once `heard` was called, and
    before that its own last time. What is known is carried on by the boot clock, which has no steps. A wall clock that
    steps out of the margin isn't followed: time goes on by the boot clock, from the brokers' time or from the wall
    clock before the step, whichever is earlier. Too early a time makes things late; too late a time would make keys
    expire that must not. `margin_ms` is how far clocks may differ; `has_heard` tells whether the brokers' time is
    known.
    """

    monotonic = staticmethod(time.monotonic)

    def __init__(
        self,
        margin_ms: int = MARGIN_MS,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        boot_ms: Callable[[], int] = boot_ms,
    ) -> None:
        self._margin_ms = margin_ms
        self._wall_ns = wall_ns
        self._boot_ms = boot_ms
        self._own_ms = self._known_ms = wall_ns() // 1_000_000 - boot_ms()
        self._since_ms = self._until_ms = 0
        self.has_heard = self._has_told = False

    def wall_ms(self) -> int:
        """Return Unix milliseconds."""
        wall_ms = self._wall_ns() // 1_000_000
        return wall_ms if self._since_ms <= wall_ms < self._until_ms else self._checked_ms(wall_ms)

    def _checked_ms(self, wall_ms: int) -> int:
        boot_ms = self._boot_ms()
        from_boot_ms = wall_ms - boot_ms
        if abs(from_boot_ms - self._known_ms) > self._margin_ms:
            self._until_ms = 0
            if not self._has_told:
                self._tell(from_boot_ms)
            return boot_ms + min(self._own_ms, self._known_ms)
        self._own_ms, self._since_ms, self._until_ms = from_boot_ms, wall_ms, wall_ms + UNCHECKED_MS
        if not self.has_heard:
            self._known_ms = from_boot_ms
        if self._has_told:
            self._has_told = False
            logger.info("this machine's clock is right again, and followed")
        return wall_ms

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    @property
    def boot_ms(self) -> int:
        """Milliseconds that go on while the machine is suspended, and that nobody sets."""
        return self._boot_ms()

    @property
    def off_ms(self) -> int:
        """How far the machine's clock is ahead of the known time if it isn't believed; else 0."""
        off_ms = self._wall_ns() // 1_000_000 - self._boot_ms() - self._known_ms
        return off_ms if abs(off_ms) > self._margin_ms else 0

    def heard(self, brokers_ms: int, asked_ms: int) -> None:
        """Take what a broker says that the time is; it was asked when `boot_ms` was `asked_ms`.

        One that disagrees with a clock that the last answer agreed with is likely wrong itself: it is only named.
        """
        boot_ms = self._boot_ms()
        if boot_ms - asked_ms > self._margin_ms // MOST_PART:
            return
        wall_ms = self._wall_ns() // 1_000_000
        said_ms, off_ms = brokers_ms - boot_ms, wall_ms - brokers_ms
        is_off = abs(off_ms) > self._margin_ms
        if is_off and self.has_heard and not self.off_ms:
            logger.error(
                "a broker's clock is %.1f s %s this machine's, which agrees with what was heard before: check the "
                "brokers' clocks. This machine's is followed",
                abs(off_ms) / 1000,
                "behind" if off_ms > 0 else "ahead of",
            )
            return
        self._known_ms, self.has_heard, self._has_told = said_ms, True, self._has_told and is_off
        self._checked_ms(wall_ms)

    def _tell(self, from_boot_ms: int) -> None:
        self._has_told = True
        off_ms, is_early = from_boot_ms - self._known_ms, from_boot_ms <= min(self._own_ms, self._known_ms)
        logger.error(
            "this machine's clock is %.1f s %s %s, more than clock_skew_margin=%g s. %s. Set the clocks right (NTP)%s",
            abs(off_ms) / 1000,
            "ahead of" if off_ms > 0 else "behind",
            "the broker's" if self.has_heard else "its own time before, by the clock since boot",
            self._margin_ms / 1000,
            "The earlier time counts, so timers and expiry are late" if is_early else "Time goes on without it",
            "" if self.has_heard else "; if this one was set right just now, restart the worker",
        )

    def remind(self) -> None:
        """Say again that the machine's clock isn't believed, if it isn't."""
        off_ms = self.off_ms
        if off_ms and self._has_told:
            side = "ahead" if off_ms > 0 else "behind"
            logger.warning("this machine's clock is still %.1f s %s", abs(off_ms) / 1000, side)


async def compare(clock: SystemClock, ask: Callable[[], Awaitable[int | None]]) -> bool:
    """Ask the brokers for their time, and tell whether they answered.

    `ask` gives their time in Unix milliseconds, None if they answered and don't tell.
    """
    asked_ms = clock.boot_ms
    try:
        found_ms = await ask()
    except Exception as error:
        # Whatever it is: the clock is only compared with less.
        logger.info("the clock isn't compared with the brokers' for now: %r", error)
        return False
    if found_ms is not None:
        clock.heard(found_ms, asked_ms)
    return True


async def watch(clock: SystemClock, ask: Callable[[], Awaitable[int | None]]) -> None:
    """Compare the clock with the brokers' from time to time, and soon when it made a step; never returns."""
    asked_s, has_answer = clock.monotonic(), True
    while True:
        await clock.sleep(LOOK_S)
        # A step is noticed also while nothing is done.
        clock.wall_ms()
        now_s = clock.monotonic()
        if now_s - asked_s >= (ASK_S if has_answer and not clock.off_ms else ASK_AGAIN_S):
            asked_s, has_answer = now_s, await compare(clock, ask)
            clock.remind()


class PartitionClock:
    """The time of one partition, which never goes back: a `Clock` for what its messages and timers go by.

    It is the worker's clock. Where an earlier owner's clock was ahead, or this one's was set back, the partition's time
    stands still until the clock has caught up. Clocks differ from the brokers' by the margin at most where they are
    followed, so what waits is late by twice the margin at most. The latest time goes with each commit. `ahead_ms` is
    how far the partition's time was ahead of the worker's clock at the last look.
    """

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self.sleep = clock.sleep
        self._clock = clock
        self._latest_ms = 0
        self.ahead_ms = 0

    def go_on_from(self, committed_ms: int) -> None:
        """Don't go below the time that an earlier owner committed, Unix milliseconds."""
        self._latest_ms = max(self._latest_ms, committed_ms)

    def wall_ms(self) -> int:
        """Return the partition's time in Unix milliseconds."""
        wall_ms = self._clock.wall_ms()
        if wall_ms < self._latest_ms:
            self.ahead_ms = self._latest_ms - wall_ms
            return self._latest_ms
        self._latest_ms, self.ahead_ms = wall_ms, 0
        return wall_ms

    def rest_s(self, wait_s: float) -> float:
        """Return the seconds that a task with work in `wait_s` rests.

        While its time stands still, what waits for it would wake the task again and again.
        """
        return max(wait_s, min(self.ahead_ms / 1000, STILL_S)) if wait_s else 0.0


class Timestamps:
    """Which timestamps of a task's records are believed, for a time that goes by them and can't go back.

    So do stream time, of windows and of timers, and the history of a table.

    Attributes:
        clock: tells whether a timestamp is too far ahead.
        believed_ms: none up to then is, as of the last look at the clock, which is asked seldom.
    """

    def __init__(self, clock: Clock, max_ahead_ms: int) -> None:
        self.clock = clock
        self.believed_ms = -1
        self._max_ahead_ms = max_ahead_ms
        self._has_warned = False

    def is_unusual(self, at_ms: int) -> bool:
        """Return whether a record with that timestamp has to be checked."""
        return at_ms > self.believed_ms or (at_ms < SECONDS_BEFORE_MS and not self._has_warned)

    def is_ahead(self, at_ms: int) -> bool:
        """Return whether a timestamp is so far in the future that no time moves on to it."""
        if at_ms <= self.believed_ms:
            return False
        self.believed_ms = self.clock.wall_ms() + self._max_ahead_ms
        return at_ms > self.believed_ms

    def check(self, source: TopicPartition, record: InputRecord, *, reached_ms: int, harm: str) -> None:
        """Refuse a record that is too far ahead, and warn of one that has a timestamp in seconds.

        Args:
            source: where the record came from.
            record: the record.
            reached_ms: what the time that would move on has come to; up to there no record does harm.
            harm: what it would do, for the error, as in "close all windows before it".

        Raises:
            RecordError: it is too far ahead.
        """
        at_ms = record.timestamp
        if at_ms > reached_ms and self.is_ahead(at_ms):
            ahead_ms = at_ms - self.believed_ms + self._max_ahead_ms
            raise UndecodableRecordError.about(
                record,
                source,
                f"its timestamp {at_ms} is {ahead_ms / 1000:.0f} s ahead of this worker's clock, more than "
                f"max_time_ahead={self._max_ahead_ms / 1000:g} s: it would {harm}",
            )
        if 0 <= at_ms < SECONDS_BEFORE_MS and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s offset %d: the timestamp %d is in %s: timestamps are milliseconds. If its producer writes seconds, "
                "give the topic timestamp=lambda value: 1000 * …",
                source,
                record.offset,
                at_ms,
                "1970" if at_ms < 31_536_000_000 else "1971 to 1973",
            )


def warn_if_ahead(name: str, ahead_ms: float, margin_ms: int) -> None:
    """Log that a partition's time is ahead: an earlier owner's clock was, or this one was set back."""
    if ahead_ms < AHEAD_MS:
        return
    logger.log(
        logging.ERROR if ahead_ms > margin_ms else logging.WARNING,
        "%s: the partition's time is %.1f s ahead of this worker's clock: the clock of an earlier owner was ahead, "
        "or this one is behind. It stands still until the clock has caught up: timers and expiry are late by as much. "
        "Check the clocks of the workers and the brokers",
        name,
        ahead_ms / 1000,
    )
