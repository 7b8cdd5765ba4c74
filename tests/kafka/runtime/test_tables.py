"""Tables on a real broker: each order meets the row of its time once, whoever is killed, with and without a disk."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from actors._core.partitioner import partition_for
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique

MODULE = "tests.kafka.apps.tables_app"
KEYS = [b"k%d" % number for number in range(40)]
PARTITIONS = 2
ROUND_MS = 10_000
TOPICS = ("orders", "customers", "left", "right", "enriched", "results")


async def make(brokers: str, name: str) -> None:
    for topic in TOPICS:
        compacted = {"cleanup.policy": "compact"} if topic in ("customers", "left", "right") else {}
        await make_topics(brokers, f"{name}-{topic}", partitions=PARTITIONS, config=compacted)


async def send(brokers: str, topic: str, records: Iterable[tuple[bytes, bytes | None, int]]) -> None:
    async with producing(brokers) as producer:
        acks = [
            await producer.send(topic, value, key, partition=partition_for(key, PARTITIONS), timestamp_ms=at_ms)
            for key, value, at_ms in records
        ]
        await asyncio.gather(*acks)


async def committed(brokers: str, name: str, topic: str) -> int:
    """Return how much of a topic is handled."""
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(f"{name}-actors")
    finally:
        await admin.close()
    return sum(max(0, found.offset) for source, found in offsets.items() if source.topic == f"{name}-{topic}")


async def has_committed(brokers: str, name: str, topic: str, count: int) -> bool:
    return await committed(brokers, name, topic) >= count


async def enriched(brokers: str, name: str) -> collections.Counter[tuple[bytes, Any, Any]]:
    found = await read_all(brokers, f"{name}-enriched")
    return collections.Counter((record.key, *orjson.loads(record.value)[:2]) for record in found)


def worker_of(brokers: str, folder: Path, name: str, **environment: str) -> WorkerProcess:
    return WorkerProcess(MODULE, brokers, folder, APP_NAME=name, **environment)


@pytest.mark.nightly
@pytest.mark.parametrize("standbys", ["0", "1"])
async def test_each_order_meets_the_row_of_its_time_once(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], standbys: str
) -> None:
    name, begin_ms = unique("tables"), int(time.time() * 1000) - 600_000
    await make(brokers, name)
    one, two = (worker_of(brokers, tmp_path / each, name, STANDBYS=standbys) for each in ("one", "two"))
    workers += [one.start(), two.start()]
    await eventually(lambda: "owns" in one.log() and "owns" in two.log(), what=lambda: one.log() + two.log())
    expected: collections.Counter[tuple[bytes, Any, Any]] = collections.Counter()

    async def a_round(number: int) -> None:
        at_ms = begin_ms + number * ROUND_MS
        rows: list[tuple[bytes, bytes | None, int]] = [(key, b"%d" % number, at_ms) for key in KEYS]
        rows += [(key, None, at_ms + 6_000) for key in KEYS[:5]]
        await send(brokers, f"{name}-customers", rows)
        known = (number + 1) * len(rows)
        await eventually(
            lambda: has_committed(brokers, name, "customers", known), what=lambda: workers[-1].log()[-2000:]
        )
        orders = [(key, b"%d" % (10 * number + step), at_ms + step * 3_000) for key in KEYS for step in range(4)]
        await send(brokers, f"{name}-orders", orders)
        for place, key in enumerate(KEYS):
            for step in range(4):
                expected[key, 10 * number + step, None if place < 5 and step >= 2 else number] += 1

    async def are_there() -> bool:
        return (await enriched(brokers, name)) >= expected

    for number, victim in enumerate((one, two, one)):
        await a_round(number)
        victim.kill()
        victim.start()
        await eventually(are_there, what=lambda: one.log()[-2000:] + two.log()[-2000:])
        assert await enriched(brokers, name) == expected
    for worker in (one, two):
        worker.kill()
    workers.append(worker_of(brokers, tmp_path / "empty", name).start())
    # Its table comes from the changelog: the topic isn't read again.
    await a_round(3)
    await eventually(are_there, what=workers[-1].log)
    assert await enriched(brokers, name) == expected


@pytest.mark.parametrize("changes", [2, pytest.param(6, marks=pytest.mark.nightly)])
async def test_the_last_result_of_a_join_is_that_of_both_tables(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], changes: int
) -> None:
    name, now_ms = unique("tables"), int(time.time() * 1000) - 600_000
    await make(brokers, name)
    worker = worker_of(brokers, tmp_path / "one", name)
    workers.append(worker.start())
    await eventually(lambda: "owns" in worker.log(), what=worker.log)
    held: dict[tuple[str, bytes], int | None] = {}

    async def change(number: int) -> None:
        for side, step in (("left", 3), ("right", 4)):
            values = {key: None if (place + number) % step == 0 else number for place, key in enumerate(KEYS)}
            held.update({(side, key): value for key, value in values.items()})
            records = [
                (key, None if value is None else b"%d" % value, now_ms + number) for key, value in values.items()
            ]
            await send(brokers, f"{name}-{side}", records)

    async def is_last() -> bool:
        found: Mapping[bytes, Any] = {one.key: one.value for one in await read_all(brokers, f"{name}-results")}
        shown = {key: None if found.get(key) is None else orjson.loads(found[key]) for key in KEYS}
        pairs = {key: [held["left", key], held["right", key]] for key in KEYS}
        return shown == {key: None if pair == [None, None] else pair for key, pair in pairs.items()}

    for number in range(1, changes + 1):
        await change(number)
        if number % 2:
            worker.kill()
            worker.start()
    await eventually(is_last, what=worker.log)
    assert await committed(brokers, name, "left") >= changes * len(KEYS)
