"""What is produced into the inputs' topic: bursts and silence, some of it in transactions, some of which abort."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from actors._core.partitioner import partition_for
from actors.ports import TopicPartition
from actors.testing.fakes.direct import retried
from actors.testing.fakes.errors import ProducerFencedError
from tests.sim import app
from tests.sim.node import World
from tests.sim.part import Part

BAD_INPUTS = 0.04
"""How many of the inputs can't be handled, in runs that have such."""
SECOND_INPUTS = (20, 60, 120)
Record = tuple[bytes | None, bytes | None, tuple[()], int | None]


class Inputs:
    """Everybody who produces.

    Attributes:
        made: how many inputs of the app were made, those of the model's parts not.
        keys: whose they are.
    """

    def __init__(self, world: World, bad_inputs: Random, keys: list[str]) -> None:
        self.made = 0
        self.keys = keys
        self._world = world
        self._bad_inputs = bad_inputs

    async def produce(self, random: Random, count: int) -> None:
        """Produce the app's own inputs."""
        await self._produce(random, lambda: count - self.made, self._some_input, lambda: f"inputs-{self.made}")

    async def produce_for(self, part: Part) -> None:
        """Produce the inputs of a part of the model."""
        random, left = part.random, part.random.choice(part.counts)

        def some_input(_: Random) -> tuple[TopicPartition, Record]:
            nonlocal left
            left -= 1
            key = random.choice(self.keys)
            value = part.make_input(key)
            target, (raw_key, raw_value, headers, _) = self._input(key.encode(), value.encode())
            return target._replace(topic=part.input_topic(value)), (raw_key, raw_value, headers, part.timestamp_ms())

        await self._produce(random, lambda: left, some_input, lambda: f"{part.name}-{left}", exact=True)

    async def produce_second(self, random: Random) -> None:
        """Produce the other input's, which are as old as those of the first one or older, in no order."""
        left, lag_ms = random.choice(SECOND_INPUTS), random.choice((0, 300, 5_000))

        def some_input(_: Random) -> tuple[TopicPartition, Record]:
            nonlocal left
            left -= 1
            raw_key, raw_value = app.some_input(random, self.keys, left)
            target, _ = self._input(raw_key, raw_value)
            value = None if random.random() < 0.1 else raw_value
            at_ms = self._world.cluster.wall_ms() - random.randint(0, lag_ms)
            return target._replace(topic=app.SECOND), (raw_key, value, (), at_ms)

        await self._produce(random, lambda: left, some_input, lambda: f"second-{left}")

    def produce_some(self) -> None:
        """Produce an input of each key."""
        for key in self.keys:
            self.made += 1
            target, record = self._input(key.encode(), f"count:{self.made}".encode())
            self._world.cluster.produce(target, [record])

    def delete_keys(self) -> None:
        for operation in ("reset", "forget"):
            for key in self.keys:
                self.made += 1
                target, record = self._input(key.encode(), f"{operation}:{self.made}".encode())
                self._world.cluster.produce(target, [record])

    async def _produce(
        self,
        random: Random,
        missing: Callable[[], int],
        some_input: Callable[[Random], tuple[TopicPartition, Record]],
        name: Callable[[], str],
        *,
        exact: bool = False,
    ) -> None:
        pace = random.choice((0.2, 1.0, 4.0))
        while missing() > 0:
            burst = random.choice((1, 1, 5, 20))
            if exact:
                burst = min(burst, missing())
            if random.random() < 0.15:
                await self._produce_transaction(random, [some_input] * burst, name())
            else:
                for _ in range(burst):
                    target, record = some_input(random)
                    self._world.cluster.produce(target, [record])
            await asyncio.sleep(random.choice((0.0, 0.02, 0.3, 2.0, 8.0)) * pace)

    async def _produce_transaction(self, random: Random, burst: list[Any], name: str) -> None:
        cluster = self._world.cluster
        transactions = cluster.transactions
        epoch = await self._insist(lambda: transactions.init_producer_id(name, 60.0))
        # The broker aborts it if its own outage lasts for longer than the transaction's time-out.
        with suppress(ProducerFencedError):
            for some_input in burst:
                target, record = some_input(random)
                write = partial(cluster.produce_in_transaction, name, epoch, target, [record])
                await self._insist(write)
            await asyncio.sleep(random.choice((0.0, 0.1, 3.0)))
            await self._insist(lambda: transactions.end(name, epoch, commit=random.random() < 0.7))

    async def _insist(self, request: Callable[[], Any]) -> Any:
        async def ask() -> Any:
            return request()

        return await retried(ask, retry_s=0.1, deadline_s=math.inf)

    def _some_input(self, random: Random) -> tuple[TopicPartition, Record]:
        self.made += 1
        key, value = app.some_input(random, self.keys, self.made)
        bad = [kind for kind in ("poison", "refused") if kind in self._world.features]
        if bad and self._bad_inputs.random() < BAD_INPUTS:
            bad_key, bad_value = app.bad_input(self._bad_inputs, key, self._bad_inputs.choice(bad))
            # In its own key's partition: in another one it would be misplaced.
            target, _ = self._input(key if bad_key is None else bad_key, value)
            return target, (bad_key, bad_value, (), None)
        return self._input(key, value)

    def _input(self, key: bytes, value: bytes) -> tuple[TopicPartition, Record]:
        count = len(self._world.cluster.topic(app.INPUT).partitions)
        return TopicPartition(app.INPUT, partition_for(key, count)), (key, value, (), None)
