"""Packs what a commit writes into record batches, partition by partition.

Hot: a record passes from here straight to aiokafka's compiled batch builder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder

from actors._core.partitioner import Partitioner, partitions_for
from actors.ports import ChangelogWrites, Headers, Output
from stores._core.record import METADATA_HEADER

MAX_BATCH_BYTES = 900_000

Packable: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp in Unix milliseconds."""


class UnpackableError(Exception):
    """What a commit sends can't become a batch: a partitioner raised, or a record has no form on the wire."""


@contextmanager
def _packing(topic: str | None = None) -> Iterator[None]:
    """Name what the records themselves make fail, so that it is told from what the brokers or the client do."""
    try:
        yield
    except Exception as error:
        where = "" if topic is None else f" to topic {topic}"
        raise UnpackableError(f"a record can't be sent{where}: {type(error).__name__}: {error}") from error


def changelog_records(writes: ChangelogWrites, now_ms: int) -> Iterator[Packable]:
    """Give the changelog's records for the last write of each key."""
    for key, (metadata, value) in writes.items():
        yield key, value, [(METADATA_HEADER, metadata)], now_ms


def output_records(outputs: Iterable[Output], now_ms: int) -> Iterator[Packable]:
    """Give the records of outputs to one partition."""
    for _, _, key, value, headers, timestamp_ms in outputs:
        yield key, value, headers, now_ms if timestamp_ms is None else timestamp_ms


def pack(producer: AIOKafkaProducer, batch_bytes: int, records: Iterable[Packable]) -> list[BatchBuilder]:
    """Give batches of at most `batch_bytes`, ready to be sent with `send_batch`; one record fits by itself.

    Each is the topic's size: the client's own `create_batch` knows one size for all topics.
    """
    packed = [_builder(producer, batch_bytes)]
    append, count = packed[0]._builder.append, 0
    with _packing():
        for key, value, headers, timestamp_ms in records:
            if append(count, timestamp_ms, key, value, headers) is None:
                _seal(packed[-1], count)
                packed.append(_builder(producer, batch_bytes))
                append, count = packed[-1]._builder.append, 0
                append(0, timestamp_ms, key, value, headers)
            count += 1
    _seal(packed[-1], count)
    return packed


def _seal(builder: BatchBuilder, count: int) -> None:
    builder._relative_offset = count
    builder.close()


def _builder(producer: AIOKafkaProducer, batch_bytes: int) -> BatchBuilder:
    accumulator, transactions = producer._message_accumulator, producer._txn_manager
    return BatchBuilder(
        min(batch_bytes, MAX_BATCH_BYTES),
        accumulator._compression_type,
        is_transactional=transactions is not None and transactions.transactional_id is not None,
    )


async def by_partition(producer: AIOKafkaProducer, outputs: Iterable[Output]) -> Mapping[tuple[str, int], list[Output]]:
    """Give the outputs by topic and partition, each in their order."""
    by_topic: dict[str, list[Output]] = defaultdict(list)
    for output in outputs:
        by_topic[output.topic].append(output)
    found: dict[tuple[str, int], list[Output]] = defaultdict(list)
    for topic, group in by_topic.items():
        count = len(await producer.client._wait_on_metadata(topic))
        with _packing(topic):
            homes = partitions_for([_placed_by(output) for output in group], count)
            for output, home in zip(group, homes, strict=True):
                place = output.partition
                if isinstance(place, Partitioner):
                    place = home if output.key is None else place.home(output.key, count)
                found[topic, home if place is None else place].append(output)
    return found


def _placed_by(output: Output) -> bytes:
    """Give the bytes that decide about the partition: a record without a key goes anywhere."""
    return output.key if output.key is not None else output.value or b""
