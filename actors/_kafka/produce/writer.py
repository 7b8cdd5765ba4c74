"""The transactions of a worker: one at a time, each with the commits of some tasks.

    TxnOffsetCommit    the offsets of all tasks, with the member and its generation. A coordinator that has another
                       generation refuses them, and then nothing else was sent
    Produce            to each leader, side by side
    EndTxn             the outcome

Transactions of version 2 (KIP-890) raise the producer epoch with each transaction, so that brokers refuse what arrives
late. In those of version 1 a late request can reach the next transaction. So a transactional request without an answer
is never sent again: `fence` comes first, which raises the epoch.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError, NodeNotReadyError
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest

from actors._core.backoff import Backoff
from actors._kafka.connection import Connection
from actors._kafka.produce.batches import Packable, Packer, by_partition, changelog_records, codec_of, output_records
from actors._kafka.produce.codes import (
    COORDINATOR_WAITS,
    NOT_HERE,
    OK,
    PRODUCER_IS_OVER,
    error_of,
)
from actors._kafka.produce.failures import PartsFailedError, TransportFaultError
from actors._kafka.produce.sending import Sequences, append
from actors._kafka.produce.wire import (
    ApiVersionsRequest,
    EndTxnRequest2,
    InitProducerIdRequest,
    ProduceRequest,
    ProduceRequest2,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequest2,
    finalized_features,
)
from actors.ports import NO_OFFSET, CommitBatch, CommitReceipt, Identity, TopicPartition

BACKOFF = Backoff(0.002, longest_s=0.1, factor=1.5)
_FEATURE, _VERSION_2 = "transaction.version", 2
_GROUP, _TRANSACTION = CoordinationType.GROUP, CoordinationType.TRANSACTION


@dataclass(kw_only=True, eq=False)
class TransactionWriter:
    """Commits of a worker's tasks. Made and started by `open`.

    `batch_bytes` returns how large a batch a topic takes; `wall_ms` the time of records whose handler gave none, in Unix
    milliseconds.
    """

    connection: Connection
    client: AIOKafkaClient
    group: str
    transactional_id: str
    transaction_timeout_ms: int
    batch_bytes: Callable[[str], int]
    compression: str | None
    wall_ms: Callable[[], int]
    is_version_2: bool = False
    _sequences: Sequences | None = field(default=None, init=False)
    _coordinators: dict[tuple[Any, str], int] = field(default_factory=dict, init=False)

    async def start(self) -> None:
        """Learn which transactions the cluster has.

        Raises:
            KafkaError: no broker answers.
        """
        answer = await self.client.send(self.client.get_random_node(), ApiVersionsRequest("faust-actors", "1", {}))
        self.is_version_2 = finalized_features(answer).get(_FEATURE, 0) >= _VERSION_2

    async def fence(self) -> None:
        """End what the worker's id left open, on every partition, and shut out whoever held the id before."""
        self._sequences = None
        producer = await self._init(self.transactional_id)
        self._sequences = Sequences(*producer)

    async def end_transaction_of(self, transactional_id: str) -> None:
        """End what another worker's id left open. That worker isn't in the group any more."""
        await self._init(transactional_id)

    async def _init(self, transactional_id: str) -> tuple[int, int]:
        def answer_of(answer: Any) -> int:
            return int(answer.error_code)

        request = InitProducerIdRequest(transactional_id, self.transaction_timeout_ms)
        answer = await self._ask((_TRANSACTION, transactional_id), request, answer_of, may_repeat=True)
        return answer.producer_id, answer.producer_epoch

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> list[CommitReceipt]:
        """Commit the batches in one transaction.

        Raises:
            PartsFailedError: some partitions were refused; nothing is committed, and the writer can go on.
            KafkaError, TransportFaultError: it failed, or may have: only `fence` works then.
        """
        sequences, self._sequences = self._sequences, None
        if sequences is None:
            raise TransportFaultError("the transaction before has an unknown outcome")
        packed = await self._packed(batches)
        try:
            if any(batch.next_offset != NO_OFFSET for batch in batches):
                await self._commit_offsets(sequences, identity, batches)
            await self._add(sequences, packed)
            ends = await append(
                self.client,
                sequences,
                packed,
                transactional_id=self.transactional_id,
                request=ProduceRequest2 if self.is_version_2 else ProduceRequest,
            )
        except PartsFailedError:
            self._sequences = await self._end(sequences, is_committed=False)
            raise
        self._sequences = await self._end(sequences, is_committed=True)
        return [_receipt(batch, ends) for batch in batches]

    async def _packed(self, batches: Iterable[CommitBatch]) -> dict[TopicPartition, Any]:
        now_ms = self.wall_ms()
        records: dict[TopicPartition, list[Iterable[Packable]]] = defaultdict(list)
        for batch in batches:
            for topic, writes in batch.changelogs.items():
                records[TopicPartition(topic, batch.source.partition)].append(changelog_records(writes, now_ms))
        outputs = await by_partition(self.client, (output for batch in batches for output in batch.outputs))
        for partition, sent in outputs.items():
            records[partition].append(output_records(sent, now_ms))
        packer = Packer(self.batch_bytes, codec_of(self.compression), is_transactional=True)
        return {
            partition: packer.pack(partition.topic, (record for part in parts for record in part))
            for partition, parts in records.items()
        }

    async def _commit_offsets(self, sequences: Sequences, identity: Identity, batches: Iterable[CommitBatch]) -> None:
        topics: dict[str, list[Any]] = defaultdict(list)
        for batch in batches:
            if batch.next_offset != NO_OFFSET:
                offset = (batch.source.partition, batch.next_offset, -1, batch.metadata, {})
                topics[batch.source.topic].append(offset)
        if not self.is_version_2:
            add = AddOffsetsToTxnRequest(self.transactional_id, sequences.producer_id, sequences.epoch, self.group)
            await self._ask((_TRANSACTION, self.transactional_id), add, lambda answer: answer.error_code)
        request_type = TxnOffsetCommitRequest2 if self.is_version_2 else TxnOffsetCommitRequest
        request = request_type(
            self.transactional_id,
            self.group,
            sequences.producer_id,
            sequences.epoch,
            identity.generation,
            identity.member_id,
            None,
            [(topic, offsets, {}) for topic, offsets in topics.items()],
            {},
        )

        def code_of(answer: Any) -> int:
            failed = {
                TopicPartition(topic, partition): code
                for topic, partitions, _ in answer.topics
                for partition, code, _ in partitions
                if code != OK
            }
            # An error of the group or the producer is the same for all partitions.
            common = next((code for code in failed.values() if code in COORDINATOR_WAITS | PRODUCER_IS_OVER), OK)
            if common == OK and failed:
                raise PartsFailedError({part: error_of(code, part.topic) for part, code in failed.items()})
            return common

        await self._ask((_GROUP, self.group), request, code_of)

    async def _add(self, sequences: Sequences, packed: Iterable[TopicPartition]) -> None:
        """Add the partitions to a transaction of version 1."""
        if self.is_version_2:
            return
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, partition in packed:
            topics[topic].append(partition)

        def code_of(answer: Any) -> int:
            failed = {
                TopicPartition(topic, partition): code
                for topic, partitions in answer.errors
                for partition, code in partitions
                # OPERATION_NOT_ATTEMPTED is that of the others.
                if code not in (OK, 55)
            }
            common = next((code for code in failed.values() if code in COORDINATOR_WAITS | PRODUCER_IS_OVER), OK)
            if common == OK and failed:
                raise PartsFailedError({part: error_of(code, part.topic) for part, code in failed.items()})
            return common

        request = AddPartitionsToTxnRequest(
            self.transactional_id, sequences.producer_id, sequences.epoch, list(topics.items())
        )
        if topics:
            await self._ask((_TRANSACTION, self.transactional_id), request, code_of)

    async def _end(self, sequences: Sequences, *, is_committed: bool) -> Sequences:
        """End the transaction; return the state of the producer for the next one."""
        producer = (self.transactional_id, sequences.producer_id, sequences.epoch, is_committed)
        request = EndTxnRequest2(*producer, {}) if self.is_version_2 else EndTxnRequest(*producer)
        where = (_TRANSACTION, self.transactional_id)
        answer = await self._ask(where, request, lambda answer: answer.error_code)
        if not self.is_version_2 or (answer.producer_id, answer.producer_epoch) == producer[1:3]:
            return sequences
        return Sequences(answer.producer_id, answer.producer_epoch)

    async def _ask(
        self, where: tuple[Any, str], request: Any, code_of: Callable[[Any], int], *, may_repeat: bool = False
    ) -> Any:
        """Send a request to a coordinator until it is done; the caller sets the deadline.

        Without an answer it isn't sent again, unless it `may_repeat`.

        Raises:
            TransportFaultError: there was no answer.
            KafkaError: what the coordinator answered.
        """
        tries = 0
        while True:
            try:
                node = await self._coordinator(where)
                answer = await self.client.send(node, request, group=ConnectionGroup.COORDINATION)
            except NodeNotReadyError:
                # Without a connection nothing was sent.
                self._coordinators.pop(where, None)
            except _Waits:
                pass
            except (KafkaError, OSError, TimeoutError) as error:
                self._coordinators.pop(where, None)
                if not may_repeat:
                    _unanswered(request, error)
            else:
                code = code_of(answer)
                if code == OK:
                    return answer
                if code not in COORDINATOR_WAITS:
                    raise error_of(code)
                if code in NOT_HERE:
                    self._coordinators.pop(where, None)
            tries += 1
            await asyncio.sleep(BACKOFF.delay_s(tries))

    async def _coordinator(self, where: tuple[Any, str]) -> int:
        found = self._coordinators.get(where)
        if found is None:
            try:
                found = self._coordinators[where] = await self.client.coordinator_lookup(*where)
            except KafkaError as error:
                if not error.retriable:
                    raise
                raise _Waits from error
        return found

    async def close(self) -> None:
        """Disconnect. May be called twice. What is open is ended by the next `fence` with the id."""
        self._sequences = None
        await self.client.close()


class _Waits(Exception):  # noqa: N818  no error: the coordinator isn't known yet
    """No coordinator is known at the moment."""


def _unanswered(request: Any, error: Exception) -> NoReturn:
    raise TransportFaultError(f"{type(request).__name__}: {type(error).__name__}: {error}") from error


def _receipt(batch: CommitBatch, ends: Mapping[TopicPartition, int]) -> CommitReceipt:
    offsets = {topic: ends[TopicPartition(topic, batch.source.partition)] for topic in batch.changelogs}
    for topic, end in offsets.items():
        if end < 0:
            raise KafkaError(f"{topic} took a batch without saying where: it may be a repeat")
    return CommitReceipt(offsets)
