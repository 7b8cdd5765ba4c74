"""Somebody pauses the actor, or one of its partitions, and resumes it, in the middle of everything else.

What a task may know is decided by the registry alone: if a pause could be read there when the task got its partition,
the task handles nothing before somebody resumes it. A pause that comes later has some time to be seen, which is looked
at in peace: all are paused, restarted, and resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import TYPE_CHECKING

import msgspec

from actors._core.task.pauses import Pause, pause_key
from actors.ports import TopicPartition
from actors.runtime.task.task import State
from tests.sim import app
from tests.sim.fakes.loop import current_process

if TYPE_CHECKING:
    from tests.sim.node import Node, World

REGISTRY = TopicPartition(app.OWNERS, 0)
SEEN_S = 60.0
"""How long after the last fault all tasks have taken over and seen a pause; within it, takeovers are tried again."""
QUIET_S = 8.0
SETTLE_S = 3.0
"""How long what a handler has begun may take."""


class Pausing:
    """Pauses and resumes, and sees that nothing is handled meanwhile."""

    def __init__(self, world: World, nodes: list[Node], random: Random) -> None:
        self._world = world
        self._nodes = nodes
        self._random = random
        self._told: list[tuple[int, int | None, bool]] = []
        self._known_to: dict[tuple[object, int], int] = {}
        self._handled = 0

    # --- faults ----------------------------------------------------------------------------------------------------

    def faults(self) -> Iterator[Callable[[], None]]:
        yield self.pause_or_resume

    def pause_or_resume(self) -> None:
        """Somebody pauses the actor or a partition, or resumes it."""
        partition = self._random.choice((None, *range(self._world.partitions)))
        self._tell(partition, is_paused=self._random.random() < 0.6)

    def _tell(self, partition: int | None, *, is_paused: bool) -> None:
        offset = self._world.cluster.log(REGISTRY).end
        pause = Pause(actor=app.ACTOR, partition=partition, is_paused=is_paused, at_ms=0, by="somebody")
        self._world.cluster.produce(REGISTRY, [(pause_key(app.ACTOR, partition), msgspec.json.encode(pause), [])])
        self._told.append((offset, partition, is_paused))
        self._world.audit.note(f"{'PAUSES' if is_paused else 'RESUMES'} {partition}")
        self._world.audit.counted["paused" if is_paused else "resumed"] += 1

    # --- what is seen ----------------------------------------------------------------------------------------------

    def assigned(self, partition: int) -> None:
        """Note what of the registry a process can read when it gets a partition."""
        self._known_to[current_process(), partition] = self._world.cluster.log(REGISTRY).last_stable

    def handles(self, partition: int) -> None:
        """See that a message may be handled."""
        self._handled += 1
        told = [(offset, is_paused) for offset, of, is_paused in self._told if of in (None, partition)]
        if not told:
            return
        offset, is_paused = told[-1]
        if is_paused and offset < self._known_to.get((current_process(), partition), 0):
            self._world.audit.violated(f"pauses: partition {partition} handles, paused at {offset} before it was taken")

    # --- in peace --------------------------------------------------------------------------------------------------

    async def hold(self, produce: Callable[[], None], restart: Callable[[], Awaitable[None]]) -> None:
        """Pause all, let inputs come, restart the workers, and resume."""
        self._tell(None, is_paused=True)
        await self._until_all_are_still()
        await asyncio.sleep(SETTLE_S)
        before = self._handled
        produce()
        await asyncio.sleep(QUIET_S)
        await restart()
        await self._until_all_are_still()
        await asyncio.sleep(QUIET_S)
        if self._handled != before:
            self._world.audit.violated(f"pauses: {self._handled - before} messages are handled while all is paused")
        self._tell(None, is_paused=False)

    async def _until_all_are_still(self) -> None:
        deadline_s = self._world.loop.time() + SEEN_S
        while not self._are_all_still():
            if self._world.loop.time() > deadline_s:
                self._world.audit.violated(f"pauses: not all tasks are paused after {SEEN_S:g} s")
                return
            await asyncio.sleep(0.25)

    def _are_all_still(self) -> bool:
        """Whether each partition is paused, or stopped by an error: that is mended when all are resumed."""
        tasks = [task for node in self._nodes if node.worker is not None for task in node.worker.tasks]
        still = {
            task.partition
            for task in tasks
            if task.halted_by is not None or (task.paused is not None and task.state is State.RUNNING)
        }
        return len(tasks) == len(still) == self._world.partitions
