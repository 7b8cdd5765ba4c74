"""A task's writes exactly once: one transaction per commit; and what they share with those of `OrderedLog`.

Three habits of aiokafka are prevented here:

- It commits a transaction although a produce in it failed. So `sending.send_all` looks at the future of every produce.
- It sends a transactional request again after a transport error, with the same epoch, until it gets an answer. An
  EndTxn that arrives late ends the transaction that is open by then, which commits half of the next one. So the first
  transport error of a transactional request is fatal to the producer (`_guard`), and so is a commit that takes longer
  than its deadline. The next `fence` raises the producer's epoch, and brokers refuse late requests.
- While the markers of the previous transaction are being written, it waits 20 ms before it adds a partition again, but
  only its own back-off before it adds the group. So offsets go first, with a small back-off that grows while
  coordinators move.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aiokafka import AIOKafkaProducer
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaError, NodeNotReadyError, ProducerFenced
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.backoff import Backoff
from actors._kafka.connection import Connection, broker_errors
from actors._kafka.produce import sending
from actors._kafka.produce.batches import MAX_BATCH_BYTES
from actors._kafka.produce.failures import (
    FAILED,
    FENCED,
    Throttle,
    TransportFaultError,
    cause_of,
    is_refusal,
    missing_permission,
    reason_of,
)
from actors._kafka.produce.stopping import discard_producer, drop_unsent, transaction_error
from actors.errors import CommitRefusedError, FencedError, OutcomeUnknownError
from actors.ports import NO_OFFSET, CommitBatch, CommitReceipt
from actors.runtime.clock import machine_ms

BACKOFF = Backoff(0.002, longest_s=0.1, factor=1.5)
_TRANSACTIONAL = (AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest)


@dataclass(kw_only=True, eq=False)
class TaskProducer(ABC):
    """Writes of one task. A producer is never used again after anything but a clean commit.

    `name` is the task's, for messages and for the client's id; where `is_fencing`, it is a transactional id, with which
    producers fence each other. `batch_bytes` returns how large a batch a topic takes; `wall_ms` the time of records
    whose handler gave none, in Unix milliseconds.
    """

    is_fencing: ClassVar[bool] = False
    connection: Connection = field(kw_only=False)
    name: str = field(init=False)
    group: str
    batch_bytes: Callable[[str], int]
    compression: str | None
    commit_deadline_s: float
    wall_ms: Callable[[], int] = machine_ms
    _producer: AIOKafkaProducer | None = field(default=None, init=False)
    _throttle: Throttle | None = field(default=None, init=False)

    @abstractmethod
    async def fence(self) -> None:
        """Start a new producer, after stopping the last one."""

    @abstractmethod
    async def _write(self, producer: AIOKafkaProducer, batch: CommitBatch) -> CommitReceipt:
        """Make `batch` durable; any error of the client's may come of it."""

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        """Make `batch` durable within the deadline.

        Raises:
            CommitRefusedError: nothing was appended, because of the records.
            FencedError: another producer has the task's transactional id.
            OutcomeUnknownError: it failed, or may have.
        """
        producer = self._producer
        if producer is None:
            raise OutcomeUnknownError(f"{self.name} has no producer")
        try:
            async with asyncio.timeout(self.commit_deadline_s):
                return await self._write(producer, batch)
        except FAILED as error:
            raise self._error(producer, error, batch) from error

    def _error(
        self, producer: AIOKafkaProducer, error: Exception, batch: CommitBatch
    ) -> CommitRefusedError | OutcomeUnknownError:
        """Return the error of ours for a failed commit."""
        what = f"commit of {self.name} at {batch.next_offset}"
        if is_refusal(error):
            return CommitRefusedError(f"{what}: {error}")
        # Why the transaction failed: what the client says of later batches isn't the reason.
        cause = cause_of(transaction_error(producer) or error)
        if self.is_fencing and isinstance(cause, ProducerFenced):
            return FencedError(f"{what}: {FENCED}")
        missing = missing_permission(
            cause, self.connection.principal, batch, self.group, self.name if self.is_fencing else ""
        )
        reason = missing or reason_of(cause, self.commit_deadline_s, self._throttle)
        return OutcomeUnknownError(f"{what}: {reason}", missing=missing)

    async def close(self) -> None:
        """Stop the producer. What it left open is settled by whoever fences the task next."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await discard_producer(producer)

    def _make(self, **arguments: Any) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self.connection.arguments(self.name),
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=MAX_BATCH_BYTES,
            compression_type=self.compression,
            retry_backoff_ms=20,
            **arguments,
        )
        self._throttle = Throttle(producer.client)
        return producer

    async def _start(self, producer: AIOKafkaProducer) -> None:
        self.connection.outages.watch(producer.client)
        self._producer = producer
        with broker_errors(f"starting the producer {self.name}", self.connection):
            await producer.start()


@dataclass(kw_only=True, eq=False)
class TransactionLog(TaskProducer):
    """`actors.ports.TaskLog` with one transaction per commit."""

    is_fencing: ClassVar[bool] = True
    transactional_id: str
    transaction_timeout_ms: int

    def __post_init__(self) -> None:
        """Take the transactional id for the name."""
        self.name = self.transactional_id

    async def fence(self) -> None:
        """Start a new producer with the task's transactional id, which fences all others that have it."""
        await self.close()
        producer = self._make(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.transaction_timeout_ms
        )
        _guard(producer)
        # The start sends InitProducerId, which raises the producer's epoch.
        await self._start(producer)
        producer._sender._retry_backoff = BACKOFF.first_s

    async def _write(self, producer: AIOKafkaProducer, batch: CommitBatch) -> CommitReceipt:
        offsets = {KafkaPartition(*batch.source): OffsetAndMetadata(batch.next_offset, batch.metadata)}
        await producer.begin_transaction()
        if batch.next_offset != NO_OFFSET:
            await producer.send_offsets_to_transaction(offsets, self.group)
        receipt = await sending.send_all(producer, batch, self.batch_bytes, self.wall_ms())
        await producer.commit_transaction()
        producer._sender._retry_backoff = BACKOFF.first_s
        return receipt


def _guard(producer: AIOKafkaProducer) -> None:
    """Make the first transport error of a transactional request fatal, and back off while coordinators move.

    A transaction that failed sends nothing more: its partitions may not have been added to it, and a broker that
    doesn't verify that would append records which no marker ever ends.
    """
    send, fail = producer.client.send, producer._txn_manager.error_transaction

    def failing(error: Exception) -> None:
        fail(error)
        drop_unsent(producer, error)

    producer._txn_manager.error_transaction = failing

    async def guarded(node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        if not isinstance(request, _TRANSACTIONAL):
            if isinstance(request, FindCoordinatorRequest):
                back_off()
            return await send(node_id, request, group=group)
        try:
            response = await send(node_id, request, group=group)
        except NodeNotReadyError:
            # Without a connection nothing was sent: the client looks for the coordinator again.
            back_off()
            raise
        except (KafkaError, OSError, TimeoutError) as error:
            raise TransportFaultError(f"{type(request).__name__}: {type(error).__name__}: {error}") from error
        if getattr(response, "error_code", 0):
            back_off()
        return response

    def back_off() -> None:
        sender = producer._sender
        sender._retry_backoff = BACKOFF.longer_s(sender._retry_backoff)

    producer.client.send = guarded


class _QuietSender(logging.Filter):
    """Drops the client's log line about a fault that `_guard` made fatal: the commit's error reports it."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, TransportFaultError)


logging.getLogger("aiokafka.producer.sender").addFilter(_QuietSender())
