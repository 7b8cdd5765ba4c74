"""What the clients do when a permission is withdrawn, or a coordinator has no connection: without a broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.structs import TopicPartition as KafkaPartition

from actors import App, Context, OnError
from actors._kafka import requests as asking
from actors._kafka.client import Client, Consumer, Producer
from actors._kafka.connection import Connection
from actors._kafka.consume import consumer as consuming
from actors._kafka.consume.consumer import KafkaSource
from actors._kafka.consume.membership import GroupSettings
from actors._kafka.produce.failures import TransportFaultError
from actors._kafka.requests import KafkaRequests
from actors.errors import BrokerUnavailableError
from actors.ports import ActorRequest, SourceEvents, TopicPartition
from actors.testing import ActorTestDriver
from actors.testing.fakes.requests import FakeRequests
from tests.unit.kafka.test_writer import transactions

INPUT = KafkaPartition("in", 0)


class FakeConsumer(Consumer):
    """A consumer without brokers; a poll raises `error`."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.polls = 0
        self.paused_now: set[KafkaPartition] = set()
        self.heartbeats = 0
        self._closed = True
        self._client = SimpleNamespace(hooks=(), force_metadata_update=lambda: None)
        self._subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=None))
        self._fetcher = SimpleNamespace(error_future=asyncio.get_running_loop().create_future())
        dead = asyncio.get_running_loop().create_future()
        dead.set_result(None)
        self._coordinator = SimpleNamespace(
            _heartbeat_task=dead,
            _start_heartbeat_task=self._beat,
            check_errors=self._check,
        )

    def _beat(self) -> None:
        self.heartbeats += 1

    def _check(self) -> None:
        self.polls += 1
        if self.error is not None:
            raise self.error

    async def getmany(self, *_: Any, **__: Any) -> dict[KafkaPartition, Any]:
        self._check()
        return {}

    def assignment(self) -> set[KafkaPartition]:
        return {INPUT, KafkaPartition("other", 0)}

    def pause(self, partition: KafkaPartition) -> None:
        self.paused_now.add(partition)


def source_of(consumer: FakeConsumer, lost: dict[TopicPartition, str]) -> KafkaSource:
    nothing: Any = None
    events = SourceEvents(
        joining=lambda: None,
        revoked=lambda: asyncio.sleep(0),
        assigned=lambda *_: None,
        handed_over=lambda: asyncio.sleep(0),
        dropped=lambda: None,
        room=lambda: None,
        lost=lost.__setitem__,
        failed=lambda error: pytest.fail(repr(error)),
    )
    return KafkaSource(consumer, GroupSettings("group", None, 6000, 2000, 10_000, 1000, None), nothing, events)


async def test_a_group_that_may_not_be_read_is_tried_again_with_heartbeats_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consuming, "RETRY_S", 0.0)
    monkeypatch.setattr(consuming, "DENIED_RETRY_S", 0.0)
    consumer, lost = FakeConsumer(), dict[TopicPartition, str]()
    source = source_of(consumer, lost)
    consumer.error = GroupAuthorizationFailedError("group")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await source.poll([], 0.0) == {}
            source.check()
    assert consumer.heartbeats >= 1
    assert consumer.polls == 6
    assert [message for message in caplog.messages if "isn't allowed Read on group group" in message] == caplog.messages
    assert len(caplog.messages) == 1
    consumer.error = None
    assert await source.poll([], 0.0) == {}
    consumer.error = KafkaError("the coordination ended")
    with pytest.raises(BrokerUnavailableError, match="the coordination ended"):
        source.check()


async def test_a_group_that_may_not_be_read_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "RETRY_S", 0.0)
    consumer = FakeConsumer()
    source = source_of(consumer, {})
    consumer.error = GroupAuthorizationFailedError("group")
    for _ in range(20):
        await source.poll([], 0.0)
        source.check()
    assert consumer.polls <= 2


async def test_an_input_that_may_not_be_read_stops_only_its_own_partitions() -> None:
    consumer, lost = FakeConsumer(), dict[TopicPartition, str]()
    consumer.error = TopicAuthorizationFailedError("in")
    assert await source_of(consumer, lost).poll([], 0.0) == {}
    assert consumer.paused_now == {INPUT}
    assert list(lost) == [TopicPartition("in", 0)]
    assert "isn't allowed Read on topic in" in lost[TopicPartition("in", 0)]


async def test_only_a_request_that_may_have_been_sent_is_fatal() -> None:
    errors: list[Exception] = [NodeNotReadyError("no connection"), KafkaConnectionError("closed")]
    writer = transactions(None)

    async def asked(*_: Any) -> None:
        raise errors.pop(0)

    writer._send_once = asked  # type: ignore[method-assign]
    with pytest.raises(TransportFaultError):
        await writer._request((CoordinationType.TRANSACTION, "t"), EndTxnRequest("t", 1, 0, True), lambda _: 0)
    assert errors == []


async def test_a_quota_is_named_while_it_may_be_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [SimpleNamespace(throttle_time_ms=0), SimpleNamespace(throttle_time_ms=12_300)]

    async def send(*_: Any, **__: Any) -> Any:
        return answers.pop(0)

    client = Client.of(Connection(()), "commits")
    monkeypatch.setattr(AIOKafkaClient, "send", send)
    writer = transactions(client)
    await client.send(1, None)
    assert "quota" not in str(writer._unknown(TimeoutError()))
    await client.send(1, None)
    assert "a broker let this client wait 12.3 s, because of a quota" in str(writer._unknown(TimeoutError()))


async def test_a_producer_with_a_refused_batch_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers refuse all its later batches of the partition, since they haven't seen the sequence numbers."""
    answers: list[Exception | None] = [None, TopicAuthorizationFailedError("locks"), None]
    made: list[Producer] = []

    async def send(*_: Any, **__: Any) -> asyncio.Future[Any]:
        done, error = asyncio.get_running_loop().create_future(), answers.pop(0)
        if error is None:
            done.set_result(SimpleNamespace(offset=0))
        else:
            done.set_exception(error)
        return done

    async def start() -> None:
        asks._producer = Producer(asks._connection, "questions")
        asks._producer.send, asks._producer._closed = send, True
        asks._producer._sender = SimpleNamespace(sender_task=asyncio.get_running_loop().create_future())
        made.append(asks._producer)

    security = {"sasl_plain_username": "bob"}
    asks = KafkaRequests(Connection((), security=security), group="g", topic="app-replies", replication_factor=-1)
    asks._consumer = SimpleNamespace(stop=lambda: asyncio.sleep(0))
    monkeypatch.setattr(asks, "_start_producer", start)
    question = ActorRequest(id="q", topic="locks", partition=0, key=b"k", value=b"v", headers=[])
    for refusal in (None, "User:bob isn't allowed Write on topic locks", None):
        await asks._open()
        with contextlib.nullcontext() if refusal is None else pytest.raises(BrokerUnavailableError, match=refusal):
            await asks._send(question, "app-replies/0/x")
    assert len(made) == 2
    await asks.close()


async def test_who_asks_hears_that_answers_may_not_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asking, "RETRY_S", 0.0)
    reads = 0

    async def denied(*_: Any, **__: Any) -> None:
        nonlocal reads
        reads += 1
        if reads > 3:
            raise ValueError(reads)
        raise TopicAuthorizationFailedError("app-replies")

    asks = KafkaRequests(Connection(()), group="g", topic="app-replies", replication_factor=-1)
    question = ActorRequest(id="q", topic="in", partition=0, key=b"k", value=b"v", headers=[])
    with asks._waiting.question(question) as answer, caplog.at_level(logging.WARNING):
        with pytest.raises(ValueError, match="4"):
            await asks._read(SimpleNamespace(fetched=denied), KafkaPartition("app-replies", 0))
        error = answer.exception()
    assert isinstance(error, BrokerUnavailableError)
    assert "isn't allowed Read on topic app-replies" in error.missing
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("then", ["stop", "skip", "park"])
def test_a_message_whose_question_is_not_allowed_waits_until_it_is(
    monkeypatch: pytest.MonkeyPatch, then: Literal["stop", "skip", "park"]
) -> None:
    app = App("asking", broker="kafka://127.0.0.1:1")
    inbox, orders = app.topic("inbox", key_type=str, value_type=int), app.topic("orders", key_type=str, value_type=int)
    done = app.topic("done", key_type=str, value_type=int)
    tries: list[ActorRequest] = []
    send = FakeRequests._send

    async def sent_if_allowed(asks: FakeRequests, question: ActorRequest) -> None:
        tries.append(question)
        if len(tries) < 30:
            raise BrokerUnavailableError("User:bob isn't allowed", missing="User:bob isn't allowed Write on inbox")
        await send(asks, question)

    monkeypatch.setattr(FakeRequests, "_send", sent_if_allowed)

    @app.actor(inbox)
    def doubled(ctx: Context, number: int) -> int:
        return 2 * number

    @app.actor(orders, concurrency=2, on_error=OnError(then=then))
    async def order(ctx: Context, number: int) -> None:
        ctx.send(done, key=ctx.key, value=await ctx.ask(doubled, "a", number, timeout=timedelta(seconds=1)))

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="x", value=4)
        assert [sent.value for sent in driver.outputs(done)] == [8]
