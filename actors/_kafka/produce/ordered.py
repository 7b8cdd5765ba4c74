"""The commits of a worker at least once: outputs, changelogs and offsets, each acknowledged before the next.

A crash between the writes repeats outputs and changelog records, and loses none. Nobody is fenced: a task and its
zombie both write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from aiokafka.protocol.commit import OffsetCommitRequest

from actors._kafka.codes import OF_A_PARTITION, OK, error_of
from actors._kafka.produce.failures import PartsFailedError
from actors._kafka.produce.sending import Sequences
from actors._kafka.produce.writer import BatchWriter, receipt
from actors.ports import CommitBatch, CommitReceipt, Identity, TopicPartition


@dataclass(kw_only=True, eq=False)
class OrderedWriter(BatchWriter):
    """`actors.ports.Writer` without transactions: an idempotent producer."""

    transactional_id: None = field(default=None)
    transaction_timeout_ms: int = -1

    async def _write(
        self, sequences: Sequences, identity: Identity, batches: Sequence[CommitBatch]
    ) -> list[CommitReceipt]:
        # What can't be packed is found before anything is sent.
        writes = [await self._packed(part) for part in _in_order(batches)]
        ends: dict[TopicPartition, int] = {}
        try:
            for packed in writes:
                ends |= await self._append(sequences, packed, transactional_id=None)
            await self._commit_offsets(identity, batches)
        except PartsFailedError:
            await self.fence()
            raise
        self._sequences = sequences
        return [receipt(batch, ends) for batch in batches]

    async def _commit_offsets(self, identity: Identity, batches: Iterable[CommitBatch]) -> None:
        topics: dict[str, list[Any]] = defaultdict(list)
        for batch in batches:
            for (topic, partition), committed in batch.offsets.items():
                topics[topic].append((partition, committed.offset, committed.metadata))
        request = OffsetCommitRequest(self.group, identity.generation, identity.member_id, -1, list(topics.items()))
        await self._ask_group(request, _code_of_offsets, may_repeat=True)


def _in_order(batches: Sequence[CommitBatch]) -> Iterator[list[CommitBatch]]:
    """Yield what has to be durable before the next: all outputs, then one step of all changelogs after the other."""
    yield [replace(batch, changelogs={}) for batch in batches]
    steps = zip_longest(*(batch.steps or [batch.changelogs] for batch in batches), fillvalue={})
    for step in steps:
        yield [replace(batch, changelogs=writes, outputs=()) for batch, writes in zip(batches, step, strict=True)]


def _code_of_offsets(answer: Any) -> int:
    failed = {}
    for topic, partitions in answer.topics:
        for partition, code in partitions:
            if code in OF_A_PARTITION:
                failed[TopicPartition(topic, partition)] = error_of(code, topic)
            elif code != OK:
                return int(code)
    if failed:
        raise PartsFailedError(failed, of_offsets=True)
    return OK
