"""Closes that take their time, and workers that leave in the middle of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING

from actors._core.partitioner import partition_for
from actors.ports import TopicPartition
from tests.sim import app
from tests.sim.fakes.loop import current_process
from tests.sim.part import Part

if TYPE_CHECKING:
    from tests.sim.node import Node

CLOSES_S = (0.0, 0.01, 0.1)
"""How long a function that is called for a close may take."""
DOWN_S = (4.0, 15.0, 40.0)
"""How long all workers are down before a worker leaves in the middle of closes."""
CLOSING_S = 10.0
"""How long no other fault comes then."""
SLOW_S = (0.1, 0.5, 1.5)
"""How long it takes until a worker leaves: records come between closes, so those in hand fall behind stream time."""


class ClosingPart(Part):
    """A part whose functions are called for closes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._faults = Random(f"{seed} {self.name} faults")
        self._close_s = Random(f"{seed} {self.name} closes").choice(CLOSES_S)
        self._leaves_left, self._closes_left, self._slow_s = 0, 0, 0.0
        self._later: list[asyncio.TimerHandle] = []
        self._nodes: Sequence[Node] = ()

    def faults(self, nodes: Sequence[Node]) -> Iterator[Callable[[], float | None]]:
        def leave_in_closes() -> float:
            """A worker stops, or the group rebalances, in a close that has others behind it.

            All were down before, so that much is to be closed at once, and some of it past its retention.
            """
            self._leaves_left, self._closes_left = self._faults.choice((1, 3)), 0
            self._slow_s = self._faults.choice(SLOW_S)
            self._nodes, down_s = nodes, self._faults.choice(DOWN_S)
            self._produce_burst()
            for node in nodes:
                node.kill(finishes=True)
            self._later += [self.world.loop.call_later(down_s, back) for back in (self._produce_burst, self._start)]
            return down_s + CLOSING_S

        return iter((leave_in_closes,))

    def _produce_burst(self) -> None:
        """Produce an input of each key that there is."""
        for number in range(self.world.partitions):
            log = self.world.cluster.log(TopicPartition(app.INPUT, number))
            for key in sorted({record.key for record in log.history if record.is_committed and record.key}):
                if partition_for(key, self.world.partitions) != number:
                    continue
                value = self.make_input(key.decode())
                source = TopicPartition(self.input_topic(value), number)
                self.world.cluster.produce(source, [(key, value.encode(), (), self.timestamp_ms())])

    def _start(self) -> None:
        for node in self._nodes:
            if not node.is_up:
                node.start()

    def heal(self) -> None:
        self._leaves_left = 0
        for timer in self._later:
            timer.cancel()

    async def pass_close(self) -> None:
        """Let the time of a close pass; the worker is told to leave in the middle of it if that is due."""
        node = next((node for node in self._nodes if node.process is current_process()), None)
        is_slow = self._leaves_left > 0
        if is_slow and node is not None and _has_more(node):
            self._closes_left -= 1
            if self._closes_left < 0:
                self._leaves_left, self._closes_left = self._leaves_left - 1, self._faults.choice((0, 1, 3))
                self._leave(node)
        await asyncio.sleep(self._slow_s if is_slow else self._close_s)

    def _leave(self, node: Node) -> None:
        self.count("left in closes")
        loop = self.world.loop
        if self._faults.random() < 0.2:
            loop.call_soon(self.world.cluster.group.rebalance, context=Context())
        else:
            loop.create_task(self._bounce(node), context=Context())

    async def _bounce(self, node: Node) -> None:
        await node.stop()
        await asyncio.sleep(self._faults.uniform(0.1, 8.0))
        if not node.is_up:
            node.start()


def _has_more(node: Node) -> bool:
    """Tell whether a task has closes in hand behind the one that is handled."""
    processors = () if node.worker is None else [task._processor for task in node.worker.tasks]
    return any(processor is not None and processor.due._taken for processor in processors)
