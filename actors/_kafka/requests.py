"""Carries questions over a broker: a producer, and a consumer of the partition with this process's answers.

A producer whose sender met a fatal error refuses everything from then on, and is replaced. The consumer stays, and
with it the offset from which answers are read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextvars import Context

from aiokafka.errors import BrokerResponseError, MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.logs import Reminders, escaping
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.topics import Topics
from actors._kafka.client import Consumer, Producer, release, started
from actors._kafka.connection import Connection, broker_errors
from actors._kafka.permissions import READ, WRITE
from actors.errors import AskClosedError, BrokerUnavailableError, RecordTooLargeError, UnknownTopicError, show_bytes
from actors.ports import ActorReply, ActorRequest, RefusedRecord, TopicPartition
from actors.runtime.cancellation import end
from actors.runtime.message.failures import REMIND_S, is_repeated
from actors.runtime.requests.requests import NOBODY, REPLY_CONFIG, REPLY_PARTITIONS, Waiting, question_headers

logger = escaping(logging.getLogger(__name__))

POLL_S = 1.0
RETRY_S = 1.0
MAX_REQUEST_BYTES = 64 * 1024 * 1024


class KafkaRequests:
    """`actors.ports.Requests` over a broker. It connects with the first question; one per process.

    Answers come to `topic`, which is made if `may_create`; a `replication_factor` of -1 is the broker's default.
    """

    def __init__(
        self, connection: Connection, *, group: str, topic: str, replication_factor: int, may_create: bool = True
    ) -> None:
        self._connection = connection
        self._group = group
        self._topic = topic
        self._replication_factor = replication_factor
        self._may_create = may_create
        self._identity = uuid.uuid4()
        self._waiting = Waiting(self._identity.hex)
        self._partition = 0
        self._counts: dict[str, int] = {}
        self._opening: asyncio.Task[None] | None = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._reader: asyncio.Task[None] | None = None
        self._is_closed = False
        self._reminders = Reminders(REMIND_S)

    async def ask(self, question: ActorRequest, timeout_s: float) -> ActorReply:
        """Send a question and return its reply.

        Raises:
            TimeoutError: no answer came in time.
            BrokerUnavailableError: the question couldn't be sent, or that is unknown.
            RecordTooLargeError: the topic doesn't take a question of its size.
            AskClosedError: this was closed.
        """
        async with asyncio.timeout(timeout_s):
            with self._waiting.question(question) as answer:
                await self._open()
                await self._send(question, f"{self._topic}/{self._partition}/{self._identity.hex}")
                return await answer

    async def tell(self, question: ActorRequest, timeout_s: float) -> int:
        """Send a question whose answer its actor only keeps, and return the question's offset.

        Raises:
            as `ask`.
        """
        async with asyncio.timeout(timeout_s):
            await self._open()
            return await self._send(question, NOBODY)

    async def partitions_of(self, topic: str) -> int:
        """Return how many partitions an actor's input has; asks the brokers once for each topic.

        Raises:
            UnknownTopicError: the broker doesn't have it.
            BrokerUnavailableError: no broker answers.
            AskClosedError: this was closed.
        """
        if self._is_closed:
            raise _closed()
        if topic not in self._counts:
            async with self._topics() as topics:
                found = await topics.existing([topic])
            if topic not in found:
                raise UnknownTopicError(
                    f"topic {topic} isn't on the broker, so no actor reads it: make it (kafka-topics.sh "
                    f"--bootstrap-server BROKER --create --topic {topic} --partitions 8) and start a worker"
                )
            self._counts[topic] = found[topic].partitions
        return self._counts[topic]

    async def close(self) -> None:
        """Disconnect; questions without an answer raise `AskClosedError`. May be called twice."""
        self._is_closed = True
        self._waiting.fail(_closed())
        await end(self._opening, self._reader)
        producer, self._producer = self._producer, None
        consumer, self._consumer = self._consumer, None
        if producer is not None:
            await release(producer)
        if consumer is not None:
            await release(consumer)

    async def _open(self) -> None:
        """Connect, once for all callers of the same time: a caller that is cancelled doesn't end it for the others."""
        if self._is_closed:
            raise _closed()
        producer = self._producer
        if producer is not None and producer.is_spent:
            self._producer = None
            await release(producer)
        if self._producer is not None and self._consumer is not None:
            return
        if self._opening is None or self._opening.done():
            # In a context of its own: the connection outlives the first message.
            self._opening = asyncio.create_task(self._connect(), name="asks connecting", context=Context())
            # All callers may have been cancelled by then.
            self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        opening = self._opening
        await asyncio.wait([opening])
        if opening.cancelled():
            raise _closed() if self._is_closed else BrokerUnavailableError("connecting for questions was cancelled")
        opening.result()

    async def _connect(self) -> None:
        with broker_errors("connecting for questions and answers", self._connection):
            if self._consumer is None:
                await self._start_consumer()
            if self._producer is None:
                await self._start_producer()

    async def _start_consumer(self) -> None:
        """Go to the end of this process's partition, before any question is sent."""
        async with self._topics() as topics:
            wanted = {self._topic: REPLY_PARTITIONS}
            found = await topics.ensure_plain(wanted, self._replication_factor, REPLY_CONFIG)
        self._partition = self._identity.int % found[self._topic].partitions
        source = KafkaPartition(self._topic, self._partition)
        consumer = Consumer(
            self._connection,
            "answers",
            isolation_level="read_committed",
            # If the topic was created again, or its records are gone, any record in it may be an answer.
            auto_offset_reset="earliest",
        )
        await started(consumer)
        try:
            consumer.assign([source])
            consumer.seek(source, (await consumer.end_offsets([source]))[source])
        except BaseException:
            await release(consumer)
            raise
        self._consumer = consumer
        self._reader = asyncio.create_task(self._read(consumer, source), name="answers reader", context=Context())

    async def _start_producer(self) -> None:
        producer = Producer(
            self._connection,
            "questions",
            enable_idempotence=True,
            # The topic decides what is too large.
            max_request_size=MAX_REQUEST_BYTES,
        )
        self._producer = await started(producer)

    @contextlib.asynccontextmanager
    async def _topics(self) -> AsyncIterator[Topics]:
        async with ControlPlane.connect(self._connection, self._group) as control:
            yield Topics(self._connection, control, may_create=self._may_create)

    async def _send(self, question: ActorRequest, reply_to: str) -> int:
        producer = self._producer
        if producer is None:
            raise _closed()
        what = f"sending question {question.id} to {question.topic}[{question.partition}]"
        headers = question_headers(question, reply_to)
        source = TopicPartition(question.topic, question.partition)
        return await _send_record(self._connection, producer, source, question.key, question.value, headers, what=what)

    async def _read(self, consumer: Consumer, source: KafkaPartition) -> None:
        """Read answers until cancelled; errors of the broker are tried again."""
        while True:
            try:
                with broker_errors(f"reading answers from {source.topic}[{source.partition}]", self._connection, READ):
                    records = await consumer.fetched(source, timeout_s=POLL_S)
            except BrokerUnavailableError as error:
                if not is_repeated(error, self._reminders, time.monotonic()):
                    logger.warning("%s; it is tried again", error)
                if error.missing:
                    # The callers get the missing permission, and no time-out that would look like a missing answer.
                    self._waiting.fail(error)
                await asyncio.sleep(RETRY_S)
                continue
            for record in records.get(source, ()):
                if isinstance(record, RefusedRecord):
                    logger.error("%s[%d]: answers are lost: %s. %s", *source, record.error.reason, record.error.remedy)
                else:
                    self._waiting.deliver(record)


def _closed() -> AskClosedError:
    return AskClosedError("the client for questions was closed: whether the question is handled is unknown")


async def _send_record(
    connection: Connection,
    producer: Producer,
    partition: TopicPartition,
    key: bytes,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]],
    *,
    what: str,
) -> int:
    """Send a record, and return its offset when it is acknowledged; `what` names it in errors.

    Cancelling it doesn't take the record back.

    Raises:
        BrokerUnavailableError: the record couldn't be sent, or the outcome is unknown.
        RecordTooLargeError: the topic doesn't take a record of its size.
    """
    try:
        with broker_errors(what, connection, WRITE):
            sent = await producer.send(
                partition.topic, value, key, partition=partition.partition, headers=list(headers)
            )
            # The client doesn't handle cancellation of its own futures.
            return int((await asyncio.shield(sent)).offset)
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
