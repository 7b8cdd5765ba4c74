"""The test driver's client of questions, with an idempotent producer: requests are lost and repeated here."""

from __future__ import annotations

import asyncio
import math

from actors.ports import TopicPartition
from actors.testing.fakes.cluster import Produced
from actors.testing.fakes.direct import DirectNetwork, retried
from actors.testing.fakes.requests import RETRY_S, FakeRequests
from tests.sim.fakes.cluster import SimKafka


class SimRequests(FakeRequests):
    """`actors.ports.Requests` with one idempotent producer."""

    def __init__(self, cluster: SimKafka, network: DirectNetwork, *, topic: str) -> None:
        super().__init__(cluster, network, topic=topic)
        self._brokers = cluster
        self._producer: int | None = None
        self._sequences: dict[TopicPartition, int] = {}
        # One request at a time: an idempotent producer's have to arrive in order.
        self._sending = asyncio.Lock()

    async def _produce(self, target: TopicPartition, records: Produced) -> None:
        async with self._sending:
            try:
                await self._produce_next(target, records)
            except BaseException:
                # Whether it arrived is unknown, so its number can't be used: a new producer begins at 0.
                self._producer, self._sequences = None, {}
                raise

    async def _produce_next(self, target: TopicPartition, records: Produced) -> None:
        """Send it again until it is acknowledged: the broker knows a repeat by its sequence number."""
        if self._producer is None:
            self._producer = await self._network.ask("InitProducerId", self._brokers.new_producer_id)
        producer, sequence = self._producer, self._sequences.get(target, -1) + 1
        await retried(
            lambda: self._network.ask("Produce", self._brokers.produce_idempotent, producer, sequence, target, records),
            retry_s=RETRY_S,
            deadline_s=math.inf,
        )
        self._sequences[target] = sequence
