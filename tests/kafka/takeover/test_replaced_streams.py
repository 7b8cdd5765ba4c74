"""Inputs of windows, joins and tables that were deleted and created again, and transactions that stay open on them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique
from tests.kafka.takeover.test_input_identity import recreate, said

MODULE = "tests.kafka.apps.replaced_app"
INPUTS = ("clicks", "ones", "others", "asks", "rows")


class World:
    """The app's topics, each with one partition."""

    def __init__(self, brokers: str, name: str) -> None:
        self.brokers, self.name = brokers, name
        self.begin_ms = (int(time.time() * 1000) - 3_600_000) // 10_000 * 10_000

    async def put(self, topic: str, *records: tuple[str, int | None, int]) -> None:
        """Send (key, value, seconds)."""
        async with producing(self.brokers) as producer:
            for key, value, at_s in records:
                raw, at_ms = None if value is None else b"%d" % value, self.begin_ms + at_s * 1000
                await producer.send_and_wait(f"{self.name}-{topic}", raw, key.encode(), partition=0, timestamp_ms=at_ms)

    async def said(self) -> Counter[tuple[Any, ...]]:
        """What the app has said, by key."""
        found = await read_all(self.brokers, f"{self.name}-out")
        return Counter((record.key.decode(), *orjson.loads(record.value)) for record in found)

    async def is_committed(self, counts: dict[str, int]) -> bool:
        """Tell whether so many records of topics are handled."""
        parts = {TopicPartition(f"{self.name}-{topic}", 0): count for topic, count in counts.items()}
        group = f"{self.name}-actors"
        async with AIOKafkaConsumer(bootstrap_servers=self.brokers, group_id=group, enable_auto_commit=False) as tool:
            return all([(await tool.committed(part) or 0) >= count for part, count in parts.items()])

    async def says(self, worker: WorkerProcess, *wanted: tuple[Any, ...]) -> None:
        shown: list[Any] = []

        async def is_said() -> bool:
            shown[:] = await self.said()
            return set(wanted) <= set(shown)

        await eventually(is_said, deadline_s=40, what=lambda: f"{shown}\n{worker.log()[-3000:]}")


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["stopped", pytest.param("running", marks=pytest.mark.nightly)])
async def test_what_is_kept_goes_on_with_the_records_of_the_new_topics(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], when: str
) -> None:
    world = World(brokers, unique("replaced"))
    name = world.name
    await make_topics(brokers, *(f"{name}-{topic}" for topic in (*INPUTS, "out")), partitions=1)

    def start(**environment: str) -> WorkerProcess:
        worker = WorkerProcess(MODULE, brokers, tmp_path / "worker", APP_NAME=name, **environment)
        worker.log_file = tmp_path / f"{len(workers)}.log"
        workers.append(worker.start())
        return worker

    worker = start()
    await world.put("rows", ("r", 1, 0), ("s", 2, 0))
    await world.put("clicks", ("k", 1, 0), ("k", 2, 5), ("p", 8, -60))
    await world.put("ones", ("a", 1, 0), ("b", 2, 0))
    await world.put("asks", ("r", 1, 1), ("s", 1, 1))
    await world.says(worker, ("r", "row", 1, 1), ("s", "row", 1, 2))
    await eventually(lambda: world.is_committed({"clicks": 3, "ones": 2}), what=lambda: worker.log()[-3000:])
    if when == "stopped":
        assert worker.terminate() == 0
    for topic in ("clicks", "others", "rows"):
        await recreate(brokers, f"{name}-{topic}")
    await world.put("clicks", ("k", 4, 8), ("z", 0, 30), ("k", 100, 1))
    await world.put("others", ("a", 7, 2), ("z", 0, 60))
    await world.put("rows", ("r", 10, 2))
    if when == "stopped":
        worker = start()
    for topic in ("clicks", "others", "rows"):
        await said(worker, f"{name}-{topic}[0]: the input topic was re-created")
    before = Counter({("r", "row", 1, 1): 1, ("s", "row", 1, 2): 1})
    assert await world.said() == before
    assert worker.terminate() == 0

    worker = start(MISSING_OFFSET="earliest")
    await world.put("asks", ("r", 2, 3), ("s", 2, 3))
    # The join's other side has no record behind it: its stream time is that of both.
    wanted = {("k", "final", 7), ("a", "pair", 1, 7), ("b", "pair", 2, None), ("r", "row", 2, 10), ("s", "row", 2, 2)}
    await world.says(worker, *wanted)
    worker.kill()
    worker = start()
    await world.put("asks", ("r", 3, 4))
    await world.says(worker, ("r", "row", 3, 10))
    # What came too late is in no window, and nothing came twice.
    assert await world.said() == before + Counter(wanted) + Counter({("r", "row", 3, 10): 1})


async def test_others_do_not_wait_for_a_transaction_that_stays_open_on_a_table(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    world = World(brokers, unique("opened"))
    await make_topics(brokers, *(f"{world.name}-{topic}" for topic in (*INPUTS, "out")), partitions=1)
    await world.put("rows", ("r", 1, 0))
    worker = WorkerProcess(MODULE, brokers, tmp_path / "worker", APP_NAME=world.name)
    workers.append(worker.start())
    await said(worker, "actor answer owns")
    async with producing(brokers, transactional_id=world.name) as producer, producer.transaction():
        await producer.send_and_wait(f"{world.name}-rows", b"2", b"r", partition=0, timestamp_ms=world.begin_ms)
        began_s = time.monotonic()
        for number in range(6):
            await world.put("asks", ("r", number, 1 + number))
            await world.says(worker, ("r", "row", number, 1))
        # Each of them would wait for ten seconds.
        assert time.monotonic() - began_s < 50
    await world.put("asks", ("r", 9, 9))
    await world.says(worker, ("r", "row", 9, 2))
