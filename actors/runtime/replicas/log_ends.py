"""Where followed logs begin and end: each is asked by itself, so that one which doesn't answer holds up no other.

A partition without a leader may be without one for days: it is asked less often as time goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from actors._core.backoff import Backoff
from actors._core.logs import Reminders, escaping
from actors._core.task.takeover import LogBounds
from actors.errors import BrokerUnavailableError
from actors.ports import Clock, Logs, TopicPartition
from actors.runtime.cancellation import end

logger = escaping(logging.getLogger(__name__))

ANSWER_S = 3.0
AT_ONCE = 32
RETRY = Backoff(1.0, longest_s=15.0)
REMIND_S = 60.0


@dataclass(frozen=True, slots=True)
class Look:
    """A log's bounds, asked for at `asked_ms`, in Unix milliseconds, when its store was at `offset`."""

    asked_ms: int
    offset: int
    bounds: LogBounds


class LogEnds:
    """Asks the partitions' leaders. `answers` has what came and wasn't taken yet."""

    def __init__(self, logs: Logs, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._room = asyncio.Semaphore(AT_ONCE)
        self._asking: dict[TopicPartition, asyncio.Task[None]] = {}
        # How often in succession a partition didn't answer, and when it is asked again.
        self._away: dict[TopicPartition, tuple[int, float]] = {}
        self._reminders = Reminders(REMIND_S)
        self.answers: dict[TopicPartition, Look] = {}

    def ask(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Begin to ask for partitions whose stores are at these offsets; raises what an earlier call met unexpectedly.

        One that is being asked, or didn't answer a short time ago, isn't asked beside that.
        """
        now_s = self._clock.monotonic()
        for source, offset in offsets:
            asking = self._asking.get(source)
            if asking is not None and asking.done():
                self._asking.pop(source).result()
            if source not in self._asking and self._away.get(source, (0, 0.0))[1] <= now_s:
                self._asking[source] = asyncio.create_task(self._ask(source, offset), name=f"bounds of {source}")

    def forget(self, source: TopicPartition) -> None:
        """Take no answer to what was asked until now. Does no I/O."""
        self.answers.pop(source, None)
        self._away.pop(source, None)
        if (asking := self._asking.pop(source, None)) is not None:
            asking.cancel()

    async def stop(self) -> None:
        """Ask no more. May be called twice."""
        asking, self._asking = self._asking, {}
        await end(*asking.values())

    async def _ask(self, source: TopicPartition, offset: int) -> None:
        try:
            async with self._room, asyncio.timeout(ANSWER_S):
                asked_ms = self._clock.wall_ms()
                bounds = await self._logs.bounds(source)
        except (BrokerUnavailableError, OSError) as error:
            self._failed(source, str(error) or f"no answer in {ANSWER_S:g} s: has the partition a leader?")
            return
        self.answers[source] = Look(asked_ms, offset, bounds)
        if self._away.pop(source, None) is not None:
            logger.info("%s answers again: its copy is looked at again", source)

    def _failed(self, source: TopicPartition, why: str) -> None:
        now_s, count = self._clock.monotonic(), self._away.get(source, (0, 0.0))[0] + 1
        self._away[source] = count, now_s + RETRY.delay_s(count)
        if self._reminders.is_due(now_s):
            logger.warning(
                "%s%s: the changelog's end is unknown (%s): its copy waits, the others go on; it is asked again "
                "every %g s at least",
                source,
                f" and {len(self._away) - 1} others" if len(self._away) > 1 else "",
                why,
                RETRY.longest_s + ANSWER_S,
            )
