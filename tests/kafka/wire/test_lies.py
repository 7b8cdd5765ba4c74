"""A broker that says what isn't so: what can be noticed for little ends the fetch or the worker, and is never handled.

The brokers are trusted: one that makes up whole batches with right checksums, or leaves records out, isn't noticed.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol import offset
from aiokafka.protocol.types import UnsignedVarInt32

from actors._core.task.lifecycle import State
from actors._kafka.protocol import FetchResponse_v13
from actors.errors import BrokerUnavailableError
from tests.kafka.helpers import eventually
from tests.kafka.wire.node import Node
from tests.kafka.wire.proxy import Action, Api, Exchange
from tests.kafka.wire.world import World

Partition = list[Any]
"""Number, error, high watermark, …, records."""

FLEXIBLE = (FetchResponse_v13,)
"""Responses with tagged fields behind their header, each topic and each partition."""


def lying(
    response: Any, lie: Callable[[Partition], None], topic_lie: Callable[[Any], Any] = lambda topic: topic
) -> Action:
    """Have each partition of an answer changed, and what names each topic."""
    tags = 1 if response in FLEXIBLE else 0

    async def action(exchange: Exchange) -> bytes:
        assert exchange.version == response.API_VERSION
        reply = await exchange.ask()
        header = 4 + tags
        said = response.decode(BytesIO(reply[header:]))
        topics = []
        for topic, partitions, *behind in said.topics:
            changed = []
            for partition in partitions:
                fields, last = list(partition[: len(partition) - tags]), partition[len(partition) - tags :]
                lie(fields)
                changed.append((*fields, *last))
            topics.append((topic_lie(topic), changed, *behind))
        said.topics = topics
        return reply[:header] + said.encode()

    return action


def about_fetches(lie: Callable[[Partition], None]) -> Action:
    return lying(FetchResponse_v13, lie)


class Once:
    """A lie about the first records that come."""

    def __init__(self, lie: Callable[[Partition], None]) -> None:
        self._lie = lie
        self.is_told = False

    def __call__(self, partition: Partition) -> None:
        if partition[-1] and not self.is_told:
            self.is_told = True
            self._lie(partition)


class Replays:
    """Puts what was fetched before in front of what is fetched, and behind it."""

    def __init__(self) -> None:
        self.seen = b""

    def __call__(self, partition: Partition) -> None:
        fresh = partition[-1] or b""
        partition[-1] = self.seen + fresh + fresh + self.seen
        self.seen += fresh


def far_behind(partition: Partition) -> None:
    partition[2] = 0


def of_a_length(length: int) -> Callable[[Partition], None]:
    def lie(partition: Partition) -> None:
        raw = bytearray(partition[-1] or b"")
        if len(raw) >= 12:
            struct.pack_into(">i", raw, 8, length)
        partition[-1] = bytes(raw)

    return lie


def torn(partition: Partition) -> None:
    partition[-1] = (partition[-1] or b"")[:9]


def damaged(partition: Partition) -> None:
    raw = bytearray(partition[-1] or b"")
    if raw:
        raw[-1] ^= 0xFF
    partition[-1] = bytes(raw)


async def huge(exchange: Exchange) -> bytes:
    """An array of two thousand million topics, of which none follows."""
    reply = await exchange.ask()
    assert exchange.version == FetchResponse_v13.API_VERSION
    before_topics = 4 + 1 + 4 + 2 + 4  # correlation, tags, throttle time, error, session
    return reply[:before_topics] + UnsignedVarInt32.encode(2**31 - 1)


async def test_what_was_handled_is_not_handled_again_however_often_it_comes(world: World) -> None:
    """Batches twice, in the wrong order and from before the position, watermarks that go back, broken answers."""
    async with Node(world, "a") as node:
        await world.add_inputs(2)
        await node.did(2)
        replays = about_fetches(Replays())
        world.proxy.on(Api.FETCH, replays, client="a-actors", times=None)
        for count in range(3, 8):
            await world.add_inputs(1)
            await node.did(count)
        for lie in map(
            Once, [far_behind, of_a_length(-1), of_a_length(0), of_a_length(50), of_a_length(10_000), torn, damaged]
        ):
            world.proxy.calm()
            world.proxy.on(Api.FETCH, about_fetches(lie), client="a-actors", times=None)
            # a fetch that was under way brings the first input as it is
            for _ in range(5):
                await world.add_inputs(1)
                await node.did(len(world.inputs))
                if lie.is_told:
                    break
            assert lie.is_told
        world.proxy.calm()
        rule = world.proxy.on(Api.FETCH, huge, client="a-actors")
        await rule.was_hit()
        await world.add_inputs(1)
        await node.did(len(world.inputs))
        assert node.failures == []
    assert await world.damage() == []


async def test_an_answer_about_a_partition_that_was_not_asked_for_is_passed_over(world: World) -> None:
    def of_another(partition: Partition) -> None:
        partition[0] = 7

    await world.add_inputs(2)
    async with Node(world, "a") as node:
        await node.did(2)
        rule = world.proxy.on(Api.FETCH, about_fetches(of_another), client="a-actors")
        await world.add_inputs(1)
        await rule.was_hit()
        await node.did(3)
        assert node.failures == []
    assert await world.damage() == []


async def test_an_answer_about_a_topic_that_was_not_asked_for_ends_the_worker(world: World) -> None:
    """aiokafka's fetches end with it, and nothing else would say so."""
    await world.add_inputs(2)
    async with Node(world, "a") as node:
        await node.did(2)
        lie = lying(FetchResponse_v13, lambda partition: None, lambda topic: uuid.uuid4())
        world.proxy.on(Api.FETCH, lie, client="a-actors")
        await world.add_inputs(1)
        await eventually(lambda: node.failures, deadline_s=60.0, what=lambda: f"the worker noticed: {node.task!r}")
        assert isinstance(node.failures[0], BrokerUnavailableError)
        world.proxy.calm()
    async with Node(world, "b") as second:
        await second.did(3)
    assert await world.damage() == []


@pytest.mark.parametrize("topic", ["changelog", "input"])
async def test_an_end_that_went_back_stops_the_partition(world: World, topic: str) -> None:
    """As after an unclean leader election, which the worker can't tell from a lie."""
    await world.add_inputs(4)
    async with Node(world, "a") as node:
        await node.did(4)

        def short(partition: Partition) -> None:
            partition[-1] = min(partition[-1], 1)

        name = getattr(world, topic).encode()
        rule = world.proxy.on(
            Api.LIST_OFFSETS, lying(offset.OffsetResponse_v3, short), client="a-control", containing=name, times=None
        )
        assert node.task is not None
        node.task.reinitialize("a test wants it to")
        await rule.was_hit()
        await eventually(
            lambda: node.task is not None and node.task.state in (State.REFUSED, State.HALTED),
            deadline_s=60.0,
            what=lambda: f"the partition stands still: {node.task!r}",
        )
        assert node.failures == []
    assert await world.committed() == 4
