"""Kafka's drivers of its system tests judge what our workers do while they are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from dev.kafka import Cluster
from tests.judges.kafka_drivers import (
    ANY_TIME,
    EOS,
    PARTITIONS,
    RELATIONAL,
    SMOKE,
    TOPICS,
    Driver,
    Workers,
    overlooked,
    produced,
    records_of,
)
from tests.kafka.helpers import eventually, make_topics, send

DELIVERED = "ALL-RECORDS-DELIVERED"
KILLS = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A broker of its own: the drivers' topics and applications have fixed names."""
    with Cluster.up(tmp_path / "kafka") as running:
        yield running.bootstrap


@pytest.mark.nightly
@pytest.mark.timeout(1200)
async def test_the_driver_of_exactly_once_finds_nothing(cluster: str, tmp_path: Path) -> None:
    """And it finds a record that one of the outputs has twice."""
    await make_topics(cluster, *TOPICS[EOS], partitions=PARTITIONS)
    driver, workers = Driver(EOS, cluster, tmp_path), Workers(EOS, cluster, tmp_path)
    try:
        driver.start("run")
        async with workers.running():
            await eventually(lambda: "1000 records produced" in driver.printed(), what=driver.printed)
            for number in range(KILLS):
                await asyncio.sleep(4.0)
                await (workers.kill_all() if number == KILLS // 2 else workers.kill_one())
            await asyncio.sleep(4.0)
            count = produced(await driver.ended(stop=True))
            await workers.did_all("data", "repartition")
            await workers.stop()
        await workers.tell_offsets("data", "repartition")
        driver.start("verify-complex")
        printed = await driver.ended()
        assert DELIVERED in printed, printed[-3000:]
        records = await records_of(cluster, TOPICS[EOS])
        assert overlooked(records, count) == []
        print(f"{count} records, {workers.kills} kills")
        twice = records["sum"][-1]
        await send(cluster, "sum", [(twice.key, twice.value)], partitions=PARTITIONS)
        driver.start("verify-complex")
        printed = await driver.ended()
        assert DELIVERED not in printed
        assert "Result verification failed" in printed
    finally:
        driver.kill()


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plant", ["", "twice"])
async def test_the_smoke_test(cluster: str, tmp_path: Path, plant: str) -> None:
    """Windows, joins and groups; two days' windows would be two results, of which the driver expects one."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0) + timedelta(days=1)
    if (left := midnight - datetime.now(UTC)) < timedelta(minutes=5):
        await asyncio.sleep(left.total_seconds() + 1)
    await make_topics(cluster, *TOPICS[SMOKE], partitions=PARTITIONS, config=ANY_TIME)
    driver, workers = Driver(SMOKE, cluster, tmp_path), Workers(SMOKE, cluster, tmp_path, PLANT=plant)
    printed = await judged(driver, workers, "run", " 100 records produced", kills=0 if plant else KILLS)
    if plant:
        assert "\nFAILURE" in printed
        assert "non-unique result" in printed
        return
    assert "\nSUCCESS" in printed, printed[-3000:] + workers.log()
    # It compares the echoes as sets, and prints this without counting it.
    assert "PROCESSED-MORE-THAN-GENERATED" not in printed


@pytest.mark.nightly
@pytest.mark.timeout(1200)
async def test_the_relational_smoke_test_passes(cluster: str, tmp_path: Path) -> None:
    """A join of tables by a foreign key, another by the key, and an aggregate of a table."""
    await make_topics(cluster, *TOPICS[RELATIONAL], partitions=PARTITIONS, config=ANY_TIME)
    driver, workers = Driver(RELATIONAL, cluster, tmp_path), Workers(RELATIONAL, cluster, tmp_path)
    printed = await judged(driver, workers, "driver", "sent in-comment", kills=KILLS)
    assert "Smoke test complete: passed" in printed, printed[-3000:] + workers.log()


async def judged(driver: Driver, workers: Workers, command: str, begun: str, *, kills: int) -> str:
    """Kill workers from when the driver has printed that it has begun; return what it printed in the end."""
    try:
        async with workers.running():
            driver.start(command)
            await eventually(lambda: begun in driver.printed(), what=driver.printed)
            for number in range(kills):
                await asyncio.sleep(6.0)
                await (workers.kill_all() if number == kills // 2 else workers.kill_one())
            printed = await driver.ended()
            await workers.stop()
    finally:
        driver.kill()
    return printed


def of(counts: dict[str, list[int]]) -> dict[str, list[SimpleNamespace]]:
    """Return so many records in each partition of each topic."""
    return {
        topic: [
            SimpleNamespace(partition=part, offset=offset)
            for part, count in enumerate(parts)
            for offset in range(count)
        ]
        for topic, parts in counts.items()
    }


def test_what_the_driver_overlooks_is_found() -> None:
    right = {topic: [3, 2] for topic in TOPICS[EOS]}
    assert overlooked(of(right), 5) == []
    assert overlooked(of(right), 6) == ["data has 5 records, 6 were written"]
    assert len(overlooked(of({**right, "echo": [2, 2]}), 5)) == 1
    assert len(overlooked(of({**right, "cnt": [3]}), 5)) == 1
    records = of(right)
    records["data"][0].offset = 9
    assert overlooked(records, 5) == ["data has gaps in the partitions [0]"]
