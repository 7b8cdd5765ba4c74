"""The fake of `actors._kafka.requests`, over a simulated cluster."""

from __future__ import annotations

import asyncio

from actors._core.logs import error_text, text_of
from actors.errors import BrokerUnavailableError, RecordTooLargeError
from actors.ports import ActorReply, ActorRequest, TopicPartition
from actors.runtime.requests.requests import Waiting, question_headers
from actors.testing.fakes.cluster import MemoryKafka, Produced
from actors.testing.fakes.direct import DirectNetwork
from actors.testing.fakes.errors import NoAnswerError, RecordRefusedError, RefusedError

RETRY_S = 0.1
POLL_S = 30.0
_MAX_RECORDS = 500


class FakeRequests:
    """`actors.ports.Requests` with one partition of answers; `tests/sim` has one with an idempotent producer.

    It reads only while a question waits, from where it stood: what came in between is dropped like any late answer.
    """

    def __init__(self, cluster: MemoryKafka, network: DirectNetwork, *, topic: str) -> None:
        self._cluster = cluster
        self._network = network
        number = cluster.new_producer_id()
        self._source = TopicPartition(topic, number % len(cluster.topic(topic).partitions))
        self._waiting = Waiting(f"asker-{number}")
        self._position: int | None = None
        self._reader: asyncio.Task[None] | None = None

    async def ask(self, question: ActorRequest, timeout_s: float) -> ActorReply:
        async with asyncio.timeout(timeout_s):
            with self._waiting.question(question) as answer:
                try:
                    await self._open()
                    await self._send(question)
                    return await answer
                finally:
                    if len(self._waiting) == 1 and self._reader is not None:
                        self._reader.cancel()
                        self._reader = None

    async def _open(self) -> None:
        if self._position is None:
            try:
                end = await self._network.ask("ListOffsets", self._cluster.end_of, self._source)
            except (NoAnswerError, RefusedError) as error:
                raise BrokerUnavailableError(f"end of {self._source}: {type(error).__name__}: {error}") from error
            # Another question may have been first meanwhile, and have read on.
            self._position = end if self._position is None else self._position
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(self._position), name="answers reader")

    async def _send(self, question: ActorRequest) -> None:
        reply_to = f"{self._source.topic}/{self._source.partition}/{self._waiting.asker}"
        headers = question_headers(question, reply_to)
        target = TopicPartition(question.topic, question.partition)
        try:
            await self._produce(target, [(question.key, question.value, headers)])
        except RecordRefusedError as error:
            raise RecordTooLargeError(f"question {question.id}: {text_of(error)}") from error
        except (NoAnswerError, RefusedError) as error:
            raise BrokerUnavailableError(f"question {question.id}: {error_text(error)}") from error

    async def _produce(self, target: TopicPartition, records: Produced) -> None:
        await self._network.ask("Produce", self._cluster.produce, target, records)

    async def _read(self, position: int) -> None:
        while True:
            try:
                found = await self._network.ask(
                    "Fetch", self._cluster.poll, {self._source: position}, _MAX_RECORDS, POLL_S
                )
            except (NoAnswerError, RefusedError):
                await asyncio.sleep(RETRY_S)
                continue
            for records, reached in found.values():
                self._position = position = reached
                for record in records:
                    self._waiting.deliver(record)
