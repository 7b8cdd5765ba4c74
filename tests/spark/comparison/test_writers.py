"""Records behind the workers' positions: a worker's own are counted, another program's are a finding."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from spark_replay import Report, kafka, validate_exports
from spark_replay.comparison.writers import find_foreign
from spark_replay.sources.kafka import KafkaSource
from tests.kafka.helpers import make_topics, producing
from tests.spark.damage import NEW, by, named_log
from tests.spark.helpers import PARTITIONS, Export, Log, Transaction, Write, append, home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITTED = 100
KEYS = tuple(f"key-{number}" for number in range(12))


@dataclass
class World:
    """A changelog with an owner of epoch `NEW` in the registry, whose last commit is its third."""

    brokers: str
    log: Log
    source: KafkaSource

    @property
    def app(self) -> str:
        return self.log.topic.removesuffix("--store-changelog")

    def export(self, folder: Path, *, transaction: int = 3) -> Path:
        export = Export.of(self.log, epoch=NEW)
        export.positions = {
            number: replace(position, transaction=transaction) for number, position in export.positions.items()
        }
        return export.write(folder)

    def commit(self, *writes: Write) -> None:
        """Write as an owner does, in a transaction."""
        asyncio.run(append(self.brokers, self.log, [Transaction(writes)]))

    def plant(self, write: Write) -> None:
        """Write as another program may do, without a transaction."""

        async def send() -> None:
            async with producing(self.brokers) as producer:
                await producer.send_and_wait(
                    self.log.topic, write.value, write.key, partition=write.partition, headers=write.wire_headers
                )

        asyncio.run(send())

    def mark(self, transaction: int, *, epoch: int = NEW, offset: int = COMMITTED) -> None:
        asyncio.run(self._mark(transaction, epoch, offset))

    async def _mark(self, transaction: int, epoch: int, offset: int) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.brokers, group_id=f"{self.app}-actors", enable_auto_commit=False
        )
        await consumer.start()
        mark = OffsetAndMetadata(offset, f"{epoch};{transaction};nonce")
        marks = {TopicPartition(f"{self.app}-input", number): mark for number in range(PARTITIONS)}
        consumer.assign(list(marks))
        try:
            await consumer.commit(marks)
        finally:
            await consumer.stop()

    async def register(self) -> None:
        await make_topics(self.brokers, f"{self.app}-input", partitions=PARTITIONS)
        await make_topics(self.brokers, f"{self.app}-actors-owners", partitions=1)
        async with producing(self.brokers) as producer:
            for number in range(PARTITIONS):
                record = {
                    "actor": "actor",
                    "partition": number,
                    "epoch": NEW,
                    "inputs": [{"topic": f"{self.app}-input", "topic_id": "", "input_offset": None}],
                    "transactional_id": "app-0",
                    "changelog_ids": {"store": self.source.describe().topic_id},
                }
                key, value = f"actor/{number}".encode(), json.dumps(record).encode()
                await producer.send_and_wait(f"{self.app}-actors-owners", value, key)


def world_of(spark: SparkSession, brokers: str) -> World:
    log = named_log(brokers)
    world = World(brokers, log, kafka(spark, brokers, log.topic))
    asyncio.run(world.register())
    world.mark(3)
    world.commit(*(by(NEW, number, key, "1") for number, key in enumerate(KEYS)))
    return world


@pytest.fixture
def world(spark: SparkSession, brokers: str) -> Iterator[World]:
    return world_of(spark, brokers)


def violations(report: Report) -> dict[str, int]:
    return {finding.check: finding.count for finding in report.findings if finding.count}


def test_a_foreign_record_at_the_end_of_an_idle_partition(world: World, tmp_path: Path):
    """It has the owner's own write metadata: only the last commit tells."""
    exports = world.export(tmp_path)
    report = validate_exports(world.source, against=exports)
    assert (report.is_clean, report.counts["behind_position"], report.findings) == (True, 0, ())
    world.plant(by(NEW, 5, "key-3", "planted"))
    report = validate_exports(world.source, against=exports)
    assert (report.mismatches, report.counts["equal"]) == (0, len(KEYS))
    assert (report.counts["behind_position"], violations(report), report.is_clean) == (1, {"writers": 1}, False)
    [finding] = report.findings
    number, end = home(b"key-3"), world.source.describe().ends[home(b"key-3")]
    assert finding.by_partition == {number: 1}
    assert finding.examples == (
        f"partition {number} offset {end - 1} key key-3 value planted lies behind the position of a store that has "
        f"the last commit of epoch {NEW} already",
    )
    # The log alone has no position: the record is in no transaction.
    [text] = find_foreign(world.source)[0].examples
    assert text.endswith(f"is in no transaction, but all records of the owner of epoch {NEW} are")


@pytest.mark.nightly
def test_a_worker_that_goes_on_is_no_finding(world: World, tmp_path: Path):
    exports = world.export(tmp_path)
    world.commit(by(NEW, 50, "key-1", "2"), by(NEW, 51, "key-3", "2"))
    world.mark(4)
    world.commit(by(NEW + 1, 51, "key-1", "3"))
    world.mark(2, epoch=NEW + 1)
    report = validate_exports(world.source, against=exports)
    assert (report.is_clean, report.counts["behind_position"], violations(report)) == (True, 3, {})
    assert find_foreign(world.source)[0].count == 0


@pytest.mark.nightly
def test_foreign_records_behind_a_worker_that_went_on(world: World, tmp_path: Path):
    """Each partition has one: of no owner's epoch, of an input that isn't handled, and of a replaced owner."""
    exports = world.export(tmp_path)
    world.mark(4)
    keys = {home(key.encode()): key for key in KEYS}
    planted = [by(NEW + 1, 5, keys[0], "x"), by(NEW, COMMITTED, keys[1], "x"), by(NEW - 1, 5, keys[2], "x")]
    world.commit(*planted)
    report = validate_exports(world.source, against=exports)
    assert violations(report) == {"writers": 3}
    texts = [example.partition(" value x ")[2] for example in report.findings[0].examples]
    assert texts == [
        f"is of epoch {NEW + 1}, and the partition's last owner has epoch {NEW}",
        f"is of epoch {NEW} and of input {COMMITTED}, which the group hasn't committed",
        f"is of epoch {NEW - 1}, behind the position of a store of epoch {NEW}",
    ]


def test_without_a_registry_a_note_says_what_is_unknown(spark: SparkSession, brokers: str, tmp_path: Path):
    log = named_log(brokers)
    world = World(brokers, log, kafka(spark, brokers, log.topic))
    world.commit(by(NEW, 1, "key-3", "1"))
    exports = world.export(tmp_path)
    world.commit(by(NEW, 2, "key-3", "2"))
    report = validate_exports(world.source, against=exports)
    assert (report.is_clean, report.counts["behind_position"]) == (True, 1)
    assert report.findings[0].notes == ("the leader registry has no owner of this changelog's partitions 0, 1, 2",)
