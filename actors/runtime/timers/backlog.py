"""The input that was there when a task took over, or was resumed: timers that came due before wait for it.

Where a worker runs all the time, a timer fires after the input that came before it was due. After a downtime both are
there at once. So a timer waits until no input is left that was there at the takeover and has a lower timestamp than the
time of the timer. Input that came later is never waited for, so that an endless stream of it holds no timer up.

What isn't fetched yet has no known timestamp: while there is such input and nothing is in the queue, all timers wait.
Behind what is in the queue, timestamps are taken to be no lower.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

from actors._core.logs import escaping
from actors.ports import Clock, InputRecord, TopicPartition

logger = escaping(logging.getLogger(__name__))

PATIENCE_S = 60.0
"""So long timers wait for input that doesn't come, as behind a transaction that stays open."""


class Backlog:
    """The rest of the input before offset `end`.

    `position` gives the offset that is fetched next, None if unknown.
    """

    def __init__(
        self, source: TopicPartition, end: int, position: Callable[[TopicPartition], int | None], clock: Clock
    ) -> None:
        self._source = source
        self._end = end
        self._position = position
        self._clock = clock
        self._is_over = False
        self._begun = -1
        self._moved_s = clock.monotonic()

    def extend(self, end: int) -> None:
        """Wait for all before offset `end`: it came in a pause, as timers came due."""
        self._end, self._is_over, self._begun = max(self._end, end), False, -1

    def lowest_ms(self, begun: int, waiting: Iterable[InputRecord]) -> float:
        """Return the lowest timestamp that input which isn't begun may have; infinity when none of it is left.

        All before `begun` is handled, or in front of the timers of its key; `waiting` was fetched and isn't begun, save
        for some of it.
        """
        if self._is_over or begun >= self._end:
            self._is_over = True
            return math.inf
        left = (record.timestamp for record in waiting if begun <= record.offset < self._end)
        lowest_ms = min(left, default=-math.inf)
        if lowest_ms == -math.inf:
            position = self._position(self._source)
            self._is_over = (position is not None and position >= self._end) or self._is_stuck(begun)
        return math.inf if self._is_over else lowest_ms

    def _is_stuck(self, begun: int) -> bool:
        now_s = self._clock.monotonic()
        if begun != self._begun:
            self._begun, self._moved_s = begun, now_s
        if now_s - self._moved_s < PATIENCE_S:
            return False
        logger.warning(
            "%s: timers that are due wait no longer for the input before offset %d: nothing came behind offset %d for "
            "%.0f s. Is a transaction open there?",
            self._source,
            self._end,
            begun,
            PATIENCE_S,
        )
        return True
