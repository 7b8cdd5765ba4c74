"""Fetches of several partitions share a session with the broker, which always knows what is fetched next.

A fetch of many partitions gathers records after one that brought few, and only then.
"""

from __future__ import annotations

import asyncio
import io
import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition as KafkaPartition
from hypothesis import given
from hypothesis import strategies as st

from actors._kafka import client
from actors._kafka.consume import fetching
from actors._kafka.consume.fetching import FEW, GATHER_S, MOST_GATHER_S, TRICKLE_BYTES, FetchesById
from actors._kafka.outage import Outages
from actors._kafka.protocol import FetchRequest_v13, FetchResponse_v13

IDS = uuid.UUID(int=1), uuid.UUID(int=2)
NOT_FOUND, WRONG_EPOCH, NO_TOPIC = 70, 71, 100
LAST_EPOCH = 2**31 - 1
Wanted = dict[tuple[uuid.UUID, int], int]
"""The offsets that are fetched next."""


@dataclass
class Session:
    """What the broker remembers: the offsets, and the ends that it told."""

    number: int = 0
    epoch: int = 0
    wanted: Wanted = field(default_factory=dict)
    said: Wanted = field(default_factory=dict)


class Broker(AIOKafkaClient):
    """Stands for the client: keeps sessions as a broker does (KIP-227), and records what each fetch amounts to."""

    def __init__(self) -> None:
        self.sessions: dict[int, Session] = {}
        self.ends: Wanted = {}
        self.codes: dict[tuple[uuid.UUID, int], int] = {}
        self.asked: list[Any] = []
        self.fetched: list[Wanted] = []
        self.refusal = 0
        self.loses = False
        self.hangs = False
        self.has_slots = True
        self._made = 0

    async def send(self, node: int, request: Any, **_: Any) -> Any:
        """Answer in version 13."""
        if self.hangs:
            await asyncio.Event().wait()
        sent = request.prepare({1: (4, 13)})
        asked = FetchRequest_v13.decode(io.BytesIO(sent.encode()))
        self.asked.append(asked)
        code, session = self._session(asked)
        topics = [] if code else self._news(asked, session)
        if self.loses:
            raise KafkaConnectionError("lost")
        return FetchResponse_v13.decode(
            io.BytesIO(FetchResponse_v13(0, code, session.number, topics, {}).encode()),
        )

    def _session(self, asked: Any) -> tuple[int, Session]:
        found = self.sessions.get(asked.session_id)
        if self.refusal:
            return self.refusal, Session()
        if asked.session_epoch > 0:
            if found is None:
                return NOT_FOUND, Session()
            return 0 if asked.session_epoch == found.epoch else WRONG_EPOCH, found
        self.sessions.pop(asked.session_id, None)
        made = Session()
        if asked.session_epoch == 0 and self.has_slots:
            self._made += 1
            made = self.sessions[self._made] = Session(self._made)
        return 0, made

    def _news(self, asked: Any, session: Session) -> list[Any]:
        session.epoch = session.epoch % LAST_EPOCH + 1
        session.wanted |= {(topic_id, part[0]): part[2] for topic_id, parts, _ in asked.topics for part in parts}
        for topic_id, numbers, _ in asked.forgotten_topics_data:
            for number in numbers:
                session.said.pop((topic_id, number), None)
                del session.wanted[topic_id, number]
        self.fetched.append(dict(session.wanted))
        found: list[Any] = []
        for (topic_id, number), offset in session.wanted.items():
            part = topic_id, number
            end, code = self.ends.get(part, 0), self.codes.get(part, 0)
            records = b"x" * max(0, end - offset)
            if code or records or session.said.get(part) != end:
                found.append((topic_id, [(number, code, end, end, 0, None, -1, records, {})], {}))
            session.said[part] = -1 if code else end
        return found


class Client(client.Client, Broker):
    """The consumer's client."""


class Consumer:
    """Fetches as aiokafka does."""

    def __init__(self) -> None:
        self.broker = Client()
        self.lost: list[int] = []
        self.client: Any = client.own(self.broker, Outages())
        self.fetches = FetchesById(lambda partition, _: self.lost.append(partition.partition))
        self.client.hooks = (self.fetches,)
        self.ids: dict[int, uuid.UUID] = {}

    def start(self, *numbers: int, topic_id: uuid.UUID = IDS[0]) -> None:
        """Begin to fetch partitions."""
        for number in numbers:
            self.ids[number] = topic_id
            self.fetches.set_id(KafkaPartition("in", number), str(topic_id))

    async def fetch(self, offsets: dict[int, int]) -> dict[int, int]:
        """Fetch partitions from these offsets; return how many bytes came of which."""
        request = FetchRequest(500, 1, 1_000, 1, [("in", [(number, offset, 10) for number, offset in offsets.items()])])
        response = await self.client.send(0, request)
        return {part[0]: len(part[-1]) for _, parts in response.topics for part in parts}

    def amounts_to(self, offsets: dict[int, int]) -> Wanted:
        """Return what the broker should read for a fetch of these offsets."""
        return {(self.ids[number], number): offset for number, offset in offsets.items()}


@pytest.fixture
def consumer() -> Consumer:
    made = Consumer()
    made.start(0, 1, 2)
    return made


def named(asked: Any) -> tuple[list[int], list[int]]:
    """Return the partitions that a request names and those that it forgets."""
    return (
        sorted(part[0] for _, parts, _ in asked.topics for part in parts),
        sorted(number for _, numbers, _ in asked.forgotten_topics_data for number in numbers),
    )


async def test_a_fetch_names_what_changed_since_the_last_one(consumer: Consumer) -> None:
    broker = consumer.broker
    broker.ends = {(IDS[0], 1): 3}
    assert await consumer.fetch({0: 0, 1: 0, 2: 0}) == {0: 0, 1: 3, 2: 0}
    assert await consumer.fetch({0: 0, 1: 3, 2: 0}) == {}
    assert await consumer.fetch({0: 0, 2: 0}) == {}
    assert await consumer.fetch({0: 0, 1: 2, 2: 0}) == {1: 1}
    assert [named(asked) for asked in broker.asked] == [([0, 1, 2], []), ([1], []), ([], [1]), ([1], [])]
    assert [(asked.session_id, asked.session_epoch) for asked in broker.asked] == [(0, 0), (1, 1), (1, 2), (1, 3)]


async def test_a_single_partition_has_no_session(consumer: Consumer) -> None:
    await consumer.fetch({0: 0})
    await consumer.fetch({0: 1})
    assert [(asked.session_id, asked.session_epoch) for asked in consumer.broker.asked] == [(0, -1)] * 2


async def test_a_broker_without_room_for_a_session_gets_all_partitions(consumer: Consumer) -> None:
    consumer.broker.has_slots = False
    for _ in range(2):
        await consumer.fetch({0: 0, 1: 0})
    assert [(named(asked)[0], asked.session_epoch) for asked in consumer.broker.asked] == [([0, 1], 0)] * 2


@pytest.mark.parametrize("code", [NOT_FOUND, WRONG_EPOCH, 106])
async def test_a_refused_session_is_followed_by_another(consumer: Consumer, code: int) -> None:
    await consumer.fetch({0: 0, 1: 0})
    consumer.broker.refusal = code
    assert await consumer.fetch({0: 0, 1: 0}) == {}
    consumer.broker.refusal = 0
    assert await consumer.fetch({0: 0, 1: 0}) == {0: 0, 1: 0}
    assert list(consumer.broker.sessions) == [2]


async def test_a_refusal_without_a_session_is_an_error_so_that_the_consumer_waits(consumer: Consumer) -> None:
    consumer.broker.refusal = 56
    with pytest.raises(KafkaError, match="56"):
        await consumer.fetch({0: 0, 1: 0})


async def test_a_lost_answer_ends_the_session(consumer: Consumer) -> None:
    broker = consumer.broker
    await consumer.fetch({0: 0, 1: 0})
    broker.ends, broker.loses = {(IDS[0], 1): 3}, True
    with pytest.raises(KafkaConnectionError):
        await consumer.fetch({0: 0, 1: 0})
    broker.loses = False
    assert await consumer.fetch({0: 0, 1: 0}) == {0: 0, 1: 3}
    assert list(broker.sessions) == [2]


async def test_a_cancelled_fetch_ends_the_session(consumer: Consumer) -> None:
    await consumer.fetch({0: 0, 1: 0})
    consumer.broker.hangs = True
    fetch = asyncio.create_task(consumer.fetch({0: 0, 1: 0}))
    await asyncio.sleep(0)
    fetch.cancel()
    await asyncio.wait([fetch])
    consumer.broker.hangs = False
    assert await consumer.fetch({0: 0, 1: 0}) == {0: 0, 1: 0}


async def test_a_partition_that_starts_again_gets_its_end_though_that_is_no_news(consumer: Consumer) -> None:
    await consumer.fetch({0: 0, 1: 0})
    assert await consumer.fetch({0: 0, 1: 0}) == {}
    consumer.start(1)
    assert 1 in await consumer.fetch({0: 0, 1: 0})


async def test_a_start_during_a_fetch_isnt_lost(consumer: Consumer) -> None:
    await consumer.fetch({0: 0, 1: 0})

    class Start(client.Hook):
        def after(self, node: Any, request: Any, response: Any) -> Any:
            consumer.start(1)
            return response

    consumer.client.hooks = (consumer.fetches, Start())
    await consumer.fetch({0: 0, 1: 0})
    consumer.client.hooks = (consumer.fetches,)
    assert 1 in await consumer.fetch({0: 0, 1: 0})


async def test_an_error_of_a_partition_ends_the_session(consumer: Consumer) -> None:
    """In a session a broker says of a deleted topic that the name is unknown, otherwise that the id is."""
    await consumer.fetch({0: 0, 1: 0})
    consumer.broker.codes = {(IDS[0], 1): 3}
    await consumer.fetch({0: 0, 1: 0})
    consumer.broker.codes = {(IDS[0], 1): NO_TOPIC}
    await consumer.fetch({0: 0, 1: 0})
    assert named(consumer.broker.asked[-1]) == ([0, 1], [])
    assert consumer.lost == [1]


async def test_epochs_begin_again_at_one(consumer: Consumer) -> None:
    await consumer.fetch({0: 0, 1: 0})
    [session] = consumer.broker.sessions.values()
    session.epoch = LAST_EPOCH
    consumer.fetches._sessions[0] = consumer.fetches._sessions[0]._replace(epoch=LAST_EPOCH)
    for _ in range(2):
        await consumer.fetch({0: 0, 1: 0})
    assert [asked.session_epoch for asked in consumer.broker.asked] == [0, LAST_EPOCH, 1]


@pytest.mark.parametrize(("count", "times"), [(4, 0), (FEW, 2), (256, 2), (10_000, 2)])
async def test_what_trickles_in_from_many_partitions_is_gathered(
    monkeypatch: pytest.MonkeyPatch, consumer: Consumer, count: int, times: int
) -> None:
    """A fetch of few partitions costs the broker little."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(fetching, "asyncio", SimpleNamespace(sleep=sleep))
    consumer.start(*range(count))
    for size in (0, 100, TRICKLE_BYTES * count, 100, 0):
        consumer.broker.ends = {(IDS[0], 0): size}
        await consumer.fetch(dict.fromkeys(range(count), 0))
    assert slept == [min(MOST_GATHER_S, GATHER_S * count)] * times


OFFSETS = st.dictionaries(st.integers(0, 4), st.integers(0, 3), min_size=1)
EVENTS = st.sampled_from(["", "", "", "evict", "steal", "lose", "grow", "error", "start", "create"])


@given(st.lists(st.tuples(EVENTS, st.integers(0, 4), OFFSETS), max_size=30))
def test_whatever_happens_the_broker_reads_what_is_fetched(steps: list[tuple[str, int, dict[int, int]]]) -> None:
    asyncio.run(_read(steps))


async def _read(steps: list[tuple[str, int, dict[int, int]]]) -> None:
    consumer = Consumer()
    consumer.start(*range(5))
    for event, number, offsets in steps:
        _happen(consumer, event, number)
        broker, count = consumer.broker, len(consumer.broker.fetched)
        try:
            came = await consumer.fetch(offsets)
            if len(broker.fetched) == count:
                # The session was refused.
                came = await consumer.fetch(offsets)
        except KafkaConnectionError:
            continue
        assert broker.fetched[-1] == consumer.amounts_to(offsets)
        for fetched, offset in offsets.items():
            behind = broker.ends.get((consumer.ids[fetched], fetched), 0) - offset
            assert came.get(fetched, 0) == max(0, behind)


def _happen(consumer: Consumer, event: str, number: int) -> None:
    broker, part = consumer.broker, (consumer.ids[number], number)
    broker.loses, broker.codes = event == "lose", {part: 6} if event == "error" else {}
    if event == "evict":
        broker.sessions.clear()
    elif event == "steal":
        for session in broker.sessions.values():
            session.epoch += 1
    elif event == "grow":
        broker.ends[part] = broker.ends.get(part, 0) + 1
    elif event == "start":
        consumer.start(number)
    elif event == "create":
        consumer.start(*range(5), topic_id=IDS[consumer.ids[0] == IDS[0]])
