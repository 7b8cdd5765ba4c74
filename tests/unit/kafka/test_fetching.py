"""A fetch of many partitions gathers records after one that brought few, and only then."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.consume import fetching
from actors._kafka.consume.fetching import GATHER_S, MOST_GATHER_S, TRICKLE_BYTES, FetchesById
from actors._kafka.protocol import FetchRequest_v13

TOPIC_ID = uuid.uuid4()


class Broker:
    """Stands for the client: answers each fetch with as many bytes of the first partition."""

    def __init__(self) -> None:
        self.bytes = 0

    async def send(self, node: int, request: Any) -> Any:
        """Answer in version 13."""
        partition = (0, 0, 0, 0, 0, None, -1, bytes(self.bytes), {})
        return SimpleNamespace(API_VERSION=FetchRequest_v13.API_VERSION, topics=[(TOPIC_ID, [partition], {})])


@pytest.mark.parametrize("count", [4, 256, 10_000])
async def test_what_trickles_in_is_gathered(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    broker, slept = Broker(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(fetching, "asyncio", SimpleNamespace(sleep=sleep))
    client: Any = broker
    fetches = FetchesById(client, lambda *_: None)
    for number in range(count):
        fetches.set_id(KafkaPartition("in", number), str(TOPIC_ID))
    request = FetchRequest(500, 1, 1 << 20, 1, [("in", [(number, 0, 1 << 20) for number in range(count)])])
    for size in (0, 100, TRICKLE_BYTES * count, 100, 0):
        broker.bytes = size
        await client.send(1, request)
    assert slept == [min(MOST_GATHER_S, GATHER_S * count)] * 2
