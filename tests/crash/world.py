"""Three brokers, up to three workers, a steady stream of inputs: what the faults happen to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from actors._core.partitioner import partition_for
from dev.kafka import Cluster
from tests.crash.checks import Record
from tests.kafka.helpers import WorkerProcess

logger = logging.getLogger("crash")

MODULE = "tests.crash.app"
NAME = "crash"
PARTITIONS = 6
KEYS = 20_000
WORKERS = 3


@dataclass(slots=True)
class World:
    """Everything a fault can reach."""

    cluster: Cluster
    folder: Path
    chance: random.Random
    workers: list[WorkerProcess] = field(default_factory=list)
    sent: int = 0

    @classmethod
    async def create(cls, cluster: Cluster, folder: Path, seed: int) -> World:
        """Make the topics and, not yet started, the workers."""
        world = cls(cluster, folder, random.Random(seed))
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        replicas = len(cluster.broker_ids)
        topics = [NewTopic(f"{NAME}-{kind}", PARTITIONS, replicas) for kind in ("in", "echo")]
        response = await admin.create_topics(topics)
        await admin.close()
        assert all(error[1] == 0 for error in response.topic_errors), response
        for number in range(WORKERS):
            world.workers.append(
                WorkerProcess(
                    MODULE,
                    cluster.bootstrap,
                    folder / f"worker-{number}" / "data",
                    APP_NAME=NAME,
                    REPLICATION=str(replicas),
                )
            )
        return world

    @property
    def running(self) -> list[WorkerProcess]:
        """The workers whose process is alive."""
        return [worker for worker in self.workers if worker.is_running()]

    def a_running_one(self) -> WorkerProcess:
        """One of them, by chance."""
        return self.chance.choice(self.running)

    def end(self) -> None:
        """Kill what is left."""
        for worker in self.workers:
            worker.kill()

    async def feed(self, inputs: int, rate: float) -> None:
        """Send `inputs` records at about `rate` per second, each acknowledged by all in-sync replicas."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self.cluster.bootstrap, enable_idempotence=True, request_timeout_ms=120_000
        )
        await producer.start()
        try:
            waiting = []
            began_s = time.monotonic()
            while self.sent < inputs:
                behind = min(inputs, int((time.monotonic() - began_s) * rate) + 1) - self.sent
                for _ in range(behind):
                    key = b"key-%05d" % int(KEYS * self.chance.random() ** 2)
                    value = b"%d" % self.chance.randrange(-1000, 1000)
                    partition = partition_for(key, PARTITIONS)
                    waiting.append(await producer.send(f"{NAME}-in", value, key, partition=partition))
                    self.sent += 1
                if len(waiting) > 2000:
                    await asyncio.gather(*waiting)
                    waiting.clear()
                await asyncio.sleep(0.02)
            await asyncio.gather(*waiting)
        finally:
            await producer.stop()

    async def committed(self) -> dict[int, int]:
        """The group's offsets by partition, 0 where there is none."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        try:
            await admin.start()
            offsets = await admin.list_consumer_group_offsets(f"{NAME}-actors")
            return {number: _offset(offsets, number) for number in range(PARTITIONS)}
        finally:
            await admin.close()

    async def progress(self) -> dict[int, int]:
        """`committed`, asked until a coordinator answers."""
        while True:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                return await self.committed()
            await asyncio.sleep(0.2)

    async def ends(self, topic: str, isolation: str = "read_uncommitted") -> dict[int, int]:
        """The high watermarks, or with read_committed the last stable offsets."""
        async with self._consumer(isolation) as consumer:
            parts = [TopicPartition(topic, number) for number in range(await _partitions(consumer, topic))]
            return {part.partition: end for part, end in (await consumer.end_offsets(parts)).items()}

    async def read(self, topic: str) -> list[Record]:
        """All committed records of a topic."""
        async with self._consumer("read_committed") as consumer:
            parts = [TopicPartition(topic, number) for number in range(await _partitions(consumer, topic))]
            consumer.assign(parts)
            await consumer.seek_to_beginning(*parts)
            ends = await consumer.end_offsets(parts)
            found: list[Record] = []
            while any([(await consumer.position(part)) < end for part, end in ends.items()]):
                for part, records in (await consumer.getmany(timeout_ms=200)).items():
                    found += [Record(part.partition, record.offset, record.key, record.value) for record in records]
            return found

    @contextlib.asynccontextmanager
    async def _consumer(self, isolation: str) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.cluster.bootstrap, isolation_level=isolation)
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


def _offset(offsets: dict, number: int) -> int:
    found = offsets.get(TopicPartition(f"{NAME}-in", number))
    return max(found.offset, 0) if found is not None else 0


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> int:
    return len(await consumer._client._wait_on_metadata(topic))
