"""Nexmark's queries behind a backlog on a real broker, with two workers of which one is killed on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from actors._core.partitioner import partition_for
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique
from tests.nexmark.events import Events, generate
from tests.nexmark.oracle import Oracle

PARTITIONS = 4
COUNT = 5_000
KEYS = {"persons": "id", "auctions": "id", "bids": "bidder"}
FURTHER = {"q9": ["offers"]}
"""Topics that a query's actors write and read."""


@pytest.fixture(autouse=True)
def _workers_end() -> Iterator[None]:
    count = WorkerProcess.count_started()
    yield
    WorkerProcess.kill_since(count)


async def post(brokers: str, prefix: str, events: Events) -> None:
    async with producing(brokers) as producer:
        acks = []
        for topic, key_name in KEYS.items():
            for event in getattr(events, topic):
                key = b"%d" % getattr(event, key_name)
                value, partition = msgspec.json.encode(event), partition_for(key, PARTITIONS)
                acks.append(
                    await producer.send(f"{prefix}{topic}", value, key, partition=partition, timestamp_ms=event.at_ms)
                )
        await asyncio.gather(*acks)


@pytest.mark.nightly
@pytest.mark.parametrize("query", ["q5", "q8", "q9", "q16"])
async def test_a_query_says_on_a_broker_what_sql_says(brokers: str, tmp_path: Path, query: str) -> None:
    prefix, events = unique(query) + "-", generate(COUNT)
    expected = sorted(map(list, Oracle(events, tmp_path).rows(query)))
    # The broker would delete events of a former year.
    topics = [f"{prefix}{topic}" for topic in (*KEYS, "rows", *FURTHER.get(query, ()))]
    await make_topics(brokers, *topics, partitions=PARTITIONS, config={"retention.ms": "-1"})
    await post(brokers, prefix, events)
    one, two = (
        WorkerProcess("tests.nexmark.worker_app", brokers, tmp_path / name, PREFIX=prefix, QUERY=query).start()
        for name in ("one", "two")
    )
    await eventually(lambda: "owns" in one.log() and "owns" in two.log(), what=lambda: one.log() + two.log())
    one.kill()
    one.start()

    async def rows() -> list[list[object]]:
        return sorted(msgspec.json.decode(record.value) for record in await read_all(brokers, f"{prefix}rows"))

    async def are_there() -> bool:
        return len(await rows()) >= len(expected)

    await eventually(are_there, what=lambda: one.log()[-3000:] + two.log()[-3000:])
    assert await rows() == expected
