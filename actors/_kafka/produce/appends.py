"""Appends single records to topics, for callers that wait for each acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import BrokerResponseError, MessageSizeTooLargeError, RecordListTooLargeError

from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.topics import Topics
from actors._kafka.connection import Connection, broker_errors, release, started
from actors._kafka.permissions import WRITE
from actors.errors import BrokerUnavailableError, RecordTooLargeError, show_bytes
from actors.ports import TopicPartition

BATCH_BYTES = 256 * 1024
MAX_REQUEST_BYTES = 64 * 1024 * 1024


async def make_topic(
    connection: Connection, topic: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
) -> None:
    """Create a topic if it is missing.

    Raises:
        ConfigurationError: the broker refuses to create it.
        BrokerUnavailableError: no broker answers.
    """
    async with ControlPlane.connect(connection, "") as control:
        await Topics(connection, control).ensure_plain({topic: partitions}, replication_factor, config)


class KafkaAppends:
    """A producer that waits for the acknowledgement of all replicas; it connects with the first record.

    A producer for which `is_spent` holds refuses all records, and is replaced. `max_record_bytes` is the topics' limit,
    which applies to whole batches.
    """

    def __init__(self, connection: Connection, max_record_bytes: int) -> None:
        self._connection = connection
        self._batch_bytes = min(BATCH_BYTES, max_record_bytes)
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()

    async def append(
        self, partition: TopicPartition, key: bytes, value: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> None:
        """Append a record, and wait until it is acknowledged. Returns no offset: the record may be a repeat.

        Cancelling it doesn't take the record back.

        Raises:
            BrokerUnavailableError: it couldn't be sent, or the outcome isn't known.
            RecordTooLargeError: the topic doesn't take a record of its size.
        """
        producer = await self._started()
        what = f"appending to {partition}"
        await send_record(self._connection, producer, partition, key, value, headers, what=what)

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await release(producer)

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is not None and is_spent(self._producer):
                await self.close()
            if self._producer is None:
                self._producer = await self._start()
            return self._producer

    async def _start(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._connection.arguments("appends"),
            enable_idempotence=True,
            # A partition takes one batch after the other: records that are appended meanwhile share the next one.
            max_batch_size=self._batch_bytes,
            # The topic decides what is too large.
            max_request_size=MAX_REQUEST_BYTES,
        )
        with broker_errors("connecting to append", self._connection, WRITE):
            return await started(producer, self._connection)


def is_spent(producer: AIOKafkaProducer) -> bool:
    """Tell whether a producer takes no more records: its sender ended, or a broker refused a batch.

    The client gave the batch sequence numbers that the broker hasn't seen, so the broker refuses all later batches of
    the partition as well.
    """
    return bool(getattr(producer, "was_refused", False) or producer._sender.sender_task.done())


async def send_record(
    connection: Connection,
    producer: AIOKafkaProducer,
    partition: TopicPartition,
    key: bytes,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]],
    *,
    what: str,
) -> None:
    """Send a record, and wait until it is acknowledged; `what` names it in errors. See `KafkaAppends.append`."""
    try:
        with broker_errors(what, connection, WRITE):
            sent = await producer.send(
                partition.topic, value, key, partition=partition.partition, headers=list(headers)
            )
            # The client doesn't handle cancellation of its own futures.
            await asyncio.shield(sent)
    except AssertionError as error:
        # The client's metadata is older than the partition, or the topic was created again.
        raise BrokerUnavailableError(f"{what}: the client knows no such partition") from error
    except BrokerUnavailableError as error:
        if isinstance(error.__cause__, BrokerResponseError):
            producer.was_refused = True
        if isinstance(error.__cause__, MessageSizeTooLargeError | RecordListTooLargeError):
            raise RecordTooLargeError(
                f"{what}: the topic's max.message.bytes doesn't allow {len(value or b'')} bytes for key "
                f"{show_bytes(key)}: write less, or raise the topic's setting"
            ) from error
        raise
