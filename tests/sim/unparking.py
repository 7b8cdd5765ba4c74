"""The operator deploys a program that doesn't park any more, while messages are parked or after they were resolved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from tests.sim.node import Node, World

LOOK_S = 0.25
START_S = 60.0
"""How long the processes have to start, or to be refused."""
Stop = Callable[[], Awaitable[None]]


class Unparking:
    """Deploys the program with parking and the one without it; no process of the other one runs meanwhile."""

    def __init__(self, world: World, nodes: Sequence[Node], random: Random, stop_all: Stop) -> None:
        self._world = world
        self._nodes = nodes
        self._random = random
        self._stop_all = stop_all

    async def try_for_a_while(self) -> None:
        """Deploy it in the middle of everything, and take it back."""
        await self._deploy(parks=False)
        await asyncio.sleep(self._random.choice((2.0, 6.0, 15.0)))
        await self._deploy(parks=True)

    def interrupt(self) -> None:
        """Have no program that doesn't park."""
        if not self._world.deployment.parks:
            self._switch(parks=True)

    async def try_before_cure(self) -> None:
        """Deploy it while messages may be parked: each process is refused, or runs. Then go back."""
        await self._deploy(parks=False)
        deadline_s = self._world.loop.time() + START_S
        while not all(node.refusals or node.worker is not None for node in self._nodes):
            if self._world.loop.time() > deadline_s:
                self._world.audit.violated("unparking: some process neither starts nor is refused")
                break
            await asyncio.sleep(LOOK_S)
        await self._deploy(parks=True)

    async def finish(self) -> None:
        """Deploy it for good."""
        await self._deploy(parks=False)

    async def _deploy(self, *, parks: bool) -> None:
        await self._stop_all()
        self._switch(parks=parks)

    def _switch(self, *, parks: bool) -> None:
        deployment = self._world.deployment
        self._world.audit.note(f"DEPLOYS a program that {'parks' if parks else 'does not park'}")
        for node in self._nodes:
            node.kill(finishes=True)
            for process in list(node.left_behind):
                node.forget(process)
            node.refusals = 0
        deployment.parks = parks
        deployment.has_stopped_parking |= not parks
        for node in self._nodes:
            node.start()
