"""Keeps a worker's tasks paused or running, and has them go on without released feeds, as the registry says.

A task reads the registry when it takes over, so one that was paused before handles nothing after it. What an operator
says later is read here, by all workers, about once a second. While the registry can't be read, tasks stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from actors._core.event_time import utc_text
from actors._core.logs import escaping
from actors.errors import TaskError
from actors.ports import Clock, Owners, TopicPartition
from actors.runtime.task.task import Task
from stores._core.printable import moment

logger = escaping(logging.getLogger(__name__))

LOOK_S = 1.0
"""How often the registry is read."""
END_LOOK_S = 2.0
"""How long after a look at the inputs of all paused tasks the next one begins: nothing is fetched of them."""


async def follow_pauses(owners: Owners, tasks: Callable[[], Collection[Task]], clock: Clock) -> None:
    """Pause and resume tasks until it is cancelled."""
    ends = asyncio.create_task(_follow_ends(tasks, clock), name="actors ends of paused inputs")
    has_failed = False
    try:
        while True:
            try:
                await owners.refresh()
            except (TaskError, OSError) as error:
                level = logging.DEBUG if has_failed else logging.WARNING
                logger.log(level, "%s can't be read, so a pause or its end isn't seen: %s", owners.topic, error)
                has_failed = True
            else:
                has_failed = False
                await asyncio.gather(*(_follow(owners, task) for task in list(tasks())))
            await clock.sleep(LOOK_S)
    finally:
        ends.cancel()
        await asyncio.gather(ends, return_exceptions=True)


async def _follow(owners: Owners, task: Task) -> None:
    name, partition = task.spec.name, task.partition
    if task.paused is not None and owners.pause_of(name, partition) is None:
        # Timers that came due in the pause wait for the input that came in it.
        await task.look_at_end()
    task.pause(owners.pause_of(name, partition))
    if task.time is not None:
        releases = {TopicPartition(one.topic, one.partition): one for one in owners.released(name)}
        for feed in task.time.release({feed: one.time_ms for feed, one in releases.items()}):
            text = "event time of actor %s, partition %d goes on without %s, which is at %s: released %s, by %s"
            one = releases[feed]
            logger.warning(text, name, partition, feed, utc_text(one.time_ms), moment(one.at_ms), one.by)


async def _follow_ends(tasks: Callable[[], Collection[Task]], clock: Clock) -> None:
    while True:
        for task in list(tasks()):
            if task.paused is not None:
                await task.look_at_end()
        await clock.sleep(END_LOOK_S)
