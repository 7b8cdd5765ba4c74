"""What `actors.ports.TopicLogs` promises to views, on the simulated cluster and on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from actors.errors import RestoreError
from actors.ports import Following, TopicLogs, TopicPartition
from tests.contract.worlds import World
from tests.kafka.helpers import unique

DEADLINE_S = 20.0


@pytest.fixture
async def logs(world: World) -> AsyncIterator[TopicLogs]:
    opened = await world.topic_logs()
    yield opened
    await opened.close()


@contextlib.asynccontextmanager
async def following(logs: TopicLogs, topic: str, offset: int = 0) -> AsyncIterator[Following]:
    opened = await logs.follow({TopicPartition(topic, 0): offset})
    try:
        yield opened
    finally:
        await opened.close()
        await opened.close()


async def follow_to(following: Following, topic: str, end: int) -> list[tuple[int, bytes | None]]:
    """Poll until `end` is reached; each answer moves on, and has nothing of what came before."""
    found: list[tuple[int, bytes | None]] = []
    reached = -1
    async with asyncio.timeout(DEADLINE_S):
        while reached < end:
            for source, (records, next_offset) in (await following.poll(0.1)).items():
                assert source == TopicPartition(topic, 0)
                assert next_offset > reached
                assert all(reached <= record.offset < next_offset for record in records)
                found += [(record.offset, record.value) for record in records]
                reached = next_offset
    return found


async def test_facts_of_a_topic(world: World, logs: TopicLogs) -> None:
    plain, compacted = unique("plain"), unique("compacted")
    await world.make_topic(plain)
    await world.make_topic(compacted, **{"cleanup.policy": "compact"})
    for name, policy in ((plain, "delete"), (compacted, "compact")):
        facts = await logs.facts(name)
        assert facts is not None
        assert (facts.topic, facts.partitions, facts.cleanup_policy) == (name, 1, policy)
        assert facts.topic_id
        assert facts.delete_retention_ms > 0
        assert facts.max_record_bytes > 1_000
        assert await logs.facts(name) == facts
    assert (await logs.facts(plain)).topic_id != (await logs.facts(compacted)).topic_id  # type: ignore[union-attr]
    assert await logs.facts(unique("none")) is None


async def test_it_follows_what_is_there_and_what_comes(world: World, logs: TopicLogs, topic: str) -> None:
    for number in range(5):
        await world.send(topic, b"k", b"%d" % number)
    async with following(logs, topic, 1) as reading:
        assert await follow_to(reading, topic, 5) == [(number, b"%d" % number) for number in range(1, 5)]
        assert not await reading.poll(0.1)
        await world.send(topic, b"k", None)
        assert await follow_to(reading, topic, 6) == [(5, None)]


async def test_only_what_is_committed_and_past_what_isnt(world: World, logs: TopicLogs, topic: str) -> None:
    await world.send(topic, b"k", b"before")
    aborted = await world.open_transaction("other", topic)
    await world.send(topic, b"k", b"behind")
    async with following(logs, topic) as reading:
        assert await follow_to(reading, topic, 1) == [(0, b"before")]
        assert not await reading.poll(0.1)
        await aborted.end(commit=False)
        # The position goes past the marker too, or nobody would know that all is read.
        assert await follow_to(reading, topic, 4) == [(2, b"behind")]


async def test_records_that_are_gone_are_an_error(world: World, logs: TopicLogs, topic: str) -> None:
    for number in range(4):
        await world.send(topic, b"k", b"%d" % number)
    await world.delete_before(topic, 2)
    async with following(logs, topic, 1) as reading:
        with pytest.raises(RestoreError, match="doesn't have"):
            await follow_to(reading, topic, 4)


async def test_it_reads_a_stretch_too(world: World, logs: TopicLogs, topic: str) -> None:
    await world.send(topic, b"k", b"v")
    assert [end async for _, end in logs.read(TopicPartition(topic, 0), 0, 1)] == [1]
    assert (await logs.bounds(TopicPartition(topic, 0))).end == 1
