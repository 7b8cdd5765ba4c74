"""What a measurement asks of the broker: topics, records in, offsets, records out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from actors._core.partitioner import partitions_for
from dev.kafka import Cluster
from stores._core.record import METADATA_HEADER

KAFKA_VERSION = "4.3.1"
_CHUNK = 20_000
_BATCH_BYTES = 900_000


def start_cluster(folder: Path, *, overrides: Mapping[str, str] | None = None) -> Cluster:
    """Start the newest broker, with its data below a folder.

    `KAFKA_VERSION` and `KAFKA_JVM_FLAGS` in the environment have the last word.
    """
    os.environ.setdefault("KAFKA_VERSION", KAFKA_VERSION)
    # As it would run for real: the flags for a quick start cost it its best compiler.
    os.environ.setdefault("KAFKA_JVM_FLAGS", "-XX:+UseG1GC")
    return Cluster.up(folder / "kafka", overrides=overrides)


class Output(NamedTuple):
    """A record that a consumer saw."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None


async def make_topics(brokers: str, *names: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
    """Make topics and wait until each partition has a leader."""
    async with _admin(brokers) as admin:
        answer = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=config) for name in names])
        failed = [error for error in answer.topic_errors if error[1]]
        if failed:
            raise RuntimeError(f"topics can't be made: {failed}")
    async with producing(brokers) as producer:
        for name in names:
            while len(await producer.partitions_for(name)) < partitions:
                await asyncio.sleep(0.05)
                await producer.client.force_metadata_update()


async def load(
    brokers: str,
    topic: str,
    partitions: int,
    records: Iterable[tuple[bytes, bytes]],
    *,
    metadata: Callable[[int], bytes] | None = None,
    timestamp_ms: Callable[[int], int] | None = None,
) -> int:
    """Send (key, value) records in full batches, each to the partition of its key; give how many there were.

    `metadata` gives the write metadata of the record number so and so, for a changelog; `timestamp_ms` its timestamp,
    which otherwise is the time at which it is sent.
    """
    count = 0
    async with producing(brokers, max_batch_size=_BATCH_BYTES) as producer:
        builders = [producer.create_batch() for _ in range(partitions)]
        sent: list[asyncio.Future[object]] = []
        rest = iter(records)
        while chunk := list(itertools.islice(rest, _CHUNK)):
            homes = partitions_for([key for key, _ in chunk], partitions)
            for number, ((key, value), home) in enumerate(zip(chunk, homes, strict=True), count):
                headers = [] if metadata is None else [(METADATA_HEADER, metadata(number))]
                at_ms = None if timestamp_ms is None else timestamp_ms(number)
                if builders[home].append(key=key, value=value, timestamp=at_ms, headers=headers) is None:
                    sent.append(await producer.send_batch(builders[home], topic, partition=home))
                    builders[home] = producer.create_batch()
                    builders[home].append(key=key, value=value, timestamp=at_ms, headers=headers)
            count += len(chunk)
        for home, builder in enumerate(builders):
            if builder.record_count():
                sent.append(await producer.send_batch(builder, topic, partition=home))
        await asyncio.gather(*sent)
    return count


async def ends(brokers: str, topic: str) -> dict[int, int]:
    """Return the high watermarks of a topic."""
    async with watching_ends(brokers, topic) as look:
        return await look()


@contextlib.asynccontextmanager
async def watching_ends(brokers: str, topic: str) -> AsyncIterator[Callable[[], Awaitable[dict[int, int]]]]:
    """A function that returns the high watermarks of a topic, for the time of the block."""
    async with _consuming(brokers, "read_uncommitted") as consumer:
        parts = await _parts(consumer, topic)

        async def look() -> dict[int, int]:
            return {part.partition: end for part, end in (await consumer.end_offsets(parts)).items()}

        yield look


async def read_committed(brokers: str, topic: str, *, patience_s: float) -> list[Output] | None:
    """Return all committed records up to the topic's end as it is now; None if they can't be had in `patience_s`."""
    outputs = await Outputs.open(brokers, topic)
    try:
        async with asyncio.timeout(patience_s):
            found: list[Output] = []
            wanted = await ends(brokers, topic)
            while not await outputs.is_past(wanted):
                found += await outputs.more()
    except TimeoutError:
        return None
    finally:
        await outputs.close()
    return found


class Outputs:
    """A topic as a read-committed consumer sees it."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer

    @classmethod
    async def open(cls, brokers: str, topic: str) -> Self:
        """Begin at the topic's start."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=brokers, isolation_level="read_committed", fetch_max_wait_ms=20, fetch_min_bytes=1
        )
        await consumer.start()
        try:
            parts = await _parts(consumer, topic)
        except KafkaError:
            await consumer.stop()
            raise
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        return cls(consumer)

    async def more(self, *, wait_ms: int = 20) -> list[Output]:
        """Return what came since."""
        found = await self._consumer.getmany(timeout_ms=wait_ms)
        return [
            Output(part.partition, record.offset, record.key, record.value)
            for part, records in found.items()
            for record in records
        ]

    async def to_end(self) -> None:
        """Skip all that is there."""
        await self._consumer.seek_to_end()

    async def is_past(self, offsets: Mapping[int, int]) -> bool:
        """Whether everything below these offsets was handed out, or turned out to be no record."""
        at = {part.partition: await self._consumer.position(part) for part in self._consumer.assignment()}
        return all(at[partition] >= offset for partition, offset in offsets.items())

    async def close(self) -> None:
        """End it."""
        await self._consumer.stop()


class Group:
    """A consumer group as its coordinator knows it."""

    def __init__(self, admin: AIOKafkaAdminClient, name: str, topic: str) -> None:
        self._admin = admin
        self._name = name
        self._topic = topic

    @classmethod
    @contextlib.asynccontextmanager
    async def watching(cls, brokers: str, name: str, topic: str) -> AsyncIterator[Self]:
        """Watch a group and its offsets of one topic, for the time of the block."""
        async with _admin(brokers) as admin:
            yield cls(admin, name, topic)

    async def committed(self) -> dict[int, int]:
        """Return the committed offsets by partition, without those that have none."""
        offsets = await self.committed_anywhere()
        return {part.partition: offset for part, offset in offsets.items() if part.topic == self._topic}

    async def committed_anywhere(self) -> dict[TopicPartition, int]:
        """Return the committed offsets of all topics that the group reads, without those that have none."""
        try:
            offsets = await self._admin.list_consumer_group_offsets(self._name)
        except (KafkaError, OSError):
            # A group that was never joined has a coordinator that is still being elected.
            return {}
        return {part: committed.offset for part, committed in offsets.items() if committed.offset >= 0}

    async def has_members(self, count: int) -> bool:
        """Whether the group is stable and has so many members."""
        try:
            answers = await self._admin.describe_consumer_groups([self._name])
        except (KafkaError, OSError):
            return False
        _, _, state, _, _, members, *_ = answers[0].groups[0]
        return bool(state == "Stable" and len(members) == count)


async def delete_topics(brokers: str, *names: str) -> None:
    """Delete topics, those of them that exist."""
    async with _admin(brokers) as admin:
        there = set(await admin.list_topics())
        await admin.delete_topics([name for name in names if name in there])


async def delete_all(brokers: str, prefix: str) -> None:
    """Delete all topics whose names begin so."""
    async with _admin(brokers) as admin:
        await admin.delete_topics([name for name in await admin.list_topics() if name.startswith(prefix)])


@contextlib.asynccontextmanager
async def producing(brokers: str, **options: object) -> AsyncIterator[AIOKafkaProducer]:
    """A producer for the time of the block."""
    producer = AIOKafkaProducer(bootstrap_servers=brokers, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@contextlib.asynccontextmanager
async def _admin(brokers: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


@contextlib.asynccontextmanager
async def _consuming(brokers: str, isolation: str) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, isolation_level=isolation)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _parts(consumer: AIOKafkaConsumer, topic: str) -> list[TopicPartition]:
    # Of the consumer's public calls none asks for the metadata of a topic that it isn't subscribed to.
    return [TopicPartition(topic, number) for number in await consumer._client._wait_on_metadata(topic)]
