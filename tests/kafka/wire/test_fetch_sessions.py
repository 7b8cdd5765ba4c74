"""Fetch sessions with real brokers: no record is lost, whatever ends them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.connection import Connection
from actors._kafka.consume.logs import KafkaFollowing
from actors._kafka.protocol import FetchRequest_v13, FetchResponse_v13
from actors._kafka.transaction_requests import _OneVersion
from actors.errors import ReplacedLogError
from actors.ports import TopicPartition
from dev.kafka import Cluster
from tests.kafka.helpers import delete, eventually, make_topics, producing, read_all, topic_id, unique
from tests.kafka.wire.proxy import Api, Exchange, WireProxy, lose_reply

COUNT = 4
NOT_FOUND, WRONG_EPOCH = 70, 71


class RawFetch(_OneVersion):
    """A fetch of another client."""

    API_KEY = Api.FETCH
    STRUCT = FetchRequest_v13


class Reader:
    """Reads all partitions of a topic, and sees its fetches on their way."""

    def __init__(self, topic: str, brokers: str) -> None:
        self.topic = topic
        self.sent: Counter[bytes | None] = Counter()
        self.got: Counter[bytes | None] = Counter()
        self.asked: list[Any] = []
        self.said: list[Any] = []
        self.following: KafkaFollowing | None = None
        self._brokers = brokers

    async def open(self, bootstrap: str) -> None:
        """Begin at the start."""
        positions = {TopicPartition(self.topic, number): 0 for number in range(COUNT)}
        ids = {self.topic: await topic_id(self._brokers, self.topic) or ""}
        connection = Connection(tuple(bootstrap.split(",")), client_id="reader")
        self.following = await KafkaFollowing.open(connection, positions, ids, role="logs", fetch_bytes=100_000)

    async def watch(self, exchange: Exchange) -> bytes:
        """Note a request and its reply."""
        end = 10 + int.from_bytes(exchange.frame[8:10], "big") + 1
        self.asked.append(FetchRequest_v13.decode(exchange.frame[end:]))
        reply = await exchange.ask()
        self.said.append(FetchResponse_v13.decode(BytesIO(reply[5:])))
        return reply

    async def send(self, *numbers: int) -> None:
        """Send a record to each of some partitions."""
        async with producing(self._brokers) as producer:
            for number in numbers:
                value = b"%d" % self.sent.total()
                await producer.send_and_wait(self.topic, value, partition=number)
                self.sent[value] += 1

    async def poll(self) -> None:
        """Take what there is."""
        assert self.following is not None
        for records, _ in (await self.following.poll(0.1)).values():
            self.got.update(record.value for record in records)

    async def has(self, count: int) -> None:
        """Read until so many records have come."""

        async def came() -> bool:
            await self.poll()
            return self.got.total() >= count

        await eventually(came, what=lambda: f"{count} of {self.sent} came: {self.got}")

    async def has_all(self) -> None:
        """Read until everything that was sent has come, once."""
        await self.has(self.sent.total())
        assert self.got == self.sent

    async def in_session(self) -> Any:
        """Read until a fetch has named no partition; return the latest."""

        async def is_incremental() -> bool:
            await self.poll()
            return bool(self.asked) and self.asked[-1].session_epoch > 0 and not self.asked[-1].topics

        await eventually(is_incremental, what=lambda: f"a fetch that names nothing: {self.asked[-3:]}")
        return self.asked[-1]

    @property
    def codes(self) -> set[int]:
        """The error codes that came for whole fetches."""
        return {response.error_code for response in self.said}


@pytest.fixture
async def reader(brokers: str, proxy: WireProxy) -> AsyncIterator[Reader]:
    made = Reader(unique("log"), brokers)
    await make_topics(brokers, made.topic, partitions=COUNT)
    # A leader that is elected needn't answer yet, and its refusal would end the first session.
    assert await read_all(brokers, made.topic) == []
    proxy.on(Api.FETCH, made.watch, client="reader-logs", times=None)
    await made.open(proxy.bootstrap)
    assert made.following is not None
    yield made
    await made.following.close()


@contextlib.asynccontextmanager
async def another(brokers: str) -> AsyncIterator[AIOKafkaClient]:
    """Another client of the same broker."""
    client = AIOKafkaClient(bootstrap_servers=brokers)
    await client.bootstrap()
    try:
        yield client
    finally:
        await client.close()


async def interfere(brokers: str, session: int, epoch: int) -> None:
    """Send a fetch in the session of the reader."""
    async with another(brokers) as client:
        request = RawFetch(-1, 0, 0, 1_000, 0, session, epoch, [], [], "", {})
        response = await client.send(client.get_random_node(), request)
        assert response.error_code in (0, WRONG_EPOCH)


async def test_requests_and_responses_hold_what_is_new(reader: Reader) -> None:
    await reader.send(*range(COUNT))
    await reader.has_all()
    await reader.in_session()
    asked, said = len(reader.asked), len(reader.said)
    await reader.send(2)
    await reader.has_all()
    await reader.in_session()
    named = [part[0] for request in reader.asked[asked:] for _, parts, _ in request.topics for part in parts]
    answered = [part[0] for response in reader.said[said:] for _, parts, _ in response.topics for part in parts]
    assert set(named) == set(answered) == {2}
    assert [request.session_epoch for request in reader.asked].count(0) == 1


async def test_an_evicted_session_is_followed_by_another(reader: Reader, brokers: str) -> None:
    session = (await reader.in_session()).session_id
    await interfere(brokers, session, -1)
    await reader.send(1, 3)
    await reader.has_all()
    assert (await reader.in_session()).session_id != session
    assert reader.codes == {0, NOT_FOUND}


async def test_a_session_that_went_on_without_the_reader_is_followed_by_another(reader: Reader, brokers: str) -> None:
    async def is_refused() -> bool:
        latest = await reader.in_session()
        await interfere(brokers, latest.session_id, latest.session_epoch + 1)
        await reader.poll()
        return WRONG_EPOCH in reader.codes

    await reader.send(0)
    await eventually(is_refused)
    await reader.send(1, 3)
    await reader.has_all()


@pytest.mark.parametrize("count", [1, 3])
async def test_lost_replies_are_fetched_again(reader: Reader, proxy: WireProxy, count: int) -> None:
    await reader.in_session()
    lost = proxy.on(Api.FETCH, lose_reply, client="reader-logs", times=count)
    await reader.send(0, 1)
    await reader.has_all()
    await lost.was_hit(count)
    await reader.send(0, 1)
    await reader.has_all()


async def test_a_paused_partition_is_forgotten_until_it_goes_on(reader: Reader) -> None:
    await reader.in_session()
    assert reader.following is not None
    consumer, paused = reader.following._consumer, KafkaPartition(reader.topic, 1)
    consumer.pause(paused)

    async def is_forgotten() -> bool:
        await reader.poll()
        return any(numbers == [1] for request in reader.asked for _, numbers, _ in request.forgotten_topics_data)

    await eventually(is_forgotten)
    await reader.send(1, 2)
    await reader.has(1)
    assert reader.got == {b"1": 1}
    consumer.resume(paused)
    await reader.has_all()


@pytest.mark.parametrize("is_created_again", [False, True])
async def test_a_topic_that_is_deleted_is_noticed(reader: Reader, brokers: str, is_created_again: bool) -> None:
    await reader.send(*range(COUNT))
    await reader.has_all()
    await reader.in_session()
    await delete(brokers, reader.topic)
    if is_created_again:
        await make_topics(brokers, reader.topic, partitions=COUNT)

    async def is_noticed() -> bool:
        try:
            await reader.poll()
        except ReplacedLogError:
            return True
        return False

    await eventually(is_noticed)
    assert reader.got == reader.sent


@pytest.mark.nightly
async def test_leaders_that_move_and_brokers_that_come_back(tmp_path: Path) -> None:
    with await asyncio.to_thread(Cluster.up, tmp_path / "kafka", brokers=3) as cluster:
        reader = Reader(unique("log"), cluster.bootstrap)
        await make_topics(cluster.bootstrap, reader.topic, partitions=COUNT, replicas=3)
        # First: a broker that has only just heard of the topic may not know its partitions yet.
        await reader.send(*range(COUNT))
        await reader.open(cluster.bootstrap)
        assert reader.following is not None
        try:
            await reader.has_all()
            for broker in cluster.broker_ids:
                await asyncio.to_thread(cluster.kill, broker)
                await reader.send(*range(COUNT))
                await reader.has_all()
                await asyncio.to_thread(cluster.start, broker)
                await reader.send(*range(COUNT))
                await reader.has_all()
        finally:
            await reader.following.close()
