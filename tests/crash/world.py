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

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from actors._core.partitioner import partition_for
from dev.kafka import CONSOLE_CONSUMER, Cluster, run_tool
from tests.crash import rules
from tests.crash.checks import Placed, Record
from tests.crash.streams import StreamsProcess
from tests.kafka.helpers import WorkerProcess

logger = logging.getLogger("crash")

MODULE = "tests.crash.app"
NAME = "crash"
PARTITIONS = 6
"""Of each topic, where a run isn't asked for another number."""
RECOVER_S = 30.0
"""Within this time after a fault is over, every partition makes progress again, on a machine that does nothing else."""
USUAL_PARTITIONS = 16
"""With more of them on one machine, brokers and workers get time in proportion."""
KEYS = 20_000
ACCOUNTS = 1_000
INPUTS_PER_CHORE = 10
"""After so many inputs of the first actor there is a chore, an order and a payment of any two accounts, a click, an
offer, a bid and a row of a parcel, and after some of these one of a depot."""
PARCELS_PER_DEPOT = 4
CLICKS_BEGIN_S = 3_600
"""How long before the run its clicks begin; their time goes on faster than the run's."""
WORKERS = 3
STORES = (
    *("stats", "accounts", "kept", "Chores", "Chores-timers", "Chores-effects", "spans", "sittings", "match"),
    *("parcels", "depots", "deliver-taken", "deliver-results", "deliver-subscribers"),
)
PAIRED = (f"{NAME}-orders", f"{NAME}-payments")
CLICKS = f"{NAME}-clicks"
MATCHED = (f"{NAME}-offers", f"{NAME}-bids")
TABLES = (f"{NAME}-parcels", f"{NAME}-depots")
INPUTS = (f"{NAME}-in", f"{NAME}-chores", *PAIRED, CLICKS, *MATCHED, *TABLES)
DELIVERIES = f"{NAME}-deliveries"
CALLED, LATE_HALVES = f"{NAME}-called", f"{NAME}-late-halves"
OUTPUTS = (
    f"{NAME}-echo",
    f"{NAME}-said",
    f"{NAME}-joined",
    f"{NAME}-finals",
    f"{NAME}-late",
    CALLED,
    LATE_HALVES,
    DELIVERIES,
)
FEW = (CLICKS, *MATCHED, *TABLES, f"{NAME}-finals", f"{NAME}-late", CALLED, LATE_HALVES, DELIVERIES)
"""The topics of windows, joins and tables."""
EFFECTS_FILE = "effects.txt"
"""Where the effects of the second actor write to, in the run's folder."""


@dataclass(slots=True)
class World:
    """Everything a fault can reach.

    With `is_streams`, Kafka Streams does what the first actor does, and there are no others.
    """

    cluster: Cluster
    folder: Path
    chance: random.Random
    partitions: int
    is_streams: bool = False
    workers: list[WorkerProcess] = field(default_factory=list)
    sent: int = 0
    chores: int = 0
    clicks: int = 0
    clicks_begin_ms: int = field(default_factory=lambda: int((time.time() - CLICKS_BEGIN_S) * 1000))

    @classmethod
    async def create(cls, cluster: Cluster, folder: Path, seed: int, partitions: int, *, is_streams: bool) -> World:
        """Make the topics and, not yet started, the workers."""
        world = cls(cluster, folder, random.Random(seed), partitions, is_streams)
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        replicas = len(cluster.broker_ids)
        topics = [NewTopic(name, world.partitions_of(name), replicas) for name in (*INPUTS, *OUTPUTS)]
        response = await admin.create_topics(topics)
        await admin.close()
        assert all(error[1] == 0 for error in response.topic_errors), response
        world.workers += [world._worker(folder / f"worker-{number}" / "data", replicas) for number in range(WORKERS)]
        return world

    def _worker(self, data: Path, replicas: int) -> WorkerProcess:
        if self.is_streams:
            return StreamsProcess(NAME, self.cluster.bootstrap, data, replicas=replicas)
        effects = str(self.folder / EFFECTS_FILE)
        environment = {"APP_NAME": NAME, "REPLICATION": str(replicas), "EFFECTS_FILE": effects}
        return WorkerProcess(MODULE, self.cluster.bootstrap, data, **environment)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input topics."""
        return INPUTS[:1] if self.is_streams else INPUTS

    @property
    def group(self) -> str:
        """The consumer group."""
        return NAME if self.is_streams else f"{NAME}-actors"

    def partitions_of(self, topic: str) -> int:
        """The partitions of a topic.

        Those of windows, joins and tables have `PARTITIONS` in each run: with 64 of each of them too, brokers and
        workers on one machine don't come to the end of a fault.
        """
        return PARTITIONS if topic in FEW else self.partitions

    @property
    def changelogs(self) -> list[str]:
        """The changelogs, those of the first actor's store and of joined state first."""
        return [f"{NAME}-state-changelog"] if self.is_streams else [f"{NAME}--{store}-changelog" for store in STORES]

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

    @property
    def recovery_limit_s(self) -> float:
        """Within which time every partition makes progress again."""
        return RECOVER_S * max(1.0, self.partitions / USUAL_PARTITIONS)

    async def feed(self, inputs: int, rate: float, pause_s: float) -> None:
        """Send `inputs` records at about `rate` per second, each acknowledged by all in-sync replicas.

        Between sends there are `pause_s` seconds: a longer pause makes fewer, larger transactions.
        The other actors get one of each of their inputs for every few.
        """
        async with self._producer() as producer:
            waiting = []
            began_s = time.monotonic()
            while self.sent < inputs:
                behind = min(inputs, int((time.monotonic() - began_s) * rate) + 1) - self.sent
                for _ in range(behind):
                    key = _key(int(KEYS * self.chance.random() ** 2))
                    waiting.append(await self._send(producer, INPUTS[0], key, self._value()))
                    self.sent += 1
                    if self.sent % INPUTS_PER_CHORE == 0 and not self.is_streams:
                        waiting.append(await self._send_chore(producer, *rules.chore(self.chores)))
                        for topic in PAIRED:
                            account = _account(self.chance.randrange(ACCOUNTS))
                            waiting.append(await self._send(producer, topic, account, self._value()))
                        waiting.append(await self._send_click(producer))
                        waiting += [await self._send_half(producer, side) for side in range(len(MATCHED))]
                        waiting += await self._send_rows(producer)
                        self.clicks += 1
                if len(waiting) > 2000:
                    await asyncio.gather(*waiting)
                    waiting.clear()
                await asyncio.sleep(pause_s)
            await asyncio.gather(*waiting)

    async def tick(self) -> None:
        """Let the second actor's stream time go on in every partition."""
        async with self._producer() as producer:
            for partition in range(self.partitions):
                await (await self._send_chore(producer, b"tick", rules.Tick(self.chores), partition))

    async def _send_chore(
        self, producer: AIOKafkaProducer, key: bytes, message: rules.Chore, partition: int | None = None
    ) -> asyncio.Future:
        self.chores += 1
        return await self._send(producer, INPUTS[1], key, msgspec.json.encode(message), partition)

    async def _send_click(self, producer: AIOKafkaProducer) -> asyncio.Future:
        key, click = rules.click(self.clicks, self.clicks_begin_ms)
        return await self._send(producer, CLICKS, key, msgspec.json.encode(click))

    async def _send_half(self, producer: AIOKafkaProducer, side: int) -> asyncio.Future:
        key, half = rules.half(side, self.clicks, self.clicks_begin_ms)
        return await self._send(producer, MATCHED[side], key, msgspec.json.encode(half))

    async def _send_rows(self, producer: AIOKafkaProducer) -> list[asyncio.Future]:
        rows: list[tuple[str, tuple[bytes, msgspec.Struct | None]]] = [(TABLES[0], rules.parcel(self.clicks))]
        if self.clicks % PARCELS_PER_DEPOT == 0:
            rows.append((TABLES[1], rules.depot(self.clicks // PARCELS_PER_DEPOT)))
        return [
            await self._send(producer, topic, key, None if row is None else msgspec.json.encode(row))
            for topic, (key, row) in rows
        ]

    def _value(self) -> bytes:
        return b"%d" % self.chance.randrange(-1000, 1000)

    async def _send(
        self, producer: AIOKafkaProducer, topic: str, key: bytes, value: bytes | None, partition: int | None = None
    ) -> asyncio.Future:
        partition = partition_for(key, self.partitions_of(topic)) if partition is None else partition
        return await producer.send(topic, value, key, partition=partition)

    @contextlib.asynccontextmanager
    async def _producer(self) -> AsyncIterator[AIOKafkaProducer]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.cluster.bootstrap, enable_idempotence=True, request_timeout_ms=120_000
        )
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    def fed(self) -> set[TopicPartition]:
        """The input partitions that have keys: of many partitions, some have none of the second actor's."""
        accounts = [_account(number) for number in range(ACCOUNTS)]
        chores, clicks = map(rules.chore_key, range(rules.CHORE_KEYS)), map(rules.click_key, range(rules.CLICK_KEYS))
        lots = list(map(rules.match_key, range(rules.MATCH_KEYS)))
        rows = (map(rules.parcel_key, range(rules.PARCEL_KEYS)), map(rules.depot_key, range(rules.DEPOT_KEYS)))
        keys = (map(_key, range(KEYS)), chores, accounts, accounts, clicks, lots, lots, *rows)
        return {
            TopicPartition(topic, partition_for(key, self.partitions_of(topic)))
            for topic, some in zip(self.inputs, keys, strict=False)
            for key in some
        }

    async def offsets_of(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that a group has committed."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        try:
            await admin.start()
            offsets = await admin.list_consumer_group_offsets(group)
            return {part: found.offset for part, found in offsets.items() if found.offset >= 0}
        finally:
            await admin.close()

    async def committed(self) -> dict[TopicPartition, int]:
        """The group's offsets by input partition, 0 where there is none."""
        offsets = await self.offsets_of(self.group)
        parts = [TopicPartition(topic, number) for topic in self.inputs for number in range(self.partitions_of(topic))]
        return {part: offsets.get(part, 0) for part in parts}

    async def progress(self) -> dict[TopicPartition, int]:
        """`committed`, asked until a coordinator answers."""
        while True:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                return await self.committed()
            await asyncio.sleep(0.2)

    async def ends(self, *topics: str, isolation: str = "read_uncommitted") -> dict[TopicPartition, int]:
        """The high watermarks, or with read_committed the last stable offsets."""
        async with self._consumer(isolation) as consumer:
            parts = [
                TopicPartition(topic, number)
                for topic in topics
                for number in range(await _partitions(consumer, topic))
            ]
            return await consumer.end_offsets(parts)

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
                    found += [
                        Record(part.partition, record.offset, record.key, record.value, record.timestamp)
                        for record in records
                    ]
            return found

    async def read_by_kafka(self, topic: str) -> list[Placed]:
        """All committed records of a topic, as Kafka's own consumer reads them."""
        shown = ("--property", "print.partition=true", "--property", "print.offset=true")
        where = ("--bootstrap-server", self.cluster.bootstrap, "--topic", topic, "--from-beginning")
        arguments = (*where, *shown, "--isolation-level", "read_committed", "--timeout-ms", "10000")
        done = await asyncio.to_thread(run_tool, CONSOLE_CONSUMER, *arguments, timeout_s=120.0)
        lines = (line.split("\t", 2) for line in done.stdout.splitlines() if line.startswith("Partition:"))
        return [
            Placed(int(partition.partition(":")[2]), int(offset.partition(":")[2]), value.encode())
            for partition, offset, value in lines
        ]

    @contextlib.asynccontextmanager
    async def _consumer(self, isolation: str) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.cluster.bootstrap, isolation_level=isolation)
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> int:
    return len(await consumer._client._wait_on_metadata(topic))


def _key(number: int) -> bytes:
    return b"key-%05d" % number


def _account(number: int) -> bytes:
    return b"account-%04d" % number
