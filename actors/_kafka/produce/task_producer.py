"""What both kinds of a task's writes to Kafka share: a producer per `fence`, a deadline, and the errors of a commit."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aiokafka import AIOKafkaProducer

from actors._kafka.connection import Connection, broker_errors
from actors._kafka.produce.batches import MAX_BATCH_BYTES
from actors._kafka.produce.failures import FAILED, Throttle, commit_error
from actors._kafka.produce.stopping import discard_producer, transaction_error
from actors.errors import OutcomeUnknownError
from actors.ports import CommitBatch, CommitReceipt
from actors.runtime.clock import machine_ms


@dataclass(kw_only=True, eq=False)
class TaskProducer(ABC):
    """Writes of one task. A producer is never used again after anything but a clean commit.

    Attributes:
        is_fencing: whether the name is a transactional id, with which producers fence each other.
        connection: to the brokers.
        name: the task's, for messages and for the client's id.
        group: the consumer group whose offsets are committed.
        batch_bytes: returns how large a batch a topic takes.
        compression: aiokafka's name of a codec, None for none.
        commit_deadline_s: how long a commit may take.
        wall_ms: returns the time of records whose handler gave none, in Unix milliseconds.
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
            raise commit_error(
                f"commit of {self.name} at {batch.next_offset}",
                error,
                batch,
                transaction_error=transaction_error(producer),
                deadline_s=self.commit_deadline_s,
                throttle=self._throttle,
                principal=self.connection.principal,
                group=self.group,
                transactional_id=self.name if self.is_fencing else "",
            ) from error

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
