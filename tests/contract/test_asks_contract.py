"""What `actors.ports.Requests` promises, on the simulated cluster and on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from actors._kafka.requests import KafkaRequests
from actors.errors import AskClosedError, UnknownTopicError
from actors.ports import ActorReply, ActorRequest, CommitBatch, Committed, LogRecord, Output, Requests, TopicPartition
from actors.runtime.requests.requests import ASK, REPLY_TO, STATUS
from actors.testing.fakes.requests import FakeRequests
from tests.contract.worlds import FakeWorld, RealWorld, World
from tests.kafka.helpers import eventually, unique

LONG_S = 30.0
SHORT_S = 1.5
"""Enough to send a question on a machine that has much to do."""


class Desk:
    """A world, an input, a topic of answers, and somebody who answers by hand."""

    def __init__(self, world: World, make: Callable[[], Requests], inbox: str) -> None:
        self.world = world
        self.make = make
        self.inbox = inbox
        self.asks = make()
        self._log = world.task_log("answering")
        self._answers = 0

    def ask(self, name: str, timeout_s: float = LONG_S, *, asks: Requests | None = None) -> asyncio.Task[ActorReply]:
        question = ActorRequest(name, self.inbox, 0, b"key", name.encode(), [("h", b"1")])
        return asyncio.create_task((asks or self.asks).ask(question, timeout_s))

    async def questions(self, count: int) -> list[LogRecord]:
        """What is in the input, as soon as it is so many."""
        source, found = TopicPartition(self.inbox, 0), []

        async def there() -> bool:
            return (await self.world.logs.bounds(source)).end >= count

        await eventually(there)
        async for records, _ in self.world.logs.read(source, 0, count):
            found += records
        return found

    async def answer(self, asked: LogRecord, value: bytes | None, *, key: bytes | None = None, id: str = "") -> None:
        """Commit an answer to a question, or to what is said otherwise."""
        headers = dict(asked.headers)
        topic, partition, asker = headers[REPLY_TO].decode().split("/")
        status = [(ASK, id.encode() or headers[ASK]), (STATUS, b"ok")]
        if not self._answers:
            await self._log.fence()
        self._answers += 1
        batch = CommitBatch(
            0,
            {TopicPartition(self.inbox, 0): Committed(self._answers, f"1;{self._answers};x")},
            outputs=[Output(topic, int(partition), key or asker.encode(), value, status, None)],
        )
        await self._log.commit(batch)


@pytest.fixture(params=["fake", "real"])
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    inbox, replies = unique("inbox"), unique("replies")
    opened: list[Any] = []
    world: FakeWorld | RealWorld
    make: Callable[[], Requests]
    if request.param == "fake":
        fake = world = FakeWorld()
        make = lambda: FakeRequests(fake.cluster, fake.network, topic=replies)  # noqa: E731
    else:
        real = world = await RealWorld.open(request.getfixturevalue("brokers"))

        def make() -> Requests:
            opened.append(KafkaRequests(real.connection, group="none", topic=replies, replication_factor=1))
            return opened[-1]

    await world.make_topic(inbox)
    await world.make_topic(replies)
    try:
        yield Desk(world, make, inbox)
    finally:
        for asks in opened:
            await asks.close()
            await asks.close()
        await world.close()


async def test_a_question_goes_as_it_is_and_its_answer_comes(desk: Desk) -> None:
    asked = desk.ask("q1")
    [question] = await desk.questions(1)
    headers = dict(question.headers)
    assert (question.key, question.value, headers["h"], headers[ASK]) == (b"key", b"q1", b"1", b"q1")
    await desk.answer(question, b"yes")
    assert await asked == ActorReply("ok", b"yes")


async def test_answers_come_in_any_order_and_null_is_one(desk: Desk) -> None:
    asked = [desk.ask(name) for name in ("q1", "q2", "q3")]
    questions = {record.value: record for record in await desk.questions(3)}
    for name in (b"q3", b"q1", b"q2"):
        await desk.answer(questions[name], None if name == b"q2" else name)
    assert await asyncio.gather(*asked) == [ActorReply("ok", b"q1"), ActorReply("ok", None), ActorReply("ok", b"q3")]


async def test_the_first_answer_counts_and_those_of_others_do_not(desk: Desk) -> None:
    asked = desk.ask("q1")
    [question] = await desk.questions(1)
    await desk.answer(question, b"not for us", key=b"somebody")
    await desk.answer(question, b"to nothing we asked", id="q0")
    await desk.answer(question, b"first")
    await desk.answer(question, b"second")
    assert await asked == ActorReply("ok", b"first")


async def test_a_late_answer_is_not_taken_for_another_and_the_same_question_takes_it(desk: Desk) -> None:
    with pytest.raises(TimeoutError):
        await desk.ask("q1", SHORT_S)
    again, other = desk.ask("q1"), desk.ask("q2")
    records = await desk.questions(3)
    first, _, second = sorted(records, key=lambda record: (record.value, record.offset))
    await desk.answer(first, b"late")
    await desk.answer(second, b"other")
    assert await again == ActorReply("ok", b"late")
    assert await other == ActorReply("ok", b"other")


async def test_an_asker_begins_behind_what_was_answered_before_it(desk: Desk) -> None:
    asked = desk.ask("q1")
    [question] = await desk.questions(1)
    await desk.answer(question, b"old")
    await asked
    successor = desk.make()
    again = desk.ask("q1", asks=successor)
    question = (await desk.questions(2))[1]
    await desk.answer(question, b"new")
    assert await again == ActorReply("ok", b"new")


async def test_who_gives_up_ends_nobody_elses_question(desk: Desk) -> None:
    hasty, asked = desk.ask("q1"), desk.ask("q2")
    await asyncio.sleep(0)
    hasty.cancel()
    question = next(record for record in reversed(await desk.questions(1)) if record.value == b"q2")
    await desk.answer(question, b"yes")
    assert await asked == ActorReply("ok", b"yes")
    with pytest.raises(asyncio.CancelledError):
        await hasty


async def test_who_waits_is_told_when_the_client_is_closed(brokers: str) -> None:
    world = await RealWorld.open(brokers)
    asks = KafkaRequests(world.connection, group="none", topic=unique("replies"), replication_factor=1)
    inbox = unique("inbox")
    with pytest.raises(UnknownTopicError, match=inbox):
        await asks.partitions_of(inbox)
    await world.make_topic(inbox)
    assert await asks.partitions_of(inbox) == 1
    desk = Desk(world, lambda: asks, inbox)
    asked = desk.ask("q1")
    [question] = await desk.questions(1)
    topic, partition, _ = dict(question.headers)[REPLY_TO].decode().split("/")
    # It made the topic by itself.
    assert 0 <= int(partition) < (await world.group.topics([topic]))[topic].partitions == 8
    await asks.close()
    with pytest.raises(AskClosedError, match="was closed"):
        await asked
    with pytest.raises(AskClosedError, match="was closed"):
        await desk.ask("q2")
    await world.close()
