"""Where the changelogs of copies begin and end: asked side by side, so that one which doesn't answer holds up no other.

A partition without a leader may be without one for days. What doesn't answer in time is away: it isn't asked with the
others any more but by a task of its own, less often as time goes on, and is looked at again once it has answered there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from actors._core.backoff import Backoff
from actors._core.logs import Reminders, escaping
from actors._core.task.takeover import LogBounds
from actors.errors import BrokerUnavailableError
from actors.ports import Clock, Following, TopicPartition
from actors.runtime.cancellation import end

logger = escaping(logging.getLogger(__name__))

ANSWER_S = 3.0
"""How long all copies may wait for the answers of one look."""
AT_ONCE = 32
RETRY = Backoff(1.0, longest_s=15.0)
REMIND_S = 60.0

LogBoundsByPartition = Mapping[TopicPartition, tuple[int, LogBounds]]
"""When a partition was asked, in Unix milliseconds, and what its leader said."""


class StandbyLogs(Protocol):
    """What copies need of the brokers; see `actors.ports.TopicLogs`."""

    async def bounds(self, partition: TopicPartition) -> LogBounds:
        """Return the partition's start and its high watermark."""

    async def follow(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None
    ) -> Following:
        """Begin to read at these offsets, without an end, in the topics with these ids."""


class StandbyOffsets:
    """Asks for one worker's copies."""

    def __init__(self, logs: StandbyLogs, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._wanted: Collection[TopicPartition] = ()
        # Why, those first that weren't asked for longest.
        self._away: dict[TopicPartition, str] = {}
        self._asking: asyncio.Task[None] | None = None

    def is_away(self, source: TopicPartition) -> bool:
        """Tell whether a partition didn't answer, and hasn't since."""
        return source in self._away

    async def ask(self, sources: Iterable[TopicPartition]) -> LogBoundsByPartition:
        """Ask all that aren't away, for `ANSWER_S` at most. Who isn't in the answer is away, or asked next time."""
        found, failed = await self._ask([source for source in sources if source not in self._away])
        failed = {source: why for source, why in failed.items() if source in self._wanted}
        if failed:
            self._away.update(failed)
            self._say()
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask_again(), name="standbys' ends")
        return found

    def keep(self, sources: Collection[TopicPartition]) -> None:
        """Note what there are copies of, and forget all others. Does no I/O."""
        self._wanted = sources
        for source in [source for source in self._away if source not in sources]:
            del self._away[source]

    async def stop(self) -> None:
        """Ask no more. May be called twice."""
        asking, self._asking = self._asking, None
        await end(asking)

    async def _ask_again(self) -> None:
        retry_s, reminders = RETRY.first_s, Reminders(REMIND_S)
        # What is away was logged when it was found.
        reminders.is_due(self._clock.monotonic())
        while self._away:
            await self._clock.sleep(retry_s)
            retry_s = RETRY.longer_s(retry_s)
            try:
                found, failed = await self._ask(list(self._away))
            except Exception:
                logger.exception("the ends of changelogs aren't known; it is tried again")
                continue
            for source in found:
                if self._away.pop(source, None) is not None:
                    logger.info("%s answers again: its copy is looked at again", source)
            for source, why in failed.items():
                if self._away.pop(source, None) is not None:
                    self._away[source] = why
            if self._away and reminders.is_due(self._clock.monotonic()):
                self._say()

    async def _ask(self, sources: Iterable[TopicPartition]) -> tuple[LogBoundsByPartition, dict[TopicPartition, str]]:
        """Return the answers, and why there was none; in neither is whose turn hasn't come."""
        found: dict[TopicPartition, tuple[int, LogBounds]] = {}
        begun: set[TopicPartition] = set()
        room = asyncio.Semaphore(AT_ONCE)

        async def one(source: TopicPartition) -> None:
            async with room:
                begun.add(source)
                asked_ms = self._clock.wall_ms()
                found[source] = asked_ms, await self._logs.bounds(source)

        asked = {source: asyncio.create_task(one(source)) for source in sources}
        try:
            if asked:
                await asyncio.wait(asked.values(), timeout=ANSWER_S)
        finally:
            for task in asked.values():
                task.cancel()
            await asyncio.gather(*asked.values(), return_exceptions=True)
        return found, {source: _why(task) for source, task in asked.items() if source in begun - found.keys()}

    def _say(self) -> None:
        (source, why), *others = self._away.items()
        more = f" and {len(others)} others" if others else ""
        logger.warning(
            "%s%s: where the changelog ends isn't known (%s): its copy waits, the others go on; it is asked again "
            "every %g s at least",
            source,
            more,
            why,
            RETRY.longest_s + ANSWER_S,
        )


def _why(task: asyncio.Task[None]) -> str:
    """Return why there is no answer; what isn't the brokers' fault is raised."""
    if task.cancelled():
        return f"no answer in {ANSWER_S:g} s: has the partition a leader?"
    error = task.exception()
    if error is not None and not isinstance(error, BrokerUnavailableError | OSError):
        raise error
    return str(error)
