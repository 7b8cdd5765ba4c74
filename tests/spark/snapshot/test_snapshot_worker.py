"""Real workers that begin from a snapshot: an empty disk, a process killed on the way, another number of partitions."""

from __future__ import annotations

import asyncio
import collections
import random
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CommitFailedError
from aiokafka.structs import TopicPartition

from spark_replay import kafka
from spark_replay.comparison.validate import validate_exports
from spark_replay.snapshot.publish import publish_state
from spark_replay.snapshot.snapshot import now_ms, write_snapshot
from stores.export import export_store
from stores.snapshot import SnapshotFolder
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODULE = "tests.kafka.apps.snapshot_app"
PARTITIONS = 2
KEYS = [f"key-{number}".encode() for number in range(300)]


def counted(inputs: list[tuple[bytes, bytes]]) -> dict[bytes, int]:
    return dict(collections.Counter(key for key, _ in inputs))


@dataclass
class App:
    """An app under test, with all that was sent to it."""

    name: str
    brokers: str
    folder: Path
    started: list[WorkerProcess]
    sent: list[tuple[bytes, bytes]]
    partitions: int = PARTITIONS
    counted_before: int = 0
    module: str = MODULE
    actor: str = "count"
    inputs: tuple[str, ...] = ("in",)

    @property
    def topics(self) -> list[str]:
        return [f"{self.name}-{name}" for name in self.inputs]

    @property
    def changelog(self) -> str:
        return f"{self.name}--counts-changelog"

    def make(self) -> App:
        asyncio.run(make_topics(self.brokers, *self.topics, f"{self.name}-out", partitions=self.partitions))
        return self

    def send(self, count: int) -> None:
        choice = random.Random(len(self.sent))
        for topic in self.topics:
            more = [(choice.choice(KEYS), b"x") for _ in range(count)]
            asyncio.run(send(self.brokers, topic, more, partitions=self.partitions))
            self.sent += more

    def worker(self, folder: str, **environment: str) -> WorkerProcess:
        worker = WorkerProcess(
            self.module,
            self.brokers,
            self.folder / folder,
            APP_NAME=self.name,
            INSTANCE_ID="one",
            PYTHONUNBUFFERED="1",
            **environment,
        )
        self.started.append(worker)
        return worker.start()

    def wait(self, worker: WorkerProcess) -> None:
        """Wait until all that was sent is counted."""

        async def is_done() -> bool:
            assert worker.is_running(), worker.log()[-3000:]
            return len(await read_all(self.brokers, f"{self.name}-out")) >= len(self.sent) - self.counted_before

        asyncio.run(eventually(is_done, what=lambda: worker.log()[-3000:]))

    def changelog_records(self) -> list:
        return asyncio.run(read_all(self.brokers, self.changelog))

    def check(self, spark: SparkSession, worker: WorkerProcess) -> None:
        """Stop the worker; what it holds is what was sent, and what the changelog says, key by key."""
        assert worker.terminate() == 0, worker.log()[-3000:]
        assert {record.key: int(record.value) for record in self.changelog_records()} == counted(self.sent)
        to = worker.folder.with_suffix(".export")
        export_store(
            worker.folder / "v1" / "actors",
            "counts",
            to,
            app=self.name,
            changelog=self.changelog,
            placement="key",
            partition_count=self.partitions,
            worker="one",
            now_ms=now_ms(),
        )
        report = validate_exports(kafka(spark, self.brokers, self.changelog), against=to)
        assert (report.mismatches, report.counts["equal"]) == (0, len(counted(self.sent)))
        assert report.partitions_without_export == []


JOIN = {"module": "tests.kafka.apps.join_app", "actor": "join", "inputs": ("left", "right")}


@pytest.fixture
def app(request: pytest.FixtureRequest, brokers: str, tmp_path: Path) -> Iterator[App]:
    made = App(unique("snapshot"), brokers, tmp_path, [], [], **getattr(request, "param", {})).make()
    yield made
    for worker in made.started:
        worker.kill()


def snapshot_with_a_tail(app: App, spark: SparkSession) -> SnapshotFolder:
    app.send(1500)
    one = app.worker("one")
    app.wait(one)
    assert one.terminate() == 0
    write_snapshot(kafka(spark, app.brokers, app.changelog), app=app.name, to=app.folder / "snapshots")
    app.send(200)
    two = app.worker("two")
    app.wait(two)
    assert two.terminate() == 0
    assert "begun with" not in two.log()
    return SnapshotFolder(app.folder / "snapshots", app=app.name)


def restored(worker: WorkerProcess) -> int:
    return sum(int(count) for count in re.findall(r"restored (\d+) records in", worker.log()))


def owns_all(app: App, worker: WorkerProcess) -> None:
    found = f"actor {app.actor} owns {app.topics[0]}"
    asyncio.run(eventually(lambda: worker.log().count(found) >= app.partitions, what=lambda: worker.log()[-3000:]))


@pytest.mark.parametrize(
    "app",
    [pytest.param({}, id="one input"), pytest.param(JOIN, id="two inputs", marks=pytest.mark.nightly)],
    indirect=True,
)
def test_a_new_worker_reads_the_tail_only(spark: SparkSession, app: App):
    snapshots = snapshot_with_a_tail(app, spark)
    parts = [snapshots.find("counts", number) for number in range(PARTITIONS)]
    tail = [
        record
        for record in app.changelog_records()
        if record.offset >= parts[record.partition].position.changelog_offset
    ]
    worker = app.worker("fresh", STATE_SNAPSHOT=str(app.folder / "snapshots"))
    owns_all(app, worker)
    assert restored(worker) == len(tail) > 0
    assert sum(map(int, re.findall(r"begun with (\d+) keys of the snapshot in", worker.log()))) == sum(
        part.keys for part in parts
    )
    app.send(100)
    app.wait(worker)
    app.check(spark, worker)


@pytest.mark.nightly
@pytest.mark.parametrize("point", ["placed", "built", "removed", "exchanged"])
def test_a_worker_killed_while_it_takes_the_snapshot(spark: SparkSession, app: App, point: str):
    snapshot_with_a_tail(app, spark)
    doomed = app.worker("fresh", STATE_SNAPSHOT=str(app.folder / "snapshots"), SNAPSHOT_CRASH_AT=point)
    assert doomed.wait() == -signal.SIGKILL, doomed.log()[-3000:]
    assert "owns" not in doomed.log()
    worker = app.worker("fresh", STATE_SNAPSHOT=str(app.folder / "snapshots"))
    owns_all(app, worker)
    assert worker.log().count("begun with") == (1 if point == "exchanged" else 2)
    app.send(100)
    app.wait(worker)
    app.check(spark, worker)


@pytest.mark.nightly
def test_a_damaged_snapshot_costs_a_line_and_the_time(spark: SparkSession, app: App):
    snapshot_with_a_tail(app, spark)
    table = min((app.folder / "snapshots" / "counts").glob("*.sst"))
    raw = bytearray(table.read_bytes())
    raw[len(raw) // 2] ^= 1
    table.write_bytes(raw)
    worker = app.worker("fresh", STATE_SNAPSHOT=str(app.folder / "snapshots"))
    owns_all(app, worker)
    [line] = [line for line in worker.log().splitlines() if "the snapshot isn't used" in line]
    assert f"{app.changelog}[0]" in line
    assert "isn't the file that seed.json lists" in line
    assert worker.log().count("begun with") == 1
    app.check(spark, worker)


@pytest.mark.nightly
def test_another_number_of_partitions(spark: SparkSession, app: App, brokers: str):
    """The steps of docs/how-to/snapshots.md; then an operator's reset is noticed as ever."""
    app.send(1500)
    first = app.worker("one")
    app.wait(first)
    assert first.terminate() == 0
    new = App(f"{app.name}b", brokers, app.folder / "b", app.started, list(app.sent), 5, len(app.sent)).make()
    old, target = kafka(spark, brokers, app.changelog), kafka(spark, brokers, new.changelog)
    keys = publish_state(old, target, partitions=5).keys
    snapshots = new.folder / "snapshots"
    assert write_snapshot(target, app=new.name, to=snapshots).keys == keys
    worker = new.worker("data", STATE_SNAPSHOT=str(snapshots))
    new.send(300)
    new.wait(worker)
    assert worker.log().count("begun with") == 5
    assert restored(worker) == 0
    new.check(spark, worker)

    without = new.worker("without a snapshot")
    owns_all(new, without)
    assert restored(without) >= keys
    new.check(spark, without)

    asyncio.run(reset(new))
    stands_still(new.worker("again", STATE_SNAPSHOT=str(snapshots)))
    stands_still(new.worker("again without"))


def stands_still(worker: WorkerProcess) -> None:
    reason = "committed offset 0 was set by hand or by another program"
    asyncio.run(eventually(lambda: reason in worker.log(), what=lambda: worker.log()[-3000:]))
    assert worker.terminate() == 0


async def reset(app: App) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=app.brokers, group_id=f"{app.name}-actors", enable_auto_commit=False)
    await consumer.start()
    try:
        parts = [TopicPartition(f"{app.name}-in", number) for number in range(app.partitions)]
        consumer.assign(parts)

        async def is_done() -> bool:
            # A static member stays in the group until its session ends, and nobody else may commit.
            try:
                await consumer.commit(dict.fromkeys(parts, 0))
            except CommitFailedError:
                return False
            return True

        await eventually(is_done)
    finally:
        await consumer.stop()
