"""Packs what a commit writes into record batches, partition by partition.

Hot: a record passes from here straight to aiokafka's compiled batch builder.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from actors._core.logs import error_text
from actors._core.outside import EXITS
from actors._core.partitioner import Partitioner, partitions_for
from actors._kafka.client import Client
from actors.ports import ChangelogWrites, Headers, Output, TopicPartition
from stores._core.record import METADATA_HEADER

MAX_BATCH_BYTES = 900_000
LOOK_S = 0.5
"""How long an output topic that is unknown is looked for: the other tasks of the commit wait meanwhile."""
_BUILDER = partial(
    DefaultRecordBatchBuilder, 2, is_transactional=True, producer_id=-1, producer_epoch=-1, base_sequence=0
)
"""Makes what builds a batch of version 2; its producer is set when it is sent."""

Packable: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp in Unix milliseconds."""


class UnpackableError(Exception):
    """A commit's records can't become a batch: a partitioner raised, or a record can't be encoded."""


class UnknownOutputError(Exception):
    """The partitions of an output topic are unknown; `error` is the brokers'."""

    def __init__(self, topic: str, error: KafkaError) -> None:
        super().__init__(f"{topic}: {error}")
        self.topic = topic
        self.error = error


@contextmanager
def _packing(topic: str | None = None) -> Iterator[None]:
    """Turn errors that the records themselves cause into `UnpackableError`, apart from brokers' and clients' errors."""
    try:
        yield
    except EXITS:
        raise
    except BaseException as error:
        where = "" if topic is None else f" to topic {topic}"
        raise UnpackableError(f"a record can't be sent{where}: {error_text(error)}") from error


@dataclass(slots=True)
class Batch:
    """A batch that is full, and how many records it has."""

    builder: DefaultRecordBatchBuilder
    count: int
    _encoded: bytes | None = None

    def encode(self, producer_id: int, epoch: int, sequence: int) -> bytes:
        """Return the batch as it is sent, once and for all; `sequence` is that of its first record."""
        if self._encoded is None:
            self.builder.set_producer_state(producer_id, epoch, sequence)
            self._encoded = bytes(self.builder.build())
        return self._encoded


def pack(records: Iterable[Packable], batch_bytes: int, codec: int) -> list[Batch]:
    """Return batches of at most so many bytes, in order. One record fits by itself, whatever its size.

    `codec` is the attribute of their compression.
    """
    new = partial(_BUILDER, compression_type=codec, batch_size=min(batch_bytes, MAX_BATCH_BYTES))
    packed, builder, count = [], new(), 0
    append = builder.append
    with _packing():
        for key, value, headers, timestamp_ms in records:
            if append(count, timestamp_ms, key, value, headers) is None:
                packed.append(Batch(builder, count))
                builder, count = new(), 0
                append = builder.append
                append(0, timestamp_ms, key, value, headers)
            count += 1
    packed.append(Batch(builder, count))
    return packed


def codec_of(compression: str | None) -> int:
    """Return the attribute of a compression; its library is there, as the start has checked."""
    return 0 if compression is None else int(getattr(DefaultRecordBatch, f"CODEC_{compression.upper()}"))


def changelog_records(writes: ChangelogWrites, now_ms: int) -> Iterator[Packable]:
    """Yield the changelog's records for the last write of each key."""
    for key, (metadata, value) in writes.items():
        yield key, value, [(METADATA_HEADER, metadata)], now_ms


def output_records(outputs: Iterable[Output], now_ms: int) -> Iterator[Packable]:
    for _, _, key, value, headers, timestamp_ms in outputs:
        yield key, value, headers, now_ms if timestamp_ms is None else timestamp_ms


async def by_partition(
    client: Client, outputs: Iterable[Output], *, wait_s: float = LOOK_S
) -> Mapping[TopicPartition, list[Output]]:
    """Return the outputs by topic and partition, each in their order.

    Raises:
        UnknownOutputError: a topic is unknown after `wait_s`.
    """
    by_topic: dict[str, list[Output]] = defaultdict(list)
    for output in outputs:
        by_topic[output.topic].append(output)
    found: dict[TopicPartition, list[Output]] = {}
    for topic, group in by_topic.items():
        count = await _partitions(client, topic, wait_s)
        places: dict[int, list[Output]] = defaultdict(list)
        with _packing(topic):
            # A record without a key may go anywhere.
            deciding = [output.value or b"" if output.key is None else output.key for output in group]
            homes = partitions_for(deciding, count)
            for output, home in zip(group, homes, strict=True):
                place = output.partition
                if place is None:
                    place = home
                elif isinstance(place, Partitioner):
                    place = home if output.key is None else place.home(output.key, count)
                places[place].append(output)
        found |= {TopicPartition(topic, place): sent for place, sent in places.items()}
    return found


async def _partitions(client: Client, topic: str, wait_s: float) -> int:
    try:
        async with asyncio.timeout(wait_s):
            return len(await client.partitions_of(topic))
    except TimeoutError:
        raise UnknownOutputError(topic, UnknownTopicOrPartitionError()) from None
    except KafkaError as error:
        raise UnknownOutputError(topic, error) from error
