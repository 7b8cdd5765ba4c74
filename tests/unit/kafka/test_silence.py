"""Since when brokers haven't answered: what begins a silence, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest, LeaveGroupRequest

from actors._kafka.client import Client, own
from actors._kafka.consume.silence import Silence
from actors._kafka.outage import Outages
from actors.ports import TopicPartition

NOT_LEADER, NOT_COORDINATOR, REBALANCING, DENIED = 6, 16, 27, 30
PARTITIONS = [TopicPartition("in", 0), TopicPartition("in", 1)]


class Answers(AIOKafkaClient):
    """Brokers, of which `answer` is what the next request comes to."""

    answer: Any = None

    async def send(self, *_: Any, **__: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        if isinstance(self.answer, asyncio.Event):
            await self.answer.wait()
        return self.answer


class Brokers(Client, Answers):
    """The client of a consumer."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.silence = Silence(lambda: self.now_s)
        own(self, Outages()).hooks = (self.silence,)

    async def fetch(self, *codes: int, error: BaseException | None = None) -> None:
        """Fetch both partitions, each answered with a code, or none because of an error."""
        topics = [("in", list(enumerate(codes)))]
        self.answer = error or SimpleNamespace(topics=topics)
        request = FetchRequest(500, 1, 1000, 1, [("in", [(0, 0, 1000), (1, 0, 1000)])])
        with contextlib.suppress(KafkaConnectionError):
            await self.send(1, request)

    async def heartbeat(self, answer: int | BaseException, request: Any = None) -> None:
        """Send a heartbeat, or another request, to the coordinator."""
        self.answer = answer if isinstance(answer, BaseException) else SimpleNamespace(error_code=answer)
        with contextlib.suppress(KafkaConnectionError):
            await self.send(1, request or HeartbeatRequest("group", 1, "member"), group=ConnectionGroup.COORDINATION)

    def leaders_s(self) -> list[float]:
        return [self.silence.leader_s(partition) for partition in PARTITIONS]


async def test_a_leader_is_silent_from_the_first_fetch_without_an_answer() -> None:
    brokers = Brokers()
    await brokers.fetch(0, 0)
    for _ in range(3):
        brokers.now_s += 5
        await brokers.fetch(error=KafkaConnectionError())
    assert brokers.leaders_s() == [10, 10]
    await brokers.fetch(0, NOT_LEADER)
    assert brokers.leaders_s() == [0, 10]
    await brokers.fetch(0, 0)
    assert brokers.leaders_s() == [0, 0]


async def test_a_leader_that_has_no_news_in_a_session_is_not_silent() -> None:
    brokers = Brokers()
    await brokers.fetch(error=KafkaConnectionError())
    brokers.now_s += 5
    await brokers.fetch(0)
    assert brokers.leaders_s() == [0, 0]


async def test_what_is_not_fetched_is_not_missed() -> None:
    brokers = Brokers()
    await brokers.fetch(error=KafkaConnectionError())
    brokers.now_s += 5
    brokers.silence.forget(PARTITIONS[0])
    assert brokers.leaders_s() == [0, 5]


async def test_a_fetch_that_a_rebalance_gives_up_says_nothing_about_the_broker() -> None:
    brokers = Brokers()
    brokers.answer = asyncio.Event()
    request = FetchRequest(500, 1, 1000, 1, [("in", [(0, 0, 1000)])])
    task = asyncio.create_task(brokers.send(1, request))
    await asyncio.sleep(0)
    brokers.now_s += 5
    assert brokers.leaders_s() == [5, 0]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert brokers.leaders_s() == [0, 0]


async def test_the_group_is_silent_until_its_coordinator_answers() -> None:
    brokers = Brokers()
    await brokers.heartbeat(0)
    await brokers.heartbeat(KafkaConnectionError())
    brokers.now_s += 5
    for code in (NOT_COORDINATOR, DENIED):
        await brokers.heartbeat(code)
        assert brokers.silence.group_s == 5
    await brokers.heartbeat(REBALANCING)
    assert brokers.silence.group_s == 0


async def test_only_heartbeats_begin_the_groups_silence() -> None:
    brokers = Brokers()
    await brokers.heartbeat(KafkaConnectionError(), LeaveGroupRequest("group", "member"))
    brokers.now_s += 5
    assert brokers.silence.group_s == 0
