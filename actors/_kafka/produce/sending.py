"""Sends what a commit writes: batches, partition by partition, and waits for every acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import BrokerResponseError, KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.produce.batches import by_partition, changelog_records, output_records, pack
from actors._kafka.produce.failures import ProduceError
from actors._kafka.produce.stopping import looked_at
from actors.ports import CommitBatch, CommitReceipt


async def send_all(
    producer: AIOKafkaProducer, batch: CommitBatch, batch_bytes: Callable[[str], int], now_ms: int
) -> CommitReceipt:
    """Send changelogs and outputs, wait for every acknowledgement, and return the changelogs' next offsets.

    Raises:
        KafkaError: a produce failed; nothing may be committed then.
        UnpackableError: nothing was sent, and never can be.
    """
    targets, packed = [], []
    for topic, writes in batch.changelogs.items():
        targets.append(KafkaPartition(topic, batch.source.partition))
        packed.append(pack(producer, batch_bytes(topic), changelog_records(writes, now_ms)))
    by_target = await by_partition(producer, batch.outputs)
    for (topic, number), outputs in by_target.items():
        targets.append(KafkaPartition(topic, number))
        packed.append(pack(producer, batch_bytes(topic), output_records(outputs, now_ms)))
    sends = [_send(producer, target, builders) for target, builders in zip(targets, packed, strict=True)]
    results: list[Any] = await asyncio.gather(*sends, return_exceptions=True)
    for target, result in zip(targets, results, strict=True):
        if isinstance(result, BrokerResponseError):
            own = any(output.timestamp_ms is not None for output in by_target.get(tuple(target), ()))
            raise ProduceError(target, result, has_own_time=own) from result
        if isinstance(result, BaseException):
            raise result
    return CommitReceipt(_next_offsets(batch.changelogs, results))


async def _send(
    producer: AIOKafkaProducer, partition: KafkaPartition, builders: Sequence[BatchBuilder]
) -> tuple[int, int]:
    """Send full batches in order, and return the offset and the length of the last one."""
    sent = []
    for builder in builders:
        sent.append(await producer.send_batch(builder, partition.topic, partition=partition.partition))
        # If a later one can't be sent, nobody waits for this one.
        sent[-1].add_done_callback(looked_at)
    await asyncio.gather(*sent)
    return int(sent[-1].result().offset), int(builders[-1].record_count())


def _next_offsets(changelogs: Iterable[str], results: Iterable[tuple[int, int]]) -> dict[str, int]:
    found = {}
    for topic, (base_offset, count) in zip(changelogs, results, strict=False):
        if base_offset < 0:
            raise KafkaError(f"{topic} took a batch without saying where: it may be a repeat")
        found[topic] = base_offset + count
    return found
