"""A task's writes to Kafka: one transaction per commit, or the same writes in a safe order.

What aiokafka does by itself and must not do here:

- It commits a transaction although a produce in it failed. So every produce's future is looked at before the end.
- It sends a transactional request again after a transport error, with the same epoch, for as long as it takes. An
  EndTxn that arrives late ends whatever transaction is open by then, which commits half of the next one. So the first
  transport error of a transactional request is fatal to the producer (`_guard`), and so is a commit that
  takes longer than its deadline. The next `fence` raises the producer's epoch, and late requests are refused.
- It waits 20 ms when the previous transaction's markers are still being written and a partition is added, but only its
  own back-off when the group is. So offsets go first, with a small back-off that grows while coordinators move.

A producer is never used again after anything but a clean commit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import (
    BrokerResponseError,
    IllegalOperation,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    NoError,
    ProducerFenced,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    for_code,
)
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.logs import escaping
from actors._kafka.connection import Connection, broker_errors, words_of
from actors._kafka.permissions import READ, UNAUTHORIZED, WRITE, lacking
from actors._kafka.produce.batches import (
    MAX_BATCH_BYTES,
    UnpackableError,
    by_partition,
    changelog_records,
    output_records,
    pack,
)
from actors._kafka.protocol import InvalidRecordError
from actors.errors import CommitRefusedError, FencedError, OutcomeUnknownError
from actors.ports import NO_OFFSET, CommitBatch, CommitReceipt, Identity
from actors.runtime.clock import machine_ms

logger = escaping(logging.getLogger(__name__))

QUICK_BACKOFF_S = 0.002
SLOW_BACKOFF_S = 0.1
CLOSE_S = 5.0
FENCED = "fenced"
_REFUSED = (
    InvalidRecordError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
"""Answers to a produce that the broker gives before it appends, because of the records themselves. A failed checksum
isn't one: the network may have damaged the batch. Nor are errors about permissions, quotas and policies: the cluster's
administrator can mend them, and then the same records are taken."""
_FAILED = (KafkaError, UnpackableError, OSError, TimeoutError, AssertionError)
_TRANSACTIONAL = (AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest)


class TransportFaultError(Exception):
    """A transactional request got no answer. Not an error of the client's own: those it would send again."""


class ProduceError(KafkaError):  # type: ignore[misc]
    """The broker's answer to a produce, which is the cause, with the partition that gave it.

    `has_own_time` says whether a record of the batch has a timestamp that a handler gave.
    """

    def __init__(self, partition: KafkaPartition, error: Exception, *, has_own_time: bool) -> None:
        super().__init__(f"{partition.topic}[{partition.partition}]: {_described(error)}")
        self.has_own_time = has_own_time

    def __str__(self) -> str:
        return str(self.args[0])


class _QuietSender(logging.Filter):
    """Drops the client's report of a fault that we made fatal on purpose; the commit's error says it."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, TransportFaultError)


logging.getLogger("aiokafka.producer.sender").addFilter(_QuietSender())


class TransactionLog:
    """`actors.ports.TaskLog` with one transaction per commit."""

    def __init__(
        self,
        connection: Connection,
        *,
        transactional_id: str,
        group: str,
        batch_bytes: Callable[[str], int],
        compression: str | None,
        transaction_timeout_ms: int,
        commit_deadline_s: float,
        wall_ms: Callable[[], int] = machine_ms,
    ) -> None:
        self._connection = connection
        self._transactional_id = transactional_id
        self._group = group
        self._batch_bytes = batch_bytes
        self._compression = compression
        self._transaction_timeout_ms = transaction_timeout_ms
        self._commit_deadline_s = commit_deadline_s
        self._wall_ms = wall_ms
        self._producer: AIOKafkaProducer | None = None
        self._throttle: Throttle | None = None

    async def fence(self) -> None:
        """Start a new producer with the task's id, after stopping the last one."""
        await self.close()
        producer = AIOKafkaProducer(
            **self._connection.arguments(self._transactional_id),
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._transaction_timeout_ms,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=MAX_BATCH_BYTES,
            compression_type=self._compression,
            retry_backoff_ms=20,
        )
        self._throttle = Throttle(producer.client)
        _guard(producer)
        self._connection.outages.watch(producer.client)
        self._producer = producer
        with broker_errors(f"starting the producer {self._transactional_id}", self._connection):
            await producer.start()
        producer._sender._retry_backoff = QUICK_BACKOFF_S

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        """Make `batch` durable in one transaction.

        Raises:
            OutcomeUnknownError: it failed, or may have.
        """
        producer = self._producer
        if producer is None:
            raise OutcomeUnknownError(f"{self._transactional_id} has no producer")
        try:
            async with asyncio.timeout(self._commit_deadline_s):
                return await self._transaction(producer, batch)
        except (*_FAILED, IllegalOperation, TransportFaultError) as error:
            # IllegalOperation is no KafkaError: a batch that comes after its transaction failed says so.
            said = _retrieve(producer)
            what = f"commit of {self._transactional_id} at {batch.next_offset}"
            if _is_refusal(error):
                raise CommitRefusedError(f"{what}: {error}") from error
            # What the client says of batches after its transaction failed isn't why it failed.
            cause = _cause(said or error)
            if isinstance(cause, ProducerFenced):
                raise FencedError(f"{what}: {FENCED}") from error
            missing = _missing(cause, self._connection, batch, self._group, self._transactional_id)
            why = missing or _reason(cause, self._commit_deadline_s, self._throttle)
            raise OutcomeUnknownError(f"{what}: {why}", missing=missing) from error

    async def _transaction(self, producer: AIOKafkaProducer, batch: CommitBatch) -> CommitReceipt:
        offsets = {KafkaPartition(*batch.source): OffsetAndMetadata(batch.next_offset, batch.metadata)}
        await producer.begin_transaction()
        if batch.next_offset != NO_OFFSET:
            await producer.send_offsets_to_transaction(offsets, self._group)
        receipt = await send_all(producer, batch, self._batch_bytes, self._wall_ms())
        await producer.commit_transaction()
        producer._sender._retry_backoff = QUICK_BACKOFF_S
        return receipt

    async def close(self) -> None:
        """Let the producer go. What it left open is settled by whoever fences the id next."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await discard_producer(producer)


class OrderedLog:
    """`actors.ports.TaskLog` for at-least-once: outputs, changelog, offset, each acknowledged before the next.

    A crash in between repeats outputs and writes, and loses none. Nothing is fenced: while a zombie runs, both write.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        name: str,
        group: str,
        identity: Identity,
        control: Any,
        batch_bytes: Callable[[str], int],
        compression: str | None,
        commit_deadline_s: float,
        wall_ms: Callable[[], int] = machine_ms,
    ) -> None:
        self._connection = connection
        self._name = name
        self._group = group
        self._identity = identity
        self._control = control
        self._batch_bytes = batch_bytes
        self._compression = compression
        self._commit_deadline_s = commit_deadline_s
        self._wall_ms = wall_ms
        self._producer: AIOKafkaProducer | None = None
        self._throttle: Throttle | None = None

    async def fence(self) -> None:
        """Start a new idempotent producer; this fences nobody."""
        await self.close()
        self._producer = AIOKafkaProducer(
            **self._connection.arguments(self._name),
            enable_idempotence=True,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=MAX_BATCH_BYTES,
            compression_type=self._compression,
            retry_backoff_ms=20,
        )
        self._throttle = Throttle(self._producer.client)
        self._connection.outages.watch(self._producer.client)
        with broker_errors(f"starting the producer {self._name}", self._connection):
            await self._producer.start()

    async def commit(self, batch: CommitBatch) -> CommitReceipt:
        """Make `batch` durable in order.

        Raises:
            OutcomeUnknownError: some of it may be missing.
        """
        producer = self._producer
        if producer is None:
            raise OutcomeUnknownError(f"{self._name} has no producer")
        try:
            async with asyncio.timeout(self._commit_deadline_s):
                batch_bytes, now_ms = self._batch_bytes, self._wall_ms()
                await send_all(producer, replace(batch, changelogs={}), batch_bytes, now_ms)
                offsets: dict[str, int] = {}
                for step in batch.steps or [batch.changelogs]:
                    step_batch = replace(batch, changelogs=step, outputs=())
                    written = await send_all(producer, step_batch, batch_bytes, now_ms)
                    offsets |= written.changelog_offsets
                await self._commit_offset(batch)
                return CommitReceipt(offsets)
        except _FAILED as error:
            what = f"commit of {self._name} at {batch.next_offset}"
            if _is_refusal(error):
                raise CommitRefusedError(f"{what}: {error}") from error
            cause = _cause(error)
            missing = _missing(cause, self._connection, batch, self._group)
            why = missing or _reason(cause, self._commit_deadline_s, self._throttle)
            raise OutcomeUnknownError(f"{what}: {why}", missing=missing) from error

    async def _commit_offset(self, batch: CommitBatch) -> None:
        request = OffsetCommitRequest(
            self._group,
            self._identity.generation,
            self._identity.member_id,
            -1,
            [(batch.source.topic, [(batch.source.partition, batch.next_offset, batch.metadata)])],
        )
        response = await self._control.ask_coordinator(request)
        for _, partitions in response.topics:
            for _, code in partitions:
                error = for_code(code)
                if error is not NoError:
                    raise error() if error in UNAUTHORIZED else error(f"offset of {batch.source}")

    async def close(self) -> None:
        """Let the producer go."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await discard_producer(producer)


class Throttle:
    """What brokers said of a producer's quota: they answer, and then let its next request wait."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self._send = client.send
        self._told_s = 0.0
        self._at_s = float("-inf")
        client.send = self._noting

    async def _noting(self, node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        response = await self._send(node_id, request, group=group)
        if getattr(response, "throttle_time_ms", 0):
            self._told_s, self._at_s = response.throttle_time_ms / 1000, time.monotonic()
        return response

    def told(self, within_s: float) -> str:
        """Say so if a broker held requests back within so many seconds, "" otherwise."""
        if time.monotonic() - self._at_s > within_s + self._told_s:
            return ""
        return f"; a broker let this client wait {self._told_s:.1f} s, because of a quota of its user or client id"


def _guard(producer: AIOKafkaProducer) -> None:
    """Make the first transport error of a transactional request fatal, and back off while coordinators move.

    A transaction that failed sends nothing more: its partitions may not have been added to it, and a broker that
    doesn't verify that would append records which no marker ever ends.
    """
    send, fail = producer.client.send, producer._txn_manager.error_transaction

    def failing(error: Exception) -> None:
        fail(error)
        _drop_unsent(producer, error)

    producer._txn_manager.error_transaction = failing

    async def guarded(node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        if not isinstance(request, _TRANSACTIONAL):
            if isinstance(request, FindCoordinatorRequest):
                back_off()
            return await send(node_id, request, group=group)
        try:
            response = await send(node_id, request, group=group)
        except NodeNotReadyError:
            # There is no connection, so nothing was sent: the client looks for the coordinator again.
            back_off()
            raise
        except (KafkaError, OSError, TimeoutError) as error:
            raise TransportFaultError(f"{type(request).__name__}: {type(error).__name__}: {error}") from error
        if getattr(response, "error_code", 0):
            back_off()
        return response

    def back_off() -> None:
        sender = producer._sender
        sender._retry_backoff = min(sender._retry_backoff * 1.5, SLOW_BACKOFF_S)

    producer.client.send = guarded


def _is_refusal(error: BaseException) -> bool:
    """Tell whether nothing was appended because of the records themselves, so that they are refused another time too.

    A timestamp is the records' own if a handler gave it; else it is this worker's clock, which may be set right.
    """
    if not isinstance(error, ProduceError):
        return isinstance(error, UnpackableError)
    answer = error.__cause__
    return isinstance(answer, _REFUSED) or (isinstance(answer, InvalidTimestampError) and error.has_own_time)


def _cause(error: BaseException) -> BaseException:
    """Return why a commit failed. What ends the client's sender comes as the cause of a KafkaError without words."""
    return error.__cause__ if type(error) is KafkaError and error.__cause__ is not None else error


def _missing(
    error: BaseException | None, connection: Connection, batch: CommitBatch, group: str, transactional_id: str = ""
) -> str:
    """Return which permission made a commit fail, "" if none did."""
    if isinstance(error, ProduceError):
        error = error.__cause__
    # The answer to an offset names no topic: the input's, which is read.
    is_input = isinstance(error, TopicAuthorizationFailedError) and not error.args
    name = batch.source.topic if is_input else group
    if isinstance(error, TransactionalIdAuthorizationFailed):
        name = transactional_id
    return lacking(error, connection.principal, READ if is_input else WRITE, name=name)


def _reason(error: BaseException, deadline_s: float, throttle: Throttle | None) -> str:
    """Say why a commit failed."""
    if isinstance(error, TransportFaultError | ProduceError):
        return str(error)
    if isinstance(error, TimeoutError):
        quota = "" if throttle is None else throttle.told(deadline_s)
        return f"the brokers didn't finish it within {deadline_s:g} s{quota}"
    return _described(error)


def _described(error: BaseException) -> str:
    """Say what an error of the client means where its own words don't."""
    if isinstance(error, InvalidTimestampError):
        return f"{words_of(error)}: the topic's limits don't allow the records' time; is a clock wrong?"
    return words_of(error)


async def send_all(
    producer: AIOKafkaProducer, batch: CommitBatch, batch_bytes: Callable[[str], int], now_ms: int
) -> CommitReceipt:
    """Send changelogs and outputs, wait for every acknowledgement, and give the changelogs' next offsets.

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
    """Send full batches in order, and give the offset and the length of the last one."""
    sent = []
    for builder in builders:
        sent.append(await producer.send_batch(builder, partition.topic, partition=partition.partition))
        # If a later one can't be sent, nobody waits for this one.
        sent[-1].add_done_callback(_looked_at)
    await asyncio.gather(*sent)
    return int(sent[-1].result().offset), int(builders[-1].record_count())


def _next_offsets(changelogs: Iterable[str], results: Iterable[tuple[int, int]]) -> dict[str, int]:
    found = {}
    for topic, (base_offset, count) in zip(changelogs, results, strict=False):
        if base_offset < 0:
            raise KafkaError(f"{topic} took a batch without saying where: it may be a repeat")
        found[topic] = base_offset + count
    return found


def _retrieve(producer: AIOKafkaProducer) -> BaseException | None:
    """Take the error out of the future that nobody else waits for, and give it: why the transaction failed."""
    waiter = producer._txn_manager._transaction_waiter
    if waiter is None or not waiter.done() or waiter.cancelled():
        return None
    error: BaseException | None = waiter.exception()
    return error


def _looked_at(waiter: asyncio.Future[Any]) -> None:
    """Let nobody miss the error of a future."""
    if waiter.done() and not waiter.cancelled():
        waiter.exception()


def _drop_unsent(producer: AIOKafkaProducer, error: Exception) -> None:
    """Let all fail that a producer holds and isn't sending, and send none of it."""
    accumulator = producer._message_accumulator
    unsent = [batch for batches in accumulator._batches.values() for batch in batches]
    accumulator._batches.clear()
    # A batch that waits to be sent again isn't among these, and is removed from them when it fails.
    accumulator._pending_batches.update(unsent)
    for batch in unsent:
        batch.failure(error)
        _looked_at(batch.future)
        _looked_at(batch._drain_waiter)


async def discard_producer(producer: AIOKafkaProducer) -> None:
    """Stop a producer, whatever state it is in, without sending what it holds."""
    sender = producer._sender.sender_task
    if sender is not None and not sender.done():
        sender.cancel()
    discarded = KafkaError("the producer was discarded")
    _drop_unsent(producer, discarded)
    producer._message_accumulator.fail_all(discarded)
    try:
        async with asyncio.timeout(CLOSE_S):
            await producer.stop()
    except Exception as error:
        # A request of its sender's that was under way meets what was dropped.
        logger.debug("a discarded producer said: %r", error)
    except asyncio.CancelledError:
        # The sender's own, unless somebody cancels us.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
    finally:
        producer._closed = True
    await producer.client.close()
    if sender is not None:
        _looked_at(sender)
    for batch in producer._message_accumulator._pending_batches:
        _looked_at(batch.future)
    if producer._txn_manager is not None:
        _retrieve(producer)
