"""A join by a foreign key on a real broker: results follow both tables in order, whoever is killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors._core.partitioner import partition_for
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique

MODULE = "tests.kafka.apps.foreign_app"
ORDERS, CUSTOMERS = [b"k%d" % number for number in range(40)], [b"c%d" % number for number in range(6)]
PARTITIONS = {"orders": 2, "customers": 3, "results": 2}
ROUNDS = 4


class Tables:
    """What was written to both topics."""

    def __init__(self, brokers: str, name: str) -> None:
        self._brokers, self._name, self._rng = brokers, name, random.Random(7)
        self._number = 1_000
        self.orders: dict[bytes, list[Any]] = {}
        self.customers: dict[bytes, int] = {}

    async def change(self) -> None:
        """Write, replace and delete rows of both tables."""
        async with producing(self._brokers) as producer:
            acks = []
            for _ in range(160):
                self._number += 1
                topic, key, row = self._order() if self._rng.random() < 0.7 else self._customer()
                value, partition = None if row is None else orjson.dumps(row), partition_for(key, PARTITIONS[topic])
                acks.append(await producer.send(f"{self._name}-{topic}", value, key, partition=partition))
            await asyncio.gather(*acks)

    def _order(self) -> tuple[str, bytes, Any]:
        key, customer = self._rng.choice(ORDERS), self._rng.choice([*CUSTOMERS, None])
        self.orders[key] = row = [None if customer is None else customer.decode(), self._number]
        if self._rng.random() < 0.2:
            del self.orders[key]
        return "orders", key, row if key in self.orders else None

    def _customer(self) -> tuple[str, bytes, Any]:
        key = self._rng.choice(CUSTOMERS)
        self.customers[key] = self._number
        if self._rng.random() < 0.3:
            del self.customers[key]
        return "customers", key, self.customers.get(key)

    def joined(self) -> dict[bytes, list[Any]]:
        """Return the results that there should be."""
        pairs = {
            key: (number, customer, self.customers.get((customer or "").encode()))
            for key, (customer, number) in self.orders.items()
        }
        return {key: list(result) for key, result in pairs.items() if result[2] is not None}


def in_order(records: list[Any]) -> Mapping[bytes, Any]:
    """Return the last results; none of a key comes after a newer one, and no end is told twice."""
    held: dict[bytes, Any] = {}
    newest: dict[Any, int] = {}
    for record in records:
        if record.value is None:
            assert record.key in held
            del held[record.key]
            continue
        held[record.key] = number, customer, of_customer = orjson.loads(record.value)
        for what, seen in ((record.key, number), ((record.key, customer), of_customer)):
            assert newest.get(what, 0) <= seen
            newest[what] = seen
    return {key: list(result) for key, result in held.items()}


@pytest.mark.nightly
async def test_results_follow_both_tables_in_order(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    name = unique("foreign")
    for topic, partitions in PARTITIONS.items():
        compacted = {} if topic == "results" else {"cleanup.policy": "compact"}
        await make_topics(brokers, f"{name}-{topic}", partitions=partitions, config=compacted)
    one, two = (WorkerProcess(MODULE, brokers, tmp_path / each, APP_NAME=name) for each in ("one", "two"))
    workers += [one.start(), two.start()]
    await eventually(lambda: "owns" in one.log() and "owns" in two.log(), what=lambda: one.log() + two.log())
    tables = Tables(brokers, name)

    async def are_there() -> bool:
        return in_order(await read_all(brokers, f"{name}-results")) == tables.joined()

    for number in range(ROUNDS):
        await tables.change()
        victim = (one, two)[number % 2]
        victim.kill()
        victim.start()
    await eventually(are_there, what=lambda: one.log()[-2000:] + two.log()[-2000:])
    for worker in (one, two):
        worker.kill()
    # On an empty disk: subscriptions, and which results there are, come from the changelogs.
    workers.append(WorkerProcess(MODULE, brokers, tmp_path / "empty", APP_NAME=name).start())
    await tables.change()
    await eventually(are_there, what=workers[-1].log)
    assert len(tables.joined()) > 5
