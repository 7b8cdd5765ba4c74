"""Aggregates over a table on a real broker: each change moves its row once, whoever is killed."""

from __future__ import annotations

import asyncio
import collections
import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors._core.partitioner import partition_for
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique

MODULE = "tests.kafka.apps.aggregate_app"
KEYS = [b"k%d" % number for number in range(40)]
PARTITIONS = 2
ROUNDS = 5


@pytest.mark.nightly
async def test_each_change_moves_its_row_once(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    name, rng = unique("aggregates"), random.Random(5)
    await make_topics(brokers, f"{name}-accounts", partitions=PARTITIONS, config={"cleanup.policy": "compact"})
    await make_topics(brokers, f"{name}-results", partitions=PARTITIONS)
    one, two = (WorkerProcess(MODULE, brokers, tmp_path / each, APP_NAME=name) for each in ("one", "two"))
    workers += [one.start(), two.start()]
    await eventually(lambda: "owns" in one.log() and "owns" in two.log(), what=lambda: one.log() + two.log())
    rows: dict[bytes, list[Any]] = {}
    calls: collections.Counter[bytes] = collections.Counter()

    async def a_round() -> None:
        async with producing(brokers) as producer:
            acks = []
            for key in rng.choices(KEYS, k=120):
                row = None if rng.random() < 0.2 else [rng.choice(["north", "south", "west"]), rng.randint(1, 99)]
                before = rows.pop(key, None)
                calls.update({one[0].encode() for one in (before, row) if one is not None})
                if row is not None:
                    rows[key] = row
                value, partition = None if row is None else orjson.dumps(row), partition_for(key, PARTITIONS)
                acks.append(await producer.send(f"{name}-accounts", value, key, partition=partition))
            await asyncio.gather(*acks)

    async def shown() -> tuple[collections.Counter[bytes], dict[bytes, Any]]:
        records = await read_all(brokers, f"{name}-results")
        last = {record.key: record.value for record in records}
        held = {key: orjson.loads(value) for key, value in last.items() if value is not None}
        return collections.Counter(record.key for record in records), held

    async def are_there() -> bool:
        return (await shown())[0] >= calls

    for number in range(ROUNDS):
        await a_round()
        victim = (one, two)[number % 2]
        victim.kill()
        victim.start()
    await eventually(are_there, what=lambda: one.log()[-2000:] + two.log()[-2000:])
    for worker in (one, two):
        worker.kill()
    # On an empty disk: which rows are in which group comes from the changelogs.
    workers.append(WorkerProcess(MODULE, brokers, tmp_path / "empty", APP_NAME=name).start())
    await a_round()
    await eventually(are_there, what=workers[-1].log)
    expected: dict[bytes, list[int]] = {}
    for branch, cents in rows.values():
        count, total = expected.get(branch.encode(), [0, 0])
        expected[branch.encode()] = [count + 1, total + cents]
    assert await shown() == (calls, expected)
