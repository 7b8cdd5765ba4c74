"""Appends record batches to their leaders: those of a partition in order, those of different leaders side by side."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError

from actors._core.backoff import Backoff
from actors._kafka.client import Client
from actors._kafka.codes import (
    CONCURRENT_TRANSACTIONS,
    LEADER_MOVED,
    OK,
    PRODUCE_WAITS,
    PRODUCER_IS_OVER,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_of,
)
from actors._kafka.produce.batches import Batch
from actors._kafka.produce.failures import PartsFailedError, ProducerOverError, described
from actors._kafka.transaction_requests import ProduceRequest
from actors.ports import TopicPartition

BACKOFF = Backoff(0.002, longest_s=0.1, factor=1.5)
UNKNOWN_TOPIC_S = 3.0
"""How long a partition may be unknown: its topic was deleted, unless the leader hasn't heard of it yet."""
AWAY_S = 5.0
"""How long the others of a transaction wait for a leader that is away, or doesn't answer."""
_SEQUENCES = 2**31


@dataclass(slots=True)
class Sequences:
    """A producer's id, its epoch, and the sequence number that each partition's next record has."""

    producer_id: int
    epoch: int
    _next: dict[TopicPartition, int] = field(default_factory=dict)

    def encode(self, partition: TopicPartition, batch: Batch) -> bytes:
        """Return the batch with the partition's next sequence number, again the same until `sent`."""
        return batch.encode(self.producer_id, self.epoch, self._next.get(partition, 0))

    def sent(self, partition: TopicPartition, count: int) -> None:
        """Go on behind records that were appended."""
        self._next[partition] = (self._next.get(partition, 0) + count) % _SEQUENCES


async def append(
    client: Client,
    sequences: Sequences,
    packed: Mapping[TopicPartition, Sequence[Batch]],
    *,
    transactional_id: str,
    is_version_2: bool,
    tell: Callable[[Mapping[TopicPartition, int]], None],
) -> dict[TopicPartition, int]:
    """Append batches; return the next offset of each partition. A batch without an answer is sent again.

    The caller sets the deadline. `tell` gets the codes of partitions that have to be tried again.

    Raises:
        PartsFailedError: leaders refused batches, or are away while others appended theirs.
        ProducerOverError: nothing can be sent any more.
    """
    left = {partition: list(batches) for partition, batches in packed.items()}
    ends: dict[TopicPartition, int] = {}
    loop = asyncio.get_running_loop()
    began_s, tries = loop.time(), 0
    while left:
        answers = await _round(client, sequences, left, transactional_id, is_version_2)
        waiting = _settle(sequences, left, ends, answers, waited_s=loop.time() - began_s)
        if not waiting:
            continue
        tell(waiting)
        if ends and loop.time() - began_s > AWAY_S:
            # A round ends with its slowest leader: one that was busy in it may take its batches in the next.
            away = {part: code for part, code in waiting.items() if code != CONCURRENT_TRANSACTIONS} or waiting
            raise PartsFailedError({part: error_of(code) for part, code in away.items()}, may_be_late=True)
        if not LEADER_MOVED.isdisjoint(waiting.values()):
            client.force_metadata_update()
        tries += 1
        await asyncio.sleep(BACKOFF.delay_s(tries))
    return ends


def _settle(
    sequences: Sequences,
    left: dict[TopicPartition, list[Batch]],
    ends: dict[TopicPartition, int],
    answers: Mapping[TopicPartition, tuple[int, int]],
    *,
    waited_s: float,
) -> dict[TopicPartition, int]:
    """Move what was appended from `left` to `ends`; return the codes of the partitions that have to be tried again."""
    codes = {}
    for partition in left.copy():
        code, offset = answers.get(partition, (UNKNOWN_TOPIC_OR_PARTITION, -1))
        if code != OK:
            codes[partition] = code
            continue
        batch = left[partition].pop(0)
        sequences.sent(partition, batch.count)
        ends[partition] = offset + batch.count if offset >= 0 else -1
        if not left[partition]:
            del left[partition]
    failed = {}
    for partition, code in codes.items():
        if code in PRODUCER_IS_OVER:
            raise ProducerOverError(f"ProduceRequest: {described(error_of(code))} (leader of {partition})", code)
        if code not in PRODUCE_WAITS or (code == UNKNOWN_TOPIC_OR_PARTITION and waited_s > UNKNOWN_TOPIC_S):
            failed[partition] = error_of(code)
    if failed:
        raise PartsFailedError(failed)
    return codes


async def _round(
    client: Client,
    sequences: Sequences,
    left: Mapping[TopicPartition, Sequence[Batch]],
    transactional_id: str,
    is_version_2: bool,
) -> dict[TopicPartition, tuple[int, int]]:
    """Send the first batch of each partition to its leader; return (error code, base offset) of each."""
    by_leader: dict[int, dict[TopicPartition, bytes]] = defaultdict(dict)
    found: dict[TopicPartition, tuple[int, int]] = {}
    for partition, batches in left.items():
        leader = client.cluster.leader_for_partition(partition)
        if leader is None or leader == -1:
            await client.add_topic(partition.topic)
            client.force_metadata_update()
            if partition.topic in client.cluster.unauthorized_topics:
                found[partition] = TOPIC_AUTHORIZATION_FAILED, -1
        else:
            by_leader[leader][partition] = sequences.encode(partition, batches[0])

    async def send(leader: int, batches: dict[TopicPartition, bytes]) -> dict[TopicPartition, tuple[int, int]]:
        try:
            timeout_ms = client.request_timeout_ms
            request = ProduceRequest(transactional_id, timeout_ms, batches, is_version_2=is_version_2)
            async with asyncio.timeout(AWAY_S):
                answer = await client.send(leader, request)
        except (KafkaError, OSError, TimeoutError):
            # Whether they were appended is unknown: the sequence numbers let the leader recognise them.
            client.force_metadata_update()
            return dict.fromkeys(batches, (REQUEST_TIMED_OUT, -1))
        return _codes(answer)

    for answers in await asyncio.gather(*(send(leader, batches) for leader, batches in by_leader.items())):
        found |= answers
    return found


def _codes(answer: Any) -> dict[TopicPartition, tuple[int, int]]:
    return {
        TopicPartition(topic, partition): (code, offset)
        for topic, partitions, _ in answer.topics
        for partition, code, offset, *_ in partitions
    }
